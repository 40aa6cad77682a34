"""Compilation of the search's inner functions: with numba where it is installed, not at all elsewhere."""

from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import Any, ParamSpec, TypeVar

import numpy as np
import numpy.typing as npt

P = ParamSpec("P")
R = TypeVar("R")


def _load_numba() -> Any:
    """The numba module; None if it is missing or told not to compile: then plain lists are faster than arrays."""
    if find_spec("numba") is None:
        return None
    numba = import_module("numba")
    return None if numba.config.DISABLE_JIT else numba


_NUMBA = _load_numba()
COMPILED = _NUMBA is not None


def jit(function: Callable[P, R]) -> Callable[P, R]:
    """The same function, compiled; compiled code is kept on disk where some folder for it can be written."""
    if _NUMBA is None:
        return function
    try:
        compiled = _NUMBA.njit(cache=True)(function)
    except RuntimeError:  # no folder to keep it in
        compiled = _NUMBA.njit(function)
    result: Callable[P, R] = compiled
    return result


def make_cells(values: Sequence[int] | npt.NDArray[np.int64]) -> Any:
    """``values`` as cells that can be written: an array for compiled code, else a list, which is faster there."""
    if COMPILED:
        return np.array(values, dtype=np.int64)
    return values.tolist() if isinstance(values, np.ndarray) else list(values)


def zero_cells(count: int) -> Any:
    """That many zeros; as an array they take no memory until written."""
    return np.zeros(count, dtype=np.int64) if COMPILED else [0] * count
