"""Upsampled images have the strides of real kernels, for every memory format and along axes of one element."""

import random
from typing import Any

import pytest
import torch

from tmmu.passes.capture.record.recorder import Recorder
from tmmu.passes.capture.trace import fake_environment

aten = torch.ops.aten
AXES: dict[str, int] = {
    "upsample_nearest1d": 1, "_upsample_nearest_exact1d": 1, "upsample_linear1d": 1,
    "upsample_nearest2d": 2, "_upsample_nearest_exact2d": 2, "upsample_bilinear2d": 2, "upsample_bicubic2d": 2,
    "_upsample_bilinear2d_aa": 2, "_upsample_bicubic2d_aa": 2, "_upsample_lanczos2d_aa": 2,
    "upsample_nearest3d": 3, "_upsample_nearest_exact3d": 3, "upsample_trilinear3d": 3,
}  # fmt: skip
"""Operators, and the axes that they scale."""
OPERATORS = [
    name + suffix
    for name in AXES
    if hasattr(aten, name)
    for suffix in ("", "_backward")
    if hasattr(aten, name + suffix)
]
Window = tuple[list[int], list[int]]


def window(chance: random.Random, shape: list[int]) -> Window:
    """Strides for a shape: contiguous, channels last, in another order, sliced, or any along axes of one element."""
    axes = list(range(len(shape)))
    order = chance.choice((axes, [0, *axes[2:], 1], chance.sample(axes, len(axes))))
    gap, strides, step = chance.choice((0, 0, 1)), [0] * len(shape), 1
    for axis in reversed(order):
        strides[axis], step = step, step * max(shape[axis] + gap, 1)
    if chance.random() < 0.3:
        strides = [s if n > 1 else chance.choice((1, s, 7)) for n, s in zip(shape, strides, strict=True)]
    return shape, strides


def arguments(name: str, chance: random.Random) -> tuple[Window, list[Any]]:
    """The window of the images, and what follows them."""
    axes = AXES[name.removesuffix("_backward")]
    shape = [chance.choice((1, 1, 2, 3)) for _ in range(2 + axes)]
    scaled = [chance.choice((1, 2, 4, n)) for n in shape[2:]]
    is_corner = [] if "nearest" in name else [chance.random() < 0.5]
    if name.endswith("_backward"):
        return window(chance, [*shape[:2], *scaled]), [scaled, shape, *is_corner, *[None] * axes]
    if chance.random() < 0.1:
        shape[0] = 0
    return window(chance, shape), [scaled, *is_corner, *[None] * axes]


@pytest.mark.parametrize("name", OPERATORS)
@pytest.mark.parametrize(
    "attempts", [30, pytest.param(150, marks=pytest.mark.slow), pytest.param(4000, marks=pytest.mark.long)]
)
def test_upsampled_images_have_the_strides_of_real_kernels(name: str, attempts: int) -> None:
    operator, chance = getattr(aten, name).default, random.Random(attempts)
    calls = [arguments(name, chance) for _ in range(attempts)]

    def layouts() -> list[tuple[object, object]]:
        results = (operator(torch.empty_strided(*place).fill_(1), *rest) for place, rest in calls)
        return [(result.shape, result.stride()) for result in results]

    with fake_environment("cpu"), Recorder(folder=""):
        planned = layouts()
    assert not [row for row in zip(calls, planned, layouts(), strict=True) if row[1] != row[2]]


@pytest.mark.parametrize(
    "attempts", [30, pytest.param(150, marks=pytest.mark.slow), pytest.param(4000, marks=pytest.mark.long)]
)
def test_shuffled_channels_have_the_strides_of_real_kernels(attempts: int) -> None:
    chance = random.Random(attempts)
    places = [window(chance, [chance.choice((1, 1, 2, 3)) for _ in range(4)]) for _ in range(attempts)]

    def strides() -> list[tuple[int, ...]]:
        return [aten.channel_shuffle.default(torch.empty_strided(*place).fill_(1), 1).stride() for place in places]

    with fake_environment("cpu"), Recorder(folder=""):
        planned = strides()
    assert not [row for row in zip(places, planned, strides(), strict=True) if row[1] != row[2]]
