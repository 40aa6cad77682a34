"""Data: numbers, text, containers.

Containers are told apart by type, order and content, and by what they share; an unordered one must hold what sorts.
"""

import collections
import os
import struct
import types
from collections.abc import Mapping
from typing import Any, Final

import torch

from tmmu.passes.capture.fingerprint.unseen import STEADY
from tmmu.passes.capture.fingerprint.walker import Rule, Walker, plain_object, state


def _singleton(w: Walker, value: Any) -> None:
    w.emit(repr(value))


def _truth(w: Walker, value: bool) -> None:  # noqa: FBT001
    w.emit("bool", int(value))


def _integer(w: Walker, value: int) -> None:
    w.emit(value)


def _float(w: Walker, value: float) -> None:
    w.emit("float", struct.pack("<d", value))


def _complex(w: Walker, value: complex) -> None:
    w.emit("complex", struct.pack("<dd", value.real, value.imag))


def _text(w: Walker, value: str) -> None:
    w.emit(value)


def _bytes(w: Walker, value: bytes | bytearray) -> None:
    w.emit(type(value).__name__, bytes(value))


def _bytearray(w: Walker, value: bytearray) -> None:
    if not w.met(value):
        _bytes(w, value)


def _printed(w: Walker, value: Any) -> None:
    """What prints whole."""
    w.emit(type(value).__name__, str(value))


def _slice(w: Walker, value: slice) -> None:
    w.emit("slice")
    for part in (value.start, value.stop, value.step):
        w.visit(part)


def _tuple(w: Walker, value: tuple[Any, ...]) -> None:
    w.emit(type(value).__name__, len(value))
    for at, item in enumerate(value):
        w.visit(item, str(at))


def _list(w: Walker, value: Any) -> None:
    if not w.met(value):
        limit = getattr(value, "maxlen", None)
        w.emit(type(value).__name__, len(value), -1 if limit is None else limit)
        for at, item in enumerate(value):
            w.visit(item, str(at))


def _map(w: Walker, value: Mapping[Any, Any]) -> None:
    if not w.met(value):
        w.emit(type(value).__name__, len(value))
        w.items(list(value.items()))


def _ordered_map(w: Walker, value: collections.OrderedDict[Any, Any]) -> None:
    if not w.met(value):
        w.emit("OrderedDict", len(value))
        w.items(list(value.items()))
        state(w, value)


def _default_map(w: Walker, value: collections.defaultdict[Any, Any]) -> None:
    if not w.met(value):
        w.emit("defaultdict", len(value))
        w.visit(value.default_factory)
        w.items(list(value.items()))


def _set(w: Walker, value: Any) -> None:
    """What a set holds, in its order: of text, that is another one in each process, unless their seed is fixed."""
    if not all(type(member) in STEADY for member in value):
        if not all(type(member) in (*STEADY, str, bytes) for member in value):
            w.refuse("a set of objects")
        if not os.environ.get("PYTHONHASHSEED", "").isdigit():
            w.refuse("a set of text, whose order no two processes share unless PYTHONHASHSEED is set,")
        w.emit("seed", hash("a text"))
    if isinstance(value, set) and w.met(value):
        return
    w.emit(type(value).__name__, len(value), value.__sizeof__())
    for member in value:
        w.visit(member)


def named_set(w: Walker, value: Any) -> None:
    """A set that code names: where code asks for more than what it holds, it shows."""
    if all(type(member) in STEADY for member in value):
        _set(w, value)
        return
    if not all(type(member) in _SORTED for member in value):
        w.refuse("a set of objects")
    if isinstance(value, set) and w.met(value):
        return
    w.emit(type(value).__name__, len(value))
    for member in sorted(value, key=lambda one: (type(one).__name__, repr(one))):
        w.visit(member)


_SORTED: Final = (str, int, bool, float, bytes, type(None), torch.dtype)
"""Types of members that sort by their text."""


def _derived_map(w: Walker, value: dict[Any, Any]) -> None:
    """A map of a class of its own: the class, what it holds, its attributes."""
    if not w.met(value):
        w.emit("derived map", len(value))
        w.visit(type(value))
        w.items(list(dict.items(value)))
        state(w, value)


def _derived_sequence(w: Walker, value: Any) -> None:
    if not w.met(value):
        base = list if isinstance(value, list) else tuple
        w.emit("derived sequence", len(value))
        w.visit(type(value))
        for at, item in enumerate(base.__iter__(value)):
            w.visit(item, str(at))
        state(w, value)


def _derived_scalar(w: Walker, value: Any) -> None:
    base = next(base for base in _SCALARS if isinstance(value, base))
    w.emit("derived", base.__name__)
    w.visit(type(value))
    w.visit(_SCALARS[base](value))
    state(w, value)


_SCALARS: Final[Mapping[type, Any]] = {
    str: str.__str__,
    int: int.__int__,
    float: float.__float__,
    bytes: bytes.__bytes__,
}
"""How an object of a derived class becomes one of the builtin class, whatever the class says."""


def _tuple_field(w: Walker, value: Any) -> None:
    w.emit("tuple field", value.__reduce__()[1][0])


EXACT: Final[Mapping[type, Rule]] = {
    type(None): _singleton,
    type(Ellipsis): _singleton,
    type(NotImplemented): _singleton,
    bool: _truth,
    int: _integer,
    float: _float,
    complex: _complex,
    str: _text,
    bytes: _bytes,
    bytearray: _bytearray,
    range: _printed,
    torch.dtype: _printed,
    torch.layout: _printed,
    torch.memory_format: _printed,
    torch.device: _printed,
    slice: _slice,
    tuple: _tuple,
    torch.Size: _tuple,
    list: _list,
    collections.deque: _list,
    dict: _map,
    collections.OrderedDict: _ordered_map,
    types.MappingProxyType: _map,
    collections.defaultdict: _default_map,
    set: _set,
    frozenset: _set,
    type(vars(collections.namedtuple("_", "field"))["field"]): _tuple_field,
}

DERIVED: Final[Mapping[type, Rule]] = {
    dict: _derived_map,
    collections.OrderedDict: _derived_map,
    collections.defaultdict: _derived_map,
    list: _derived_sequence,
    tuple: _derived_sequence,
    str: _derived_scalar,
    int: _derived_scalar,
    float: _derived_scalar,
    bytes: _derived_scalar,
    types.SimpleNamespace: plain_object,
}
