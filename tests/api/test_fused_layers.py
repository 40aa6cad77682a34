"""Layers that eager runs as one kernel in evaluation are traced in parts, and refused where bits are promised."""

from pathlib import Path

import pytest
import torch
from torch import nn

import tmmu


class Attending(nn.Module):
    def __init__(self, *, batch_first: bool) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(16, 2, batch_first=batch_first)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.attention(x, x, x, need_weights=False)[0]


FUSED = {
    "encoder layer": lambda: nn.TransformerEncoderLayer(16, 2, 32, batch_first=True),
    "encoder": lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), 2),
    "attention": lambda: Attending(batch_first=True),
}


@pytest.mark.parametrize("name", FUSED)
def test_kernel_that_is_traced_in_parts_is_refused_with_what_turns_it_off(name: str) -> None:
    model, x = FUSED[name]().eval(), torch.randn(2, 4, 16)
    with pytest.raises(tmmu.TmmuError, match="runs as one kernel in evaluation") as raised:
        tmmu.compile(model, x)
    assert raised.value.fix.startswith("torch.backends.mha.set_fastpath_enabled(False)")
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        compiled = tmmu.compile(model, x)
        with torch.no_grad():
            assert torch.equal(compiled(x), model(x))
    finally:
        torch.backends.mha.set_fastpath_enabled(True)


def test_layer_that_has_no_kernel_runs_in_its_plan() -> None:
    model, x = Attending(batch_first=False).eval(), torch.randn(2, 4, 16)
    compiled = tmmu.compile(model, x)
    with torch.no_grad():
        assert torch.equal(compiled(x), model(x))


@pytest.mark.parametrize("name", FUSED)
def test_plan_says_whose_parts_its_figure_is_of(name: str, tmp_path: Path) -> None:
    model, x = FUSED[name]().eval(), torch.randn(2, 4, 16)
    plan = tmmu.plan(model, x, device="cpu")
    kinds = plan.eager.in_parts  # a layer has attention in it, which it notes too
    assert kinds in (("MultiheadAttention",), ("TransformerEncoderLayer", "MultiheadAttention"))
    assert tmmu.load(plan.save(tmp_path / "net")).eager == plan.eager
    page = plan.report(tmp_path / "net.html").read_text()
    assert "traced in parts" in page
    assert ", ".join(kinds) in page
    measured = tmmu.measure(model, x, plan=plan)
    assert f"{', '.join(kinds)}: one kernel in the run, traced in parts" in measured.differences


def test_step_that_evaluates_a_frozen_layer_says_so_too() -> None:
    teacher, x = FUSED["encoder layer"]().eval(), torch.randn(2, 4, 16)
    student = nn.Linear(16, 16)

    def step(x: torch.Tensor) -> None:
        with torch.no_grad():
            target = teacher(x)
        nn.functional.mse_loss(student(x), target).backward()

    assert tmmu.plan(step, x, device="cpu").eager.in_parts[0] == "TransformerEncoderLayer"
    trained = tmmu.plan(lambda x: teacher(x).sum().backward(), x, device="cpu")
    assert trained.eager.in_parts == ()


def test_figure_is_exact_where_a_run_takes_the_parts() -> None:
    model, x = FUSED["encoder layer"]().eval(), torch.randn(2, 4, 16)
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        plan = tmmu.plan(model, x, device="cpu")
        assert plan.eager.in_parts == ()
        assert tmmu.measure(model, x, plan=plan).agrees
    finally:
        torch.backends.mha.set_fastpath_enabled(True)
