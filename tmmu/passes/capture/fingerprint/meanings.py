"""What the names in a function of the user's mean now."""

import sys
from importlib.machinery import PathFinder
from importlib.util import resolve_name
from types import FunctionType
from typing import Any, Final

from tmmu.passes.capture.fingerprint.data import named_set
from tmmu.passes.capture.fingerprint.homes import PYTHON, home_of_code, home_of_file, home_of_module, home_of_named
from tmmu.passes.capture.fingerprint.outside import outside
from tmmu.passes.capture.fingerprint.reads import UNBOUND, Read, led_to
from tmmu.passes.capture.fingerprint.walker import Walker

_STREAMS: Final = ("stdout", "stderr", "stdin")


def meaning(w: Walker, function: FunctionType, read: Read) -> None:
    """What a chain of names leads to: modules on the way are passed through, the first other thing is visited, and of
    a library's class or function also what somebody may have put on it.
    """
    w.emit("name", *read.names)
    if read.names[0] == "import":
        _imported(w, function, read.names[1], read.names[2:])
        return
    try:
        value, rest = led_to(read.names, function.__globals__)
    except Exception as error:  # noqa: BLE001 - a module may make what it has when asked
        w.refuse(f"{'.'.join(read.names)}, which cannot be had: {type(error).__name__},")
    w.emit(len(rest))
    if rest:
        _put_on(w, value, rest[0])
    _named(w, value, ".".join(read.names))


def _named(w: Walker, value: Any, name: str) -> None:
    """What code names; what looks outside by that alone, since it shows when code calls it or takes it whole."""
    said = outside(value)
    if said:
        w.emit("outside", said)
    elif value is UNBOUND:
        w.emit("unbound")
    elif any(value is getattr(sys, stream) for stream in _STREAMS):
        w.emit("stream")
    elif type(value) in (set, frozenset):
        named_set(w, value)
    else:
        w.visit(value, name)


def _put_on(w: Walker, value: Any, name: str) -> None:
    """A plain value, or a function of the user's, that a library's class or function has under a name."""
    if not isinstance(value, (type, FunctionType)) or home_of_named(value) is None:
        return
    holders = value.__mro__ if isinstance(value, type) else (value,)
    found = next((vars(holder)[name] for holder in holders if name in vars(holder)), UNBOUND)
    users = isinstance(found, FunctionType) and home_of_code(found.__code__) is None
    if users or type(found) in (bool, int, float, complex, str, bytes, type(None)):
        w.emit("put on", name)
        w.visit(found, name)


def _imported(w: Walker, function: FunctionType, name: str, taken: tuple[str, ...]) -> None:
    """A module that a function imports while it runs: a library's by name, of the user's what is taken of it.

    One that is not loaded yet is loaded while the model is traced, and that shows.
    """
    try:
        full = resolve_name(name, function.__globals__.get("__package__"))
    except ImportError:
        w.refuse(f"an import of {name}")
    for one in dict.fromkeys((full.partition(".")[0], full)):
        _module_of(w, one, whole=not taken or taken == ("*",))
    module: Any = sys.modules.get(full)
    for one in taken if module is not None else ():
        inner: Any = sys.modules.get(f"{full}.{one}") or getattr(module, one, UNBOUND)
        _named(w, inner, one)


def _module_of(w: Walker, name: str, *, whole: bool) -> None:
    """A module by its name; one of the user's with all that it holds, where it is taken ``whole``."""
    module, home = sys.modules.get(name), _home_of_name(name)
    if home is not None:
        w.library(home, "module", name, "")
    elif module is None:
        w.emit("not loaded", name, int(_is_found(name)))
    elif whole:
        w.visit(module)


def _home_of_name(name: str) -> str | None:
    """Whose module it is, loaded or not: where its file is decides, not what it is called."""
    top = name.partition(".")[0]
    if top in sys.modules:
        return home_of_module(sys.modules[top])
    if top in sys.builtin_module_names:
        return PYTHON
    spec = PathFinder.find_spec(top)
    return home_of_file(spec.origin) if spec is not None and spec.origin else None


def _is_found(name: str) -> bool:
    return PathFinder.find_spec(name.partition(".")[0]) is not None
