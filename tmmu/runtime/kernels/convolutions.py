"""Convolutions, some images at a time, or some rows of one image, so that less is allocated at a time.

CPU kernels that multiply matrices first lay out every window of the filter (im2col): as many copies of the image as
the filter has elements, which outweighs everything else and is freed with each part.

An image is cut along its first axis only. Let ``e = ceil(padding / stride)``. A part between the edges needs no padding
and is computed without. A part at an edge is computed with padding on both sides, since a convolution pads alike:
its last ``e`` rows on the inner side are wrong. Invariant: edges are computed first and every part between is longer
than ``e``, so that the wrong rows are overwritten by the parts that own them.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from tmmu.runtime.kernels.code import Arguments, Code, Instruction, instruction
from tmmu.runtime.kernels.parts import IndexRange, Results, split_range, tensor_bytes

aten = torch.ops.aten


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvolutionAxis:
    """The first axis of an image, in rows: its length, the filter's dilated size, its stride, padding on each side."""

    length: int
    filter_size: int
    stride: int
    padding: int

    @property
    def edge_rows(self) -> int:
        """Result rows at the inner side of an edge part that are wrong, because padding stands for image rows."""
        return -(-self.padding // self.stride)

    def input_rows(self, rows: IndexRange) -> IndexRange:
        """The rows that result ``rows`` are computed from; beyond ``[0, length)`` they are padding."""
        return rows[0] * self.stride - self.padding, (rows[1] - 1) * self.stride - self.padding + self.filter_size

    def needs_no_padding(self, rows: IndexRange) -> bool:
        """Whether result ``rows`` are computed from rows of the image alone."""
        low, high = self.input_rows(rows)
        return low >= 0 and high <= self.length


def convolution_in_parts(args: Arguments, results: Results, scratch: int) -> Code | None:
    """``convolution`` in parts of about ``scratch`` bytes: images, and rows of an image where one takes more."""
    x, weight, (result,) = args["input"], args["weight"], results
    is_supported = x.dim() == weight.dim() >= 3 and not args["transposed"] and args["groups"] == 1
    if not is_supported or result is None or not result.numel():
        return None
    total_bytes = tensor_bytes(result) + im2col_bytes(weight, result)
    images = split_range(x.shape[0], total_bytes, scratch)
    if len(images) < x.shape[0] or total_bytes // x.shape[0] <= scratch:
        code = [_convolve_images(args, result, part) for part in images]
    else:
        parts = _row_ranges(args, result, total_bytes // x.shape[0], scratch)
        code = [_convolve_rows(args, result, image, rows) for image in range(x.shape[0]) for rows in parts]
    return tuple(code) if len(code) > 1 else None


def im2col_bytes(weight: torch.Tensor, result: torch.Tensor) -> int:
    """Bytes of the matrix of all windows that the filter meets."""
    return result.numel() // weight.shape[0] * math.prod(weight.shape[1:]) * result.element_size()


def _row_ranges(args: Arguments, result: torch.Tensor, image_bytes: int, scratch: int) -> Sequence[IndexRange]:
    """Ranges of result rows, the two edges first; a single one where the invariant above does not hold."""
    axis, count = _first_axis(args), result.shape[2]
    parts = split_range(count, image_bytes, max(scratch, image_bytes * (axis.edge_rows + 1) // count))
    edges, between = (parts[0], parts[-1]), parts[1:-1]
    cover_edges = all(high - low > axis.edge_rows and axis.needs_no_padding((low, high)) for low, high in between)
    if axis.padding and not (between and cover_edges):
        return [(0, count)]
    return [*edges, *between] if len(parts) > 1 else parts


def _first_axis(args: Arguments) -> ConvolutionAxis:
    size, (dilation, *_) = args["weight"].shape[2], args["dilation"]
    return ConvolutionAxis(
        length=args["input"].shape[2],
        filter_size=dilation * (size - 1) + 1,
        stride=args["stride"][0],
        padding=args["padding"][0],
    )


def _convolve_images(args: Arguments, result: torch.Tensor, images: IndexRange) -> Instruction:
    return _convolve(args, args["input"][slice(*images)], args["padding"], result[slice(*images)])


def _convolve_rows(args: Arguments, result: torch.Tensor, image: int, rows: IndexRange) -> Instruction:
    """Result rows of one image; at an edge also ``edge_rows`` wrong ones, which a later part overwrites."""
    axis, x, target = _first_axis(args), args["input"][image : image + 1], result[image : image + 1]
    low, high = axis.input_rows(rows)
    if axis.needs_no_padding(rows):
        return _convolve(args, x.narrow(2, low, high - low), [0, *args["padding"][1:]], target[:, :, slice(*rows)])
    first = max(0, rows[0] - axis.edge_rows)
    begin, end = first * axis.stride, min(high, axis.length)
    count = (end - begin + 2 * axis.padding - axis.filter_size) // axis.stride + 1
    return _convolve(args, x.narrow(2, begin, end - begin), args["padding"], target.narrow(2, first, count))


def _convolve(args: Arguments, x: torch.Tensor, padding: Sequence[int], target: torch.Tensor) -> Instruction:
    window = (args["stride"], list(padding), args["dilation"], args["transposed"], args["output_padding"])
    return instruction(
        aten.convolution.default, x, args["weight"], args["bias"], *window, args["groups"], into=(target,)
    )
