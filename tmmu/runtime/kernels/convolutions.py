"""Convolution, some images at a time, and of one image some of its rows: the same bits, and less held.

Kernels that multiply matrices lay out all that a filter meets, as many times over as the filter is large: of an image
that takes more than anything else, and it is freed with each part.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from tmmu.runtime.kernels.code import Code, Instruction, instruction
from tmmu.runtime.kernels.parts import Places, Run, bytes_of, cuts

aten = torch.ops.aten


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """Along the first axis of an image: its length, the filter's reach and step, and the rows that padding adds."""

    length: int
    reach: int
    step: int
    padding: int

    @property
    def lost(self) -> int:
        """Results at an inner edge of a part that see padding where the image goes on."""
        return -(-self.padding // self.step)

    def needed(self, run: Run) -> Run:
        """The rows that a run of results is computed from; outside of ``[0, length)`` where padding is among them."""
        return run[0] * self.step - self.padding, (run[1] - 1) * self.step - self.padding + self.reach

    def inside(self, run: Run) -> bool:
        """Whether no padding is among the rows needed."""
        low, high = self.needed(run)
        return low >= 0 and high <= self.length


def convolution_in_parts(given: Mapping[str, Any], results: Places, scratch: int) -> Code | None:
    """The convolution in parts of about ``scratch`` bytes, edges of an image before what lies between them."""
    x, weight, (result,) = given["input"], given["weight"], results
    plain = x.dim() == weight.dim() >= 3 and not given["transposed"] and given["groups"] == 1
    if not plain or result is None or not result.numel():
        return None
    held = bytes_of(result) + columns_of(weight, result)
    images = cuts(x.shape[0], held, scratch)
    if len(images) < x.shape[0] or held // x.shape[0] <= scratch:
        code = [_images(given, result, run) for run in images]
    else:
        runs = _runs(given, result, held // x.shape[0], scratch)
        code = [_rows(given, result, image, run) for image in range(x.shape[0]) for run in runs]
    return tuple(code) if len(code) > 1 else None


def columns_of(weight: torch.Tensor, result: torch.Tensor) -> int:
    """The bytes of all that the filter meets, laid out."""
    return result.numel() // weight.shape[0] * math.prod(weight.shape[1:]) * result.element_size()


def _runs(given: Mapping[str, Any], result: torch.Tensor, held: int, scratch: int) -> Sequence[Run]:
    """Runs of result rows, the two at the edges first; all at once where an edge would reach over what is between."""
    rows, count = _geometry(given), result.shape[2]
    runs = cuts(count, held, max(scratch, held * (rows.lost + 1) // count))
    edges, between = (runs[0], runs[-1]), runs[1:-1]
    apart = all(high - low > rows.lost and rows.inside((low, high)) for low, high in between)
    if rows.padding and not (between and apart):
        return [(0, count)]
    return [*edges, *between] if len(runs) > 1 else runs


def _geometry(given: Mapping[str, Any]) -> Rows:
    size, (dilation, *_) = given["weight"].shape[2], given["dilation"]
    return Rows(
        length=given["input"].shape[2],
        reach=dilation * (size - 1) + 1,
        step=given["stride"][0],
        padding=given["padding"][0],
    )


def _images(given: Mapping[str, Any], result: torch.Tensor, run: Run) -> Instruction:
    return _call(given, given["input"][slice(*run)], given["padding"], result[slice(*run)])


def _rows(given: Mapping[str, Any], result: torch.Tensor, image: int, run: Run) -> Instruction:
    """A run of rows of one image. At an edge, padding is asked for on both sides: results at the inner one are wrong,
    and are written over by the part that has them.
    """
    rows, x, place = _geometry(given), given["input"][image : image + 1], result[image : image + 1]
    low, high = rows.needed(run)
    if rows.inside(run):
        return _call(given, x.narrow(2, low, high - low), [0, *given["padding"][1:]], place[:, :, slice(*run)])
    first = max(0, run[0] - rows.lost)
    begin, end = first * rows.step, min(high, rows.length)
    made = (end - begin + 2 * rows.padding - rows.reach) // rows.step + 1
    return _call(given, x.narrow(2, begin, end - begin), given["padding"], place.narrow(2, first, made))


def _call(given: Mapping[str, Any], x: torch.Tensor, padding: Sequence[int], place: torch.Tensor) -> Instruction:
    fixed = (given["weight"], given["bias"], given["stride"], list(padding), given["dilation"])
    rest = (given["transposed"], given["output_padding"], given["groups"])
    return instruction(aten.convolution.default, x, *fixed, *rest, into=(place,))
