"""Views and writes in place: any program of them leaves the same bits as on the cpu."""

from collections.abc import Callable

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.unit.client.device.conftest import Remote

Step = Callable[[list[torch.Tensor], int, int], torch.Tensor | None]


def _slice(tensors: list[torch.Tensor], a: int, b: int) -> torch.Tensor:
    tensor = tensors[a]
    return tensor[b % max(tensor.shape[0], 1) :] if tensor.dim() else tensor


def _write_slice(tensors: list[torch.Tensor], a: int, b: int) -> None:
    tensors[a][..., :1] = tensors[b].sum()


def _add(tensors: list[torch.Tensor], a: int, b: int) -> None:
    tensors[a].add_(tensors[b].mean(), alpha=0.5)


def _copy(tensors: list[torch.Tensor], a: int, b: int) -> None:
    tensors[a].copy_(tensors[b].reshape(-1)[:1].sum() + tensors[a].flip(0))


def _mask(tensors: list[torch.Tensor], a: int, b: int) -> None:
    tensors[a].masked_fill_(tensors[a] > 1, float(b))


def _permuted(tensors: list[torch.Tensor], a: int, b: int) -> torch.Tensor:
    return tensors[a].transpose(0, -1).contiguous() + b


STEPS: dict[str, Step] = {
    "transpose": lambda tensors, a, b: tensors[a].transpose(0, -1),
    "flatten": lambda tensors, a, b: tensors[a].reshape(-1),
    "slice": _slice,
    "expand": lambda tensors, a, b: tensors[a].unsqueeze(0).expand(2, *tensors[a].shape)[b % 2],
    "unfold": lambda tensors, a, b: tensors[a].reshape(-1).unfold(0, 1, 1).squeeze(-1),
    "equal": lambda tensors, a, b: tensors[a] * 2,
    "clone": lambda tensors, a, b: tensors[a].clone(),
    "detach": lambda tensors, a, b: tensors[a].detach(),
    "permuted": _permuted,
    "write slice": _write_slice,
    "add": _add,
    "copy": _copy,
    "mask": _mask,
    "zero": lambda tensors, a, b: tensors[a].zero_(),
    "item": lambda tensors, a, b: torch.full_like(tensors[a], tensors[b].sum().item()),
}
PROGRAMS = st.lists(st.tuples(st.sampled_from(sorted(STEPS)), st.integers(0, 99), st.integers(0, 99)), max_size=25)


def run(program: list[tuple[str, int, int]], device: str) -> list[torch.Tensor]:
    start = torch.arange(12, dtype=torch.float32).reshape(3, 4) / 7
    tensors = [start.to(device) if device == "remote" else start.clone()]
    for name, a, b in program:
        result = STEPS[name](tensors, a % len(tensors), b % len(tensors))
        if result is not None:
            tensors.append(result)
    return tensors


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(program=PROGRAMS)
def test_programs_of_views_and_writes_have_local_bits(remote: Remote, program: list[tuple[str, int, int]]) -> None:
    expected, results = run(program, "cpu"), run(program, "remote")
    assert [tuple(x.shape) for x in results] == [tuple(x.shape) for x in expected]
    assert [x.stride() for x in results] == [x.stride() for x in expected]
    for index, (result, tensor) in enumerate(zip(results, expected, strict=True)):
        assert torch.equal(result.cpu(), tensor), (index, program)


PLANNED = [
    [("transpose", 0, 0), ("add", 0, 1), ("write slice", 1, 0), ("equal", 0, 0), ("mask", 0, 3)],
    [("slice", 0, 1), ("flatten", 0, 0), ("zero", 1, 0), ("permuted", 0, 2), ("copy", 0, 2)],
    [("equal", 0, 0), ("equal", 0, 0), ("zero", 1, 0), ("add", 2, 1)],
]


@pytest.mark.parametrize("program", PLANNED)
def test_writes_through_views_have_local_bits_in_a_plan(remote: Remote, program: list[tuple[str, int, int]]) -> None:
    expected = run(program, "cpu")
    for _ in range(4):
        results = run(program, "remote")
        remote.device.run()
        assert all(torch.equal(a.cpu(), b) for a, b in zip(results, expected, strict=True))
        del results
    assert remote.device.counts.planned >= 1


def test_a_view_sees_what_its_base_takes_from_here(remote: Remote) -> None:
    base = torch.zeros(2, 3, device="remote")
    view = base[1]
    base.copy_(torch.arange(6.0).reshape(2, 3))
    assert view.tolist() == [3, 4, 5]
    view.copy_(torch.ones(3))
    assert base.tolist() == [[0, 1, 2], [1, 1, 1]]
    base.data = torch.full((2, 3), 7.0, device="remote")
    assert base[0].tolist() == [7, 7, 7]
    assert view.tolist() == [1, 1, 1]


def test_views_in_place_move_the_tensor_and_no_other(remote: Remote) -> None:
    def run(device: str) -> list[torch.Tensor]:
        base = torch.arange(6.0).reshape(1, 2, 3).to(device) + 0
        view = base[0]
        base.squeeze_(0).transpose_(0, 1).unsqueeze_(1)
        base.mul_(2)
        other = torch.ones(2, 3, device=device).t_()
        return [base, view, other, other + 1, torch.quantile(view, 0.3)]

    for result, expected in zip(run("remote"), run("cpu"), strict=True):
        assert (result.shape, result.stride()) == (expected.shape, expected.stride())
        assert torch.equal(result.cpu(), expected)


def test_windows_of_one_element_or_none_come_back(remote: Remote) -> None:
    x = torch.arange(12.0, device="remote").view(3, 4)
    assert x.t()[2:3, 1:2].tolist() == [[6]]
    assert x[:, 1:2][1].tolist() == [5]
    assert x[3:, 2:].tolist() == []
    assert (x[3:, 2:] + 1).shape == (0, 2)
    assert torch.as_strided(x, (1,), (2,), 5).cpu().item() == 5


def test_equal_calls_are_recorded_once_and_come_apart_when_one_is_written(remote: Remote) -> None:
    x = torch.arange(4.0, device="remote")
    a, b = x * 2, x * 2
    assert remote.device.counts.equal == 1
    view = b[1:]
    a.add_(1)
    view.mul_(10)
    assert (a.tolist(), b.tolist()) == ([1, 3, 5, 7], [0, 20, 40, 60])
    x.add_(1)
    assert (x * 2).tolist() == [2, 4, 6, 8]
    assert remote.device.counts.equal == 1


def test_numbers_that_are_equal_to_python_are_not_equal_calls(remote: Remote) -> None:
    x = torch.arange(3, device="remote")
    assert ((x + 1).dtype, (x + 1.0).dtype, (x + True).dtype) == (torch.int64, torch.float32, torch.int64)
    assert remote.device.counts.equal == 0


def test_draws_and_writes_are_never_equal_calls(remote: Remote) -> None:
    x = torch.full((8,), 0.5, device="remote")
    assert not torch.equal(torch.bernoulli(x.repeat(8)), torch.bernoulli(x.repeat(8)))
    y = torch.zeros(2, device="remote")
    y.add_(1)
    y.add_(1)
    assert y.tolist() == [2, 2]


def test_uploads_of_equal_bytes_travel_once_and_are_tensors_of_their_own(remote: Remote) -> None:
    tensor = torch.randn(1000)
    a, b = tensor.to("remote"), tensor.clone().to("remote")
    a.zero_()
    assert torch.equal(b.cpu(), tensor)
    assert not a.any()
    assert (remote.device.counts.uploaded, remote.device.counts.reused) == (4000, 4000)


def test_what_was_written_is_no_longer_what_an_equal_call_or_upload_makes(remote: Remote) -> None:
    tensor = torch.tensor([1.0, 2.0])
    x = tensor.to("remote")
    doubled = x * 2
    doubled.add_(1)
    assert (x * 2).tolist() == [2, 4]
    x.zero_()
    assert tensor.to("remote").tolist() == [1, 2]
    assert (doubled.tolist(), x.tolist()) == ([3, 5], [0, 0])
    assert (remote.device.counts.equal, remote.device.counts.reused) == (0, 0)
