"""One fingerprint in the making: where it is looking, what it has met, and which rule says what an object is."""

import struct
import types
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, NoReturn, TypeAlias

from tmmu.passes.capture.fingerprint.homes import OURS, home_of_named
from tmmu.passes.capture.fingerprint.sink import Sink, Token, Unnameable

DRAWN: Final = frozenset({"SESSION_ID", "_original_object_hash"})
"""What libraries (transformers) make anew in each process, to tell servers or themselves; no trace depends on it."""
_POINTER: Final = struct.calcsize("P")


@dataclass(frozen=True, slots=True)
class Rules:
    """What to emit for an object, by its type: ``exact`` for this very type, ``derived`` also for what derives."""

    exact: Mapping[type, "Rule"]
    derived: Mapping[type, "Rule"]

    def of(self, kind: type) -> "Rule":
        """The rule for objects of this type; of several that it derives from, the nearest one's."""
        if kind in self.exact:
            return self.exact[kind]
        nearest = next((self.derived[base] for base in kind.__mro__ if base in self.derived), None)
        return nearest or (plain_object if _is_plain(kind) else _unknown)


class Walker:
    """Emits all that decides a value. ``libraries``, ``classes`` and ``codes`` were met on the way."""

    def __init__(self, rules: Rules, folder: str) -> None:
        self.sink = Sink()
        self.folder = folder
        self.libraries: dict[str, None] = {}
        self.classes: dict[type, None] = {}
        self.codes: list[types.CodeType] = []
        self._rules = rules
        self._rule_of: dict[type, Rule] = {}
        self._met: dict[int, tuple[int, Any]] = {}
        self._path: list[str] = []
        self._memories: dict[int, int] = {}

    def emit(self, *tokens: Token) -> None:
        """The tokens stand at the end of the stream."""
        self.sink.emit(*tokens)

    def visit(self, value: Any, name: str = "") -> None:
        """All that decides ``value`` is emitted; ``name`` is what messages call its place."""
        kind = type(value)
        rule = self._rule_of.get(kind)
        if rule is None:
            rule = self._rule_of[kind] = self._rules.of(kind)
        self._path.append(name)
        rule(self, value)
        self._path.pop()

    def items(self, pairs: Iterable[tuple[Any, Any]]) -> None:
        """Names and values in their order."""
        for key, value in pairs:
            self.visit(key)
            self.visit(value, str(key))

    def met(self, value: Any) -> bool:
        """Whether ``value`` stands in the stream already, to which a reference is emitted; from now on it does."""
        known = self._met.get(id(value))
        if known is not None:
            self.sink.again(known[0])
            return True
        self._met[id(value)] = (len(self._met), value)
        return False

    def memory(self, address: int) -> int:
        """Which piece of memory begins here, in the order in which they are met: what shares one shows it."""
        return self._memories.setdefault(address, len(self._memories))

    def library(self, home: str, what: str, module: str | None, name: str) -> None:
        """Something of an installed library, or of ours: its name says all that the library's files do not."""
        if home != OURS:
            self.libraries[home] = None
        self.emit(what, home, module or "", name)

    def refuse(self, what: str) -> NoReturn:
        """No fingerprint, because of ``what`` at this place."""
        where = ".".join(name for name in self._path if name)
        raise Unnameable(f"{what} at {where}" if where else what)


Rule: TypeAlias = Callable[[Any, Any], None]
"""Emits a value: called with the walker and the value."""


def plain_object(w: Walker, value: Any) -> None:
    """An object of a class without a rule: its class, and all that it keeps."""
    if not w.met(value):
        w.emit("object")
        w.visit(type(value))
        state(w, value)


def state(w: Walker, value: Any) -> None:
    """The attributes of an object, in the order in which they were set; then its slots."""
    kept = list(getattr(value, "__dict__", {}).items())
    if home_of_named(type(value)) is not None:
        kept = [(name, held) for name, held in kept if name not in DRAWN]
    w.emit(len(kept))
    w.items(kept)
    slots(w, value)


def slots(w: Walker, value: Any) -> None:
    """The slots of an object."""
    for name in _slots(type(value)):
        w.emit("slot", name)
        if hasattr(value, name):
            w.visit(getattr(value, name), name)


def attributes(w: Walker, value: Any, *, known: Collection[str] = ()) -> None:
    """What hangs on an object of Python's own: attributes, without the ``known`` ones, and slots of the user's."""
    w.items([(name, held) for name, held in getattr(value, "__dict__", {}).items() if name not in known])
    for base in type(value).__mro__:
        if home_of_named(base) is None:
            for name, member in vars(base).items():
                if isinstance(member, types.MemberDescriptorType) and hasattr(value, name):
                    w.emit("slot", name)
                    w.visit(getattr(value, name), name)


def _slots(kind: type) -> Iterator[str]:
    for base in kind.__mro__:
        for name, member in vars(base).items():
            if isinstance(member, types.MemberDescriptorType):
                yield name


def _is_plain(kind: type) -> bool:
    """Whether objects of this type have nothing but attributes and slots: no room for what compiled code keeps."""
    slots = len(tuple(_slots(kind)))
    extra = (kind.__dictoffset__ > 0) + (kind.__weakrefoffset__ > 0)
    return kind.__itemsize__ == 0 and kind.__basicsize__ == object.__basicsize__ + _POINTER * (slots + extra)


def _unknown(w: Walker, value: Any) -> None:
    """What a library has under its own name is told by that; nothing else can be told."""
    home, kind = home_of_named(value), type(value)
    if home is not None:
        w.library(home, "object", value.__module__, value.__qualname__)
        return
    w.refuse(f"an object of {kind.__module__}.{kind.__qualname__}")
