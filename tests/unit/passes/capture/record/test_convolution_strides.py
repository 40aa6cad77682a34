"""Convolutions and their gradients have the strides of real kernels, where one axis of one element decides too."""

import random
from contextlib import suppress
from typing import NamedTuple

import pytest
import torch

from tests.kernels import plain_kernels
from tests.unit.passes.capture.record.test_upsampling import window
from tmmu.passes.capture.record.recorder import Recorder
from tmmu.passes.capture.trace import fake_environment

aten = torch.ops.aten
Window = tuple[list[int], list[int]]
Layouts = list[tuple[torch.Size, tuple[int, ...]]]


class Convolution(NamedTuple):
    image: Window
    weight: Window
    gradient: Window
    options: tuple[list[int], list[int], list[int], bool, list[int], int]

    def layouts(self) -> Layouts:
        """Of the result, and of the gradients of image and weight."""
        image, weight, gradient = (torch.empty_strided(*place).fill_(1) for place in self[:3])
        result = aten.convolution.default(image, weight, None, *self.options)
        biases, wanted = [weight.shape[0]], [True, True, False]
        gradients = aten.convolution_backward.default(gradient, image, weight, biases, *self.options, wanted)[:2]
        return [(tensor.shape, tensor.stride()) for tensor in (result, *gradients)]


ODD = Convolution(
    ([1, 2, 1, 1], [2, 1, 2, 1]),
    ([4, 1, 3, 1], [3, 3, 1, 1]),
    ([1, 4, 1, 2], [8, 2, 2, 1]),
    ([2, 2], [1, 1], [1, 1], False, [0, 0], 2),
)
"""Contiguous as a whole, and of which each group is in another format."""


def draw(chance: random.Random) -> Convolution | None:
    """A small one of one to three axes; ``None`` where its result would have no element."""
    axes = chance.choice((1, 2, 2, 2, 3))
    rows, ins, outs = chance.choice((1, 2, 3)), chance.choice((1, 2, 4)), chance.choice((1, 2, 4))
    groups = chance.choice((1, 1, ins)) if outs % ins == 0 else 1
    places, kernel = ([chance.choice(sizes) for _ in range(axes)] for sizes in ((1, 1, 2, 4), (1, 1, 2, 3)))
    is_transposed = chance.random() < 0.3
    step, padding = [chance.choice((1, 2))] * axes, [chance.choice((0, 1))] * axes
    sides = [ins, outs // groups] if is_transposed else [outs, ins // groups]
    options = (step, padding, [1] * axes, is_transposed, [0] * axes, groups)
    image, weight = [rows, ins, *places], [*sides, *kernel]
    try:
        forms = (torch.ones(shape, device="meta") for shape in (image, weight))
        result = aten.convolution.default(*forms, None, *options)
    except RuntimeError:
        return None
    if not result.numel():
        return None
    return Convolution(window(chance, image), window(chance, weight), window(chance, [*result.shape]), options)


@pytest.mark.parametrize(
    "attempts", [150, pytest.param(1500, marks=pytest.mark.slow), pytest.param(40000, marks=pytest.mark.long)]
)
def test_convolutions_have_the_strides_of_real_kernels(attempts: int) -> None:
    chance = random.Random(attempts)
    drawn = [ODD, *(convolution for _ in range(attempts) if (convolution := draw(chance)) is not None)]
    real: dict[int, Layouts] = {}
    with plain_kernels(), torch.no_grad():
        for number, convolution in enumerate(drawn):
            with suppress(RuntimeError):  # "grad_weight must be contiguous": for some windows torch has no gradient
                real[number] = convolution.layouts()
        with fake_environment("cpu"), Recorder(folder=""):
            planned = {number: drawn[number].layouts() for number in real}
    assert len(real) > attempts // 2
    assert not [(drawn[number], planned[number], real[number]) for number in real if planned[number] != real[number]]
