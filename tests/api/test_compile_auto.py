"""``tmmu.compile(fuse="auto")``: plain until its kernels are compiled, which no run and no plan waits for."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import tmmu
from tests.api.test_compile_budget import Long
from tests.compiler import needs_compiler
from tmmu.fusion import fused_kernels, kernel_forms, kernel_library
from tmmu.fusion.background import kernel_order
from tmmu.fusion.background.kernel_order import RUNS_BEFORE_COMPILE, KernelOrder
from tmmu.fusion.call_form import KernelForm
from tmmu.fusion.fused_kernels import Toolchain
from tmmu.fusion.kernel_library import LibraryCounts
from tmmu.runtime.steps.fused_trial import is_near


class Waves(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(x * 2) + torch.sigmoid(x) * 3


X = torch.linspace(-2, 2, 64).reshape(8, 8)


class StandIn:
    """A toolchain whose library is there when it is said to be, and whose kernels are members; and what was ordered."""

    def __init__(self) -> None:
        self.is_there = False
        self.required = 0
        self.orders: list[KernelOrder] = []

    def require(self, folder: Path) -> None:
        self.required += 1

    def toolchain(self) -> Toolchain:
        counts = LibraryCounts(generated=0, compiled=False, refused={})
        return Toolchain(
            require=self.require, load=lambda *_: ({}, counts), is_compiled=lambda groups, folder: self.is_there
        )


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> StandIn:
    known = StandIn()
    form = KernelForm(pointers=(), scratch=())
    monkeypatch.setattr(kernel_forms.KernelForms, "form_of", lambda self, group: form)
    monkeypatch.setattr(fused_kernels, "TOOLCHAINS", {"cpu": known.toolchain()})
    monkeypatch.setattr(kernel_order, "compile_beside", known.orders.append)
    return known


def digest(compiled: Any) -> bytes:
    found: bytes = compiled.plan.plan.digest
    return found


def test_the_plan_stays_and_the_next_one_is_fused(stand_in: StandIn) -> None:
    model = Waves().eval()
    plain, fused = tmmu.compile(model, X), tmmu.compile(model, X, fuse=True)
    assert digest(plain) != digest(fused)
    required = stand_in.required
    auto = tmmu.compile(model, X, fuse="auto")
    assert digest(auto) == digest(plain)
    assert stand_in.required == required, "no compiler is asked for"
    for _ in range(RUNS_BEFORE_COMPILE - 1):
        assert torch.equal(auto(X), model(X))
    assert not stand_in.orders
    for _ in range(2):
        assert torch.equal(auto(X), model(X))
    (order,) = stand_in.orders
    assert order.threads == torch.get_num_threads()
    assert {group.name for group in order.groups} == set(order.forms)
    stand_in.is_there = True
    assert torch.equal(auto(X), model(X))
    assert digest(auto) == digest(plain)
    after = tmmu.compile(model, X, fuse="auto")
    assert digest(after) == digest(fused)
    for _ in range(RUNS_BEFORE_COMPILE):
        after(X)
    assert len(stand_in.orders) == 1, "nothing is left to compile"


def test_calls_that_are_refused_are_no_runs(stand_in: StandIn) -> None:
    auto = tmmu.compile(Waves().eval(), X, fuse="auto")
    for _ in range(RUNS_BEFORE_COMPILE):
        with pytest.raises(tmmu.TmmuError):
            auto(X.double())
    assert not stand_in.orders


@pytest.mark.slow
def test_what_fits_a_budget_is_planned_plain_and_fused_later(stand_in: StandIn) -> None:
    model, x = Long().eval(), torch.linspace(-1, 1, 256 * 64).reshape(256, 64)
    whole = tmmu.compile(model, x).plan
    options: dict[str, Any] = {"budget": whole.total - whole.stack * 2 // 5, "reserve": 0}
    plain = tmmu.compile(model, x, **options)
    auto = tmmu.compile(model, x, fuse="auto", **options)
    assert digest(auto) == digest(plain)
    for _ in range(RUNS_BEFORE_COMPILE):
        assert torch.equal(auto(x), model(x))
    assert len(stand_in.orders) == 1
    stand_in.is_there = True
    assert digest(tmmu.compile(model, x, fuse="auto", **options)) == digest(
        tmmu.compile(model, x, fuse=True, **options)
    )


def test_a_model_without_regions_orders_nothing(stand_in: StandIn) -> None:
    model, x = nn.Linear(4, 4).eval(), torch.ones(2, 4)
    auto = tmmu.compile(model, x, fuse="auto")
    for _ in range(RUNS_BEFORE_COMPILE):
        assert torch.equal(auto(x), model(x))
    assert not stand_in.orders


def test_an_empty_folder_asks_for_no_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[None] = []

    def no_compiler() -> str:
        asked.append(None)
        raise kernel_library.NoCompiler("none")

    monkeypatch.setattr(kernel_library, "machine_text", no_compiler)
    monkeypatch.setattr(kernel_library, "_operator_library", [])
    assert not kernel_library.is_compiled([], tmp_path)
    assert not asked
    (tmp_path / "operator_x.so").touch()
    assert not kernel_library.is_compiled([], tmp_path)
    assert asked


@needs_compiler
@pytest.mark.slow
def test_a_process_compiles_what_the_next_compile_runs() -> None:
    model = Waves().eval()
    plain = tmmu.compile(model, X)
    auto = tmmu.compile(model, X, fuse="auto")
    for _ in range(RUNS_BEFORE_COMPILE):
        assert torch.equal(auto(X), model(X))
    (thread,) = kernel_order.threads()
    thread.join()
    assert digest(auto) == digest(plain)
    after = tmmu.compile(model, X, fuse="auto")
    assert after._request.kernels
    assert digest(after) == digest(tmmu.compile(model, X, fuse=True)) != digest(plain)
    assert is_near(after(X), model(X))
