"""A product of one row and a matrix, by all threads: the same bits, and a matrix is read as fast as memory allows.

A library gives such a product to one thread. Here the columns are cut into as many parts as there are threads, and the
parts are multiplied as a batch. Kernels take fewer columns at a time than a cut is a multiple of, so that no column
meets another kernel than in the whole.
"""

from collections.abc import Mapping
from typing import Any, Final

import torch

from tmmu.runtime.kernels.code import Code, Instruction, instruction
from tmmu.runtime.memory.slab import is_dense

aten = torch.ops.aten
COLUMNS: Final = 64
"""Cuts lie at multiples of these, and at least so many are in each part."""
GRAIN: Final = 1 << 17
"""Bytes of a matrix that are worth a thread: it takes about two microseconds to wake."""
_DTYPES: Final = frozenset({torch.float32, torch.float64})


def product(given: Mapping[str, Any], view: torch.Tensor) -> Code | None:
    """``mm`` of one row."""
    row, matrix = given["self"], given["mat2"]
    count, width = _cut(row, matrix, view)
    if count < 2:
        return None
    out = _parts(view, count, width)
    batch = instruction(aten.bmm.out, row.expand(count, *row.shape), _parts(matrix, count, width), out=out)
    rest = slice(count * width, None)
    return _both(batch, instruction(aten.mm.out, row, matrix[:, rest], out=view[:, rest]), view, count * width)


def product_added(given: Mapping[str, Any], view: torch.Tensor) -> Code | None:
    """``addmm`` of one row."""
    row, matrix, added = given["mat1"], given["mat2"], given["self"].expand(view.shape)
    scale = {name: given[name] for name in ("beta", "alpha") if name in given}
    count, width = _cut(row, matrix, view)
    if count < 2:
        return None
    out = _parts(view, count, width)
    rows, parts = row.expand(count, *row.shape), _parts(matrix, count, width)
    batch = instruction(aten.baddbmm.out, _parts(added, count, width), rows, parts, **scale, out=out)
    rest = slice(count * width, None)
    last = instruction(aten.addmm.out, added[:, rest], row, matrix[:, rest], **scale, out=view[:, rest])
    return _both(batch, last, view, count * width)


def _cut(row: torch.Tensor, matrix: torch.Tensor, view: torch.Tensor) -> tuple[int, int]:
    """How many parts of how many columns; fewer than two where the product is no such one, or not worth it."""
    plain = view.is_cpu and view.dtype in _DTYPES and row.shape[0] == 1 and torch._C.has_mkl
    if not plain or not (row.is_contiguous() and view.is_contiguous() and is_dense(matrix)):
        return 1, 0
    columns = matrix.shape[1]
    most = min(torch.get_num_threads(), matrix.numel() * matrix.element_size() // GRAIN)
    cuts = [(count, _width(columns, count)) for count in range(2, most + 1)]
    return min((cut for cut in cuts if cut[1]), key=lambda cut: _longest(columns, *cut), default=(1, 0))


def _width(columns: int, count: int) -> int:
    """Of equal parts, what is left over being nothing, or enough for a kernel."""
    width = columns // (count * COLUMNS) * COLUMNS
    if 0 < columns - count * width < COLUMNS:
        width = (columns - COLUMNS) // (count * COLUMNS) * COLUMNS
    return width


def _longest(columns: int, count: int, width: int) -> int:
    """Columns that are computed one after another: a part, and then what is left over."""
    return width + columns - count * width


def _parts(tensor: torch.Tensor, count: int, width: int) -> torch.Tensor:
    """The first columns in parts: ``[R, N]`` as ``[count, R, width]``."""
    shape, (down, across) = (count, tensor.shape[0], width), tensor.stride()
    return tensor.as_strided(shape, (width * across, down, across))


def _both(batch: Instruction, rest: Instruction, view: torch.Tensor, done: int) -> Code:
    return (batch,) if done == view.shape[1] else (batch, rest)
