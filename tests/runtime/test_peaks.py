"""A plan is no larger than what eager holds at its worst moment: bytes, counted on both sides.

At real widths, where to bind a training step takes half a minute, the same executor runs a step under the profiler.
"""

from typing import Any

import pytest
import torch

from tests.kernels import one_thread, plain_kernels

pytest.importorskip("transformers")

from benchmarks.architectures import ARCHITECTURES
from benchmarks.execute import workload
from benchmarks.peaks import Peak, eager_peak, line, peak_and_executor, peak_of, storage_bytes
from benchmarks.subject import Subject
from benchmarks.wide import WIDE, wide_workload
from tests.runtime.test_unplanned_bytes import demand_nothing_undeclared

pytestmark = pytest.mark.slow

ROUNDING = 64
"""A planned buffer begins at a multiple of this, and eager's allocator gives blocks that do, without counting it."""


def demand_no_more_than_eager(peak: Peak, buffers: int) -> None:
    assert peak.plan <= peak.eager + ROUNDING * buffers, line(peak)


@pytest.mark.parametrize("training", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("name", ["Llama 3.1 8B", "GPT-2", "BERT base", "T5 base", "ConvNeXt tiny"])
def test_small_plans_are_no_larger_than_the_peak_of_eager(name: str, training: bool) -> None:
    (architecture,) = (candidate for candidate in ARCHITECTURES if candidate.name == name)
    subject = Subject(workload(architecture, training=training))
    with plain_kernels(), one_thread():
        demand_no_more_than_eager(peak_of(name, subject), buffers=len(subject.program.graph.buffers))


def wide_cases() -> list[Any]:
    """Inference of each model and one training step are slow; the training steps of the others are long."""
    return [
        pytest.param(
            name,
            training,
            id=f"{name}-{'training' if training else 'inference'}",
            marks=pytest.mark.long if training and name != WIDE[0] else (),
        )
        for name in WIDE
        for training in (False, True)
    ]


@pytest.mark.parametrize(("name", "training"), wide_cases())
def test_plans_at_real_widths_need_no_more_than_eager_and_allocate_what_they_declare(name: str, training: bool) -> None:
    subject = Subject(wide_workload(name, training=training))
    with plain_kernels(), one_thread():
        peak, executor = peak_and_executor(name, subject, subject.inputs(0))
        demand_no_more_than_eager(peak, buffers=len(subject.program.graph.buffers))
        demand_nothing_undeclared(subject, executor, {})


def test_eager_peak_is_initial_bytes_plus_the_most_that_a_step_adds() -> None:
    class Stub:
        """A module of 400 bytes, whose call holds 800 more at once, and 400 when it ends."""

        module = torch.nn.Linear(10, 10, bias=False)

        def call(self, inputs: dict[str, torch.Tensor]) -> list[torch.Tensor]:
            first = inputs["x"].neg()
            second = first.neg()
            del first
            third = second.neg()
            return [third]

    inputs = {"x": torch.zeros(100), "same": torch.zeros(0)}
    assert eager_peak(Stub(), inputs) == 400 + 400 + 800  # type: ignore[arg-type]


def test_storage_bytes_count_each_storage_once() -> None:
    x = torch.zeros(100)
    assert storage_bytes([x, x[3:], x.view(10, 10), torch.zeros(1)]) == 404
