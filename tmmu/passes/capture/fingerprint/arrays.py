"""Arrays of numpy: form, bytes, and what shares its memory with what."""

from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from tmmu.passes.capture.fingerprint.walker import Rule, Walker, state


def _dtype(w: Walker, value: np.dtype[Any]) -> None:
    w.emit("numpy dtype", str(value), value.itemsize, int(value.isalignedstruct))
    w.visit(value.metadata)
    for name in value.names or ():
        field = value.fields[name] if value.fields else ()
        w.emit(name)
        w.visit(tuple(field))
    if value.subdtype is not None:
        w.visit(value.subdtype)


def _array(w: Walker, value: np.ndarray[Any, Any]) -> None:
    if value.dtype.hasobject:
        w.refuse("an array of objects")
    if w.met(value):
        return
    w.emit("array", str(value.shape), str(value.strides), int(value.flags.writeable))
    w.visit(value.dtype)
    plain = value.view(np.ndarray)
    w.emit(plain.tobytes(), *_place(w, plain))
    if type(value) is not np.ndarray:
        w.visit(type(value))
        state(w, value)


def _place(w: Walker, value: np.ndarray[Any, Any]) -> tuple[int, int]:
    """Whose memory it is, and where in it: arrays that share some show it."""
    root: Any = value
    while isinstance(getattr(root, "base", None), np.ndarray):
        root = root.base
    first, owner = value.__array_interface__["data"][0], root.__array_interface__["data"][0]
    return (w.memory(owner), first - owner) if value.nbytes else (-1, 0)


def _number(w: Walker, value: Any) -> None:
    w.emit("number", value.tobytes())
    w.visit(value.dtype)


def _universal(w: Walker, value: np.ufunc) -> None:
    w.library("numpy", "compiled", "", value.__name__)


DERIVED: Final[Mapping[type, Rule]] = {
    np.dtype: _dtype,
    np.ufunc: _universal,
    np.ndarray: _array,
    np.generic: _number,
}
