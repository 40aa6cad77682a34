"""Events of torch's CPU allocator by call, from real runs of the profiler."""

import pytest
import torch

from tmmu.eager.observed import BEFORE, AllocationEvent, observed_memory
from tmmu.errors import InvalidConfig
from tmmu.runtime.observe.calls import CallObserver
from tmmu.runtime.observe.cpu_allocations import CpuAllocationLog


def test_allocs_and_frees_belong_to_the_call_around_them() -> None:
    with CpuAllocationLog() as allocations:
        with allocations.in_call(BEFORE):
            x = torch.ones(256)
        with allocations.in_call(0):
            y = x * x
        del x
        with allocations.in_call(1):
            del y
    found = [(event.call, event.inside, event.bytes) for event in allocations.events]
    assert found == [(BEFORE, True, 1024), (0, True, 1024), (0, False, -1024), (1, True, -1024)]
    assert allocations.events[0].address == allocations.events[2].address


def test_observer_names_calls_of_gradients_too() -> None:
    with CpuAllocationLog() as allocations:
        observer = CallObserver(allocations, lambda: "here")
        with allocations.in_call(BEFORE):
            w = torch.ones(256, requires_grad=True)
        with observer:
            (w.exp() * torch.tensor([2.0])).sum().backward()
    made = [name for name in observer.names if "detach" not in name]
    assert made[:3] == ["aten.exp.default", "aten.lift_fresh.default", "aten.mul.Tensor"]
    assert {"aten.ones_like.default", "aten.expand.default"} < set(made[4:])
    assert observer.sources == ["here"] * len(observer.names)
    memory = observed_memory(allocations.events, len(observer.names), observer.lifted)
    assert memory.before == 1024
    assert memory.called[0] == 1024
    assert memory.called[observer.names.index("aten.lift_fresh.default")] == 1028
    assert memory.called[-1] == 1024 + 4 + 4, "the gradient, the sum and the constant"


def test_deep_nesting_is_no_recursion() -> None:
    with CpuAllocationLog() as allocations:
        scopes = [torch.autograd.profiler.record_function("outer") for _ in range(2000)]
        for scope in scopes:
            scope.__enter__()
        with allocations.in_call(0):
            x = torch.ones(2)
        for scope in reversed(scopes):
            scope.__exit__(None, None, None)
    address = x.untyped_storage().data_ptr()
    assert allocations.events == (AllocationEvent(call=0, inside=True, bytes=8, address=address),)


def test_profiler_that_runs_is_not_disturbed() -> None:
    with torch.autograd.profiler.profile(), pytest.raises(InvalidConfig, match="a profiler is running"):
        CpuAllocationLog().__enter__()
