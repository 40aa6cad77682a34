"""A plan is no larger than what eager holds at its worst moment: bytes, counted on both sides."""

import pytest
import torch

from tests.kernels import one_thread, plain_kernels

pytest.importorskip("transformers")

from benchmarks.architectures import ARCHITECTURES
from benchmarks.execute import workload
from benchmarks.peaks import Peak, eager_peak, line, peak_of, storage_bytes
from benchmarks.subject import Subject
from benchmarks.wide import WIDE, wide_workload

pytestmark = pytest.mark.slow

ROUNDING = 64
"""A planned buffer begins at a multiple of this, and eager's allocator gives blocks that do, without counting it."""


def demand_no_more_than_eager(peak: Peak, buffers: int) -> None:
    assert peak.plan <= peak.eager + ROUNDING * buffers, line(peak)


@pytest.mark.parametrize("training", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("name", ["Llama 3.1 8B", "GPT-2", "BERT base", "T5 base", "ConvNeXt tiny"])
def test_small_plans_are_no_larger_than_the_peak_of_eager(name: str, training: bool) -> None:
    (architecture,) = (candidate for candidate in ARCHITECTURES if candidate.name == name)
    work = workload(architecture, training=training)
    with plain_kernels(), one_thread():
        demand_no_more_than_eager(peak_of(name, work), buffers=len(Subject(work).program.graph.buffers))


@pytest.mark.slow
@pytest.mark.parametrize("training", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("name", WIDE)
def test_plans_at_real_widths_are_no_larger_than_the_peak_of_eager(name: str, training: bool) -> None:
    work = wide_workload(name, training=training)
    with plain_kernels(), one_thread():
        demand_no_more_than_eager(peak_of(name, work), buffers=len(Subject(work).program.graph.buffers))


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
