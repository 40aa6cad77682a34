"""At real widths a step allocates what its executor declares and nothing else, under a twentieth of its stack."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from tests.kernels import one_thread, plain_kernels

pytest.importorskip("transformers")

from benchmarks.subject import Subject, Tensors
from benchmarks.wide import wide_workload
from tmmu.runtime.execute.executor import Executor
from tmmu.runtime.memory.tensor_views import segment_layout

PLANNED_LIMIT = 20
"""Declared bytes are less than the planned peak by this factor; than the stack alone too."""


@contextmanager
def profiled_allocations() -> Iterator[list[int]]:
    """Yields what is filled, when the block ends, with the bytes of every allocation inside, as the profiler saw it."""
    sizes: list[int] = []
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True, acc_events=True) as profiler:
        yield sizes
    events = profiler.profiler.kineto_results.events()  # type: ignore[union-attr]
    sizes += [event.nbytes() for event in events if event.name() == "[memory]" and event.nbytes() > 0]


def declared_bytes(executor: Executor) -> int:
    return sum(row.bytes for row in executor.unplanned_allocations)


def demand_nothing_undeclared(subject: Subject, executor: Executor, inputs: Tensors) -> None:
    """Of the second step: the first fills lazy caches."""
    executor.run(inputs, views=True)
    with profiled_allocations() as sizes:
        executor.run(inputs, views=True)
    assert sum(sizes) == declared_bytes(executor)
    peak = max(row.peak for row in executor.unplanned_allocations)
    stack = segment_layout(subject.plan).bytes["stack"]
    assert peak * PLANNED_LIMIT < stack, f"{peak} of {stack} bytes"
    rows = executor.unplanned_allocations
    assert rows == tuple(sorted(rows, key=lambda row: (-row.peak, -row.bytes, row.operator)))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["GPT-2", "ViT"])
def test_step_that_takes_its_inputs_in_allocates_what_it_declares_at_real_widths(name: str) -> None:
    """Steps on inputs that stay where they are: ``test_peaks.py``, for all models and in training."""
    with plain_kernels(), one_thread():
        subject = Subject(wide_workload(name, training=False))
        demand_nothing_undeclared(subject, subject.executor(), subject.inputs(0))


def test_profiler_sees_every_allocation() -> None:
    x = torch.zeros(100)
    with profiled_allocations() as sizes:
        x.neg()
        x.neg_()
    assert sizes == [400]
