"""A product of one row and a matrix by all threads, with the bits of the library's call.

MKL gives such a product to one thread, which reads the matrix at a fraction of the memory's bandwidth. Here the columns
are cut into ``count`` parts of ``width``, multiplied as a batch (one part per thread), and a remainder.

Why the bits stay: a column of the result is a dot product, summed by one micro-kernel in one order. Micro-kernels take
fewer columns at a time than ``COLUMN_MULTIPLE``, and others take the last columns of a matrix. Cuts lie at multiples
of it, and a remainder has at least as many columns, so that every column meets the kernel that it meets in the whole.
``python -m benchmarks.products`` counts products with other bits, and ``steps/validate.py`` compares each product
before it is used. Choice and measurements: docs/decisions/runtime-products.md.
"""

from typing import Final

import torch

from tmmu.runtime.kernels.code import Arguments, Code, Instruction, instruction
from tmmu.runtime.memory.slab import is_dense
from tmmu.torch_private import has_mkl

aten = torch.ops.aten
COLUMN_MULTIPLE: Final = 64
"""Columns; more than any micro-kernel takes at a time."""
BYTES_PER_THREAD: Final = 1 << 17
"""Bytes of a matrix that are worth a thread: waking one takes about two microseconds."""
_DTYPES: Final = frozenset({torch.float32, torch.float64})


def row_product(args: Arguments, result: torch.Tensor) -> Code | None:
    """``mm`` of ``dtype[1, K]`` and ``dtype[K, N]``; ``None`` where cutting does not apply or pay."""
    row, matrix = args["self"], args["mat2"]
    count, width = _column_split(row, matrix, result)
    if count < 2:
        return None
    out = _column_parts(result, count, width)
    batch = instruction(aten.bmm.out, row.expand(count, *row.shape), _column_parts(matrix, count, width), out=out)
    tail = slice(count * width, None)
    remainder = instruction(aten.mm.out, row, matrix[:, tail], out=result[:, tail])
    return _with_remainder(batch, remainder, result, count * width)


def row_product_added(args: Arguments, result: torch.Tensor) -> Code | None:
    """``addmm`` of ``dtype[1, K]`` and ``dtype[K, N]``; ``None`` where cutting does not apply or pay."""
    row, matrix, added = args["mat1"], args["mat2"], args["self"].expand(result.shape)
    scale = {name: args[name] for name in ("beta", "alpha") if name in args}
    count, width = _column_split(row, matrix, result)
    if count < 2:
        return None
    out = _column_parts(result, count, width)
    rows, parts = row.expand(count, *row.shape), _column_parts(matrix, count, width)
    batch = instruction(aten.baddbmm.out, _column_parts(added, count, width), rows, parts, **scale, out=out)
    tail = slice(count * width, None)
    remainder = instruction(aten.addmm.out, added[:, tail], row, matrix[:, tail], **scale, out=result[:, tail])
    return _with_remainder(batch, remainder, result, count * width)


def _column_split(row: torch.Tensor, matrix: torch.Tensor, result: torch.Tensor) -> tuple[int, int]:
    """(count, width) of the parts; a count of 1 where cutting does not apply or pay."""
    is_supported = result.is_cpu and result.dtype in _DTYPES and row.shape[0] == 1 and has_mkl
    if not is_supported or not (row.is_contiguous() and result.is_contiguous() and is_dense(matrix)):
        return 1, 0
    columns = matrix.shape[1]
    max_count = min(torch.get_num_threads(), matrix.numel() * matrix.element_size() // BYTES_PER_THREAD)
    cuts = [(count, _part_width(columns, count)) for count in range(2, max_count + 1)]
    return min((cut for cut in cuts if cut[1]), key=lambda cut: _serial_columns(columns, *cut), default=(1, 0))


def _part_width(columns: int, count: int) -> int:
    """Columns of each of ``count`` equal parts, such that the remainder is empty or at least ``COLUMN_MULTIPLE``."""
    width = columns // (count * COLUMN_MULTIPLE) * COLUMN_MULTIPLE
    if 0 < columns - count * width < COLUMN_MULTIPLE:
        width = (columns - COLUMN_MULTIPLE) // (count * COLUMN_MULTIPLE) * COLUMN_MULTIPLE
    return width


def _serial_columns(columns: int, count: int, width: int) -> int:
    """Columns on the critical path: a part, then the remainder."""
    return width + columns - count * width


def _column_parts(tensor: torch.Tensor, count: int, width: int) -> torch.Tensor:
    """The first ``count * width`` columns of ``[R, N]``, viewed as ``[count, R, width]``."""
    shape, (down, across) = (count, tensor.shape[0], width), tensor.stride()
    return tensor.as_strided(shape, (width * across, down, across))


def _with_remainder(batch: Instruction, remainder: Instruction, result: torch.Tensor, done: int) -> Code:
    return (batch,) if done == result.shape[1] else (batch, remainder)
