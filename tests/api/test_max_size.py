"""``tmmu.max_size``: the largest size of whatever makes plans, and arguments that make no sense."""

import copy
import gc
import pickle
import weakref
from typing import Any

import pytest
import torch
from torch import nn

import tmmu
from tmmu import MemoryPlan
from tmmu.errors import BudgetTooSmall, InvalidConfig


def plan_of(batch: int) -> MemoryPlan:
    model = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 64))
    return tmmu.plan(model, torch.empty(batch, 64, device="meta"), training=True, loss="sum", optimizer="sgd")


def test_largest_batch_is_the_last_that_fits_beside_the_reserve() -> None:
    found = tmmu.max_size(plan_of, "1MB", reserve="100kB")
    assert found.predicted
    assert found.sizes == (2, 3, found.size)
    assert found.plan.total == plan_of(found.size).total
    assert found.plan.fits("1MB", run="planned", reserve="100kB")
    assert not plan_of(found.size + 1).fits("1MB", run="planned", reserve="100kB")


def test_plan_s_own_arenas_are_those_of_predictions() -> None:
    def aligned(batch: int) -> MemoryPlan:
        model = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 64))
        return tmmu.plan(
            model,
            torch.empty(batch, 64, device="meta"),
            arenas=[f"{name}=alignment:4096" for name in ("activations", "gradients")],
        )

    found = tmmu.max_size(aligned, "1MB", reserve=0)
    assert found.predicted
    assert found.plan.total <= 1_000_000 < aligned(found.size + 1).total


def test_plans_of_inference_overwrite() -> None:
    model = nn.Sequential(*(nn.Sequential(nn.Linear(64, 64), nn.ReLU()) for _ in range(3)))
    found = tmmu.max_size(lambda batch: tmmu.plan(model, torch.empty(batch, 64, device="meta")), 500_000, reserve=0)
    assert found.predicted
    larger = tmmu.plan(model, torch.empty(found.size + 1, 64, device="meta"))
    assert found.plan.total <= 500_000 < larger.total


def test_where_nothing_fits_the_least_is_said() -> None:
    with pytest.raises(BudgetTooSmall, match="not even 1 fits"):
        tmmu.max_size(plan_of, "10kB", reserve=0)
    with pytest.raises(BudgetTooSmall, match="the reserve of 1\\.0 GiB is more than"):
        tmmu.max_size(plan_of, "10kB")


@pytest.mark.parametrize("starts", [(2,), (2, 2), (1, 2), [2, 3], ("2", 3), (2, 3, True), (2, 2**40)])
def test_starts_that_make_no_sense_are_refused(starts: Any) -> None:
    with pytest.raises(InvalidConfig, match=r"is no|are no"):
        tmmu.max_size(plan_of, "1MB", starts=starts)


def test_what_makes_no_plan_is_refused() -> None:
    with pytest.raises(InvalidConfig, match="is no plan"):
        tmmu.max_size(lambda _: 7, "1MB", reserve=0)  # type: ignore[arg-type, return-value]
    with pytest.raises(InvalidConfig, match="is not a size"):
        tmmu.max_size(plan_of, 1.5)  # type: ignore[arg-type]


class Recurrent(nn.Module):
    """Tokens in, logits out; a mask and targets beside them."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.layer, self.head = nn.Embedding(50, 16), nn.Linear(16, 16), nn.Linear(16, 50)

    def forward(self, tokens: torch.Tensor, mask: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        hidden = self.layer(self.embedding(tokens) * mask[..., None]) * scale
        scores = torch.softmax(hidden @ hidden.transpose(-1, -2), -1) @ hidden
        return self.head(scores)


def tokens(batch: int, seq: int) -> dict[str, torch.Tensor]:
    return {"tokens": torch.zeros(batch, seq, dtype=torch.long), "mask": torch.ones(batch, seq), "scale": torch.ones(1)}


@pytest.mark.parametrize("axis", ["batch", "seq"])
def test_plan_s_largest_batch_or_sequence_is_the_last_that_fits(axis: str) -> None:
    model = Recurrent()

    def plan_at(size: int) -> MemoryPlan:
        sizes = {"batch": 3, "seq": 12} | {axis: size}
        return tmmu.plan(model, tokens(**sizes), training=True, loss="sum", optimizer="sgd")

    own = 3 if axis == "batch" else 12
    found = plan_at(own).max_size(axis, "300kB", reserve="20kB")
    assert found.predicted
    assert found.sizes[0] == own
    assert found.plan.plan.digest == plan_at(found.size).plan.digest
    assert found.plan.fits("300kB", run="planned", reserve="20kB")
    assert not plan_at(found.size + 1).fits("300kB", run="planned", reserve="20kB")
    again = tmmu.max_size(plan_at, "300kB", reserve="20kB", starts=found.sizes[: len(found.sizes) - 1])
    assert (again.size, again.plan.plan.digest) == (found.size, found.plan.plan.digest)
    assert found.plan.max_size(axis, "300kB", reserve="20kB").size == found.size


def test_layout_of_inputs_stays_at_other_sizes() -> None:
    layer = nn.Conv2d(3, 4, 3)
    image = torch.zeros(4, 3, 8, 8).to(memory_format=torch.channels_last)

    def plan_at(batch: int) -> MemoryPlan:
        return tmmu.plan(layer, image.new_empty(batch, 3, 8, 8).to(memory_format=torch.channels_last))

    found = tmmu.plan(layer, image).max_size("batch", "100kB", reserve=0)
    assert found.plan.plan.ir_hash == plan_at(found.size).plan.ir_hash


def test_steps_and_inputs_of_any_size_are_planned_at_others() -> None:
    model = nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(rows: torch.Tensor) -> None:
        model(rows).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    plan = tmmu.plan(step, torch.zeros(4, 8))
    found = plan.max_size("batch", "100kB", reserve=0)
    assert found.plan.first_step is not None
    assert found.plan.fits("100kB", run="planned", reserve=0)
    assert plan.max_size("rows", "100kB", reserve=0, inputs=lambda rows: torch.zeros(rows, 8)).size == found.size


def test_what_does_not_grow_has_no_largest_size() -> None:
    model = nn.Linear(8, 8)
    plan = tmmu.plan(model, torch.zeros(4, 8))
    found = plan.max_size("rows", "1MB", reserve=0, inputs=lambda rows: torch.zeros(4, 8))
    assert found.size == 2**31
    assert found.plan.plan.digest == plan.plan.digest


def test_levers_reach_a_larger_size_and_say_their_time() -> None:
    plain, fitted = (tmmu.max_size(plan_of, "1MB", reserve="100kB", fit=fit) for fit in (False, True))
    assert fitted.size > plain.size
    assert fitted.extra_time_ppm > plain.extra_time_ppm == 0
    assert fitted.plan.plan.fit is not None
    assert fitted.plan.fits("1MB", run="planned", reserve="100kB")


def test_plan_keeps_no_module_and_no_bytes_alive() -> None:
    model, rows = nn.Linear(8, 8), torch.zeros(4, 8)
    alive = weakref.ref(model), weakref.ref(rows)
    plan = tmmu.plan(model, rows)
    del model, rows
    gc.collect()
    assert [reference() for reference in alive] == [None, None]
    with pytest.raises(InvalidConfig, match="is gone"):
        plan.max_size("batch", "1MB", reserve=0)
    with torch.device("meta"):
        assert tmmu.plan(nn.Linear(8, 8), torch.zeros(4, 8)).max_size("batch", "1MB", reserve=0).size > 4
    for copied in (pickle.loads(pickle.dumps(plan)), copy.deepcopy(plan)):
        assert copied == plan
        with pytest.raises(InvalidConfig, match="does not know its model"):
            copied.max_size("batch", "1MB", reserve=0)


@pytest.mark.parametrize(
    ("inputs", "axis", "message"),
    [
        ((torch.zeros(4, 8), torch.zeros(5)), "batch", "dimension 0 of the inputs is no one batch, but of 4 and 5"),
        (torch.zeros(8), "seq", "dimension 1 of the inputs is no one seq, but of none"),
        (torch.zeros(4, 8), "width", "inputs have no dimension 'width'"),
        ((torch.zeros(4, 8), object()), "batch", "a object in the inputs is not made anew"),
        (torch.zeros(4, 8), "a b", "is no name of a size"),
    ],
)
def test_inputs_without_that_size_are_refused(inputs: Any, axis: str, message: str) -> None:
    class First(nn.Module):
        def forward(self, first: torch.Tensor, *_: object) -> torch.Tensor:
            return first * 2

    with pytest.raises(InvalidConfig, match=message):
        tmmu.plan(First(), inputs).max_size(axis, "1MB", reserve=0)
