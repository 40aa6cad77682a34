"""``tmmu.measure``: what torch's allocator did in real runs is what the plans say, call by call; nothing is changed."""

import gc
import importlib.util
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import tmmu
from tests.api.test_plan import Training, X, batch, net
from tests.eager.loops import LOOPS, loop_text
from tests.eager.models import BODIES, model_text
from tmmu.errors import CaptureFailed, InvalidConfig

QUICK = ("accumulation and clipping", "checkpointing")
KEEPS = ("list across calls", "attributes")
"""Models that hold more after their first call: its plan is of that one."""


def loaded(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location("measured", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(autouse=True)
def _dynamo_of_its_own() -> Iterator[None]:
    yield
    torch.compiler.reset()


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in LOOPS]
)
def test_training_loop_takes_what_its_plan_says_call_by_call(tmp_path: Path, name: str) -> None:
    (tmp_path / "train.py").write_text(loop_text(name))
    file = loaded(tmp_path / "train.py")
    found = tmmu.measure(file.step, file.inputs())
    assert [call.difference for call in found.calls] == [0] * found.eager_calls
    assert found.agrees, found.differences
    assert max(call.measured - call.beside for call in found.calls) == found.eager_peak
    assert max(call.beside for call in found.calls) <= (2 * 5056 if name == "checkpointing" else 8)


def bodies() -> list[Any]:
    """Each body with each choice of options: one of them is slow, another for each body in turn; the others long."""
    choices: list[dict[str, Any]] = [{}, {"loss": "sum"}, {"loss": "sum", "optimizer": "adamw"}]
    return [
        pytest.param(
            name, options, id=f"{name}-{'-'.join(options) or 'inference'}",
            marks=pytest.mark.slow if row % len(choices) == choice else pytest.mark.long,
        )
        for row, name in enumerate(BODIES)
        for choice, options in enumerate(choices)
    ]  # fmt: skip


@pytest.mark.parametrize(("name", "options"), bodies())
def test_model_takes_what_its_plan_says_call_by_call(tmp_path: Path, name: str, options: dict[str, Any]) -> None:
    (tmp_path / "net.py").write_text(model_text(name))
    file = loaded(tmp_path / "net.py")
    found = tmmu.measure(file.model, file.inputs(), **options)
    assert found.agrees == (name not in KEEPS or "optimizer" not in options), found.differences


def test_inference_of_a_module_with_its_lines() -> None:
    found = tmmu.measure(net(), X)
    assert [call.name for call in found.calls if "addmm" in call.name] == ["aten.addmm.default"] * 2
    assert (found.agrees, found.differences) == (True, ())
    assert found.measured_peak == found.eager_peak == 2 * 4 * 16 * 64
    assert found.planned_peak == tmmu.plan(net(), X, device="cpu").stack
    assert found.before >= 4 * 16 * 32


def test_plan_from_a_file_will_do(tmp_path: Path) -> None:
    path = tmmu.plan(net(), X, device="cpu").save(tmp_path / "net")
    assert tmmu.measure(net(), X, plan=tmmu.load(path)).agrees


def test_nothing_of_the_callers_changes_and_generators_go_on() -> None:
    training = Training()
    training.step(batch())
    before, logits = training.fingerprint(), training.model(X)
    found = tmmu.measure(training.step, batch())
    assert found.agrees
    assert training.fingerprint() == before
    assert torch.equal(training.model(X), logits)


def test_step_that_fails_changes_nothing_and_ends_the_profiler() -> None:
    training = Training()
    before = training.fingerprint()
    plan = tmmu.plan(training.step, batch(), device="cpu")

    def step(both: Any) -> None:
        training.step(both)
        raise RuntimeError("after an update")

    with pytest.raises(CaptureFailed, match="after an update"):
        tmmu.measure(step, batch(), plan=plan)
    assert training.fingerprint() == before
    assert tmmu.measure(net(), X).agrees


class Held(nn.Module):
    """A chain whose first result a name holds, or not."""

    def __init__(self, *, holds: bool) -> None:
        super().__init__()
        self.holds = holds

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x + x
        z = y * y
        y = y if self.holds else z
        return z.exp().sqrt()


def test_other_lifetimes_than_the_plans_are_named() -> None:
    wrong = tmmu.plan(Held(holds=True), X, device="cpu")
    found = tmmu.measure(Held(holds=False), X, plan=wrong)
    assert not found.agrees
    assert [call.difference for call in found.calls] == [0, 0, -2048, -2048]
    assert found.differences[0].startswith("2 of 4 calls differ, first aten.exp.default at test_measure.py:")
    assert found.differences[1] == "the peak is -2048 bytes from eager's figure"
    assert repr(found).startswith(
        "<MeasuredRun differs from the plan in 2 of 4 calls on cpu: 6.0 KiB measured, 8.0 KiB by"
    )


def test_calls_that_the_trace_lacks_are_named() -> None:
    plan = tmmu.plan(Held(holds=True), X, device="cpu")
    found = tmmu.measure(nn.Sequential(Held(holds=True), nn.Softmax(-1), nn.Tanh()), X, plan=plan)
    assert not found.agrees
    assert "the run makes 6 calls, and the trace 4" in found.differences


def test_temporaries_of_kernels_are_inside_and_not_in_the_figure() -> None:
    module = nn.Linear(32, 8)
    with torch.autocast("cpu"):
        pass
    found = tmmu.measure(module, X, autocast="bf16")
    assert found.agrees
    assert found.inside_peak >= found.measured_peak


def test_plain_values_and_pages_say_the_same() -> None:
    found = tmmu.measure(net(), X)
    values = json.loads(json.dumps(found.to_dict()))
    assert values["agrees"] is True
    assert values["calls"][1]["measured"] == found.calls[1].measured
    assert values["calls"][1]["difference"] == 0
    assert "agrees with the plan in all 5 calls" in str(found)
    assert "in its one call on" in repr(replace(found, calls=found.calls[:1], eager_calls=1, eager_peak=0))
    assert "in its peak, and in no call" in repr(replace(found, eager_peak=1))
    calls = (replace(found.calls[0], name="<b>"),)
    page = replace(found, calls=calls)._repr_html_()
    assert "<td>&lt;b&gt;</td>" in page
    assert "<b>" not in page


def test_what_cannot_be_measured_is_refused_with_a_code() -> None:
    with torch.device("meta"):
        model, x = net(), torch.ones(16, 32)
    with pytest.raises(InvalidConfig, match="nothing runs on meta"):
        tmmu.measure(model, x)
    with pytest.raises(InvalidConfig, match=r"the plan is for cuda, and the model on cpu.*device=.cpu."):
        tmmu.measure(net(), X, plan=tmmu.plan(net(), X))
    with torch.autograd.profiler.profile(), pytest.raises(InvalidConfig, match="a profiler is running"):
        tmmu.measure(net(), X)
    with pytest.raises(InvalidConfig, match="are for a module"):
        tmmu.measure(lambda x: x, X, optimizer="adamw")
    gc.collect()


class Last(nn.Module):
    """The sequence of a recurrent layer."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x)[0]


KERNELS: dict[str, Any] = {
    "recurrent, batch first": lambda: (Last(nn.GRU(8, 4, batch_first=True)), torch.ones(2, 3, 8)),
    "bags": lambda: (nn.EmbeddingBag(20, 4, mode="mean"), torch.zeros(2, 3, dtype=torch.int64)),
    "batch norm": lambda: (nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)), torch.ones(2, 3, 5, 5)),
    "group norm": lambda: (nn.Sequential(nn.Conv2d(3, 4, 3), nn.GroupNorm(2, 4)), torch.ones(2, 3, 5, 5)),
}


@pytest.mark.parametrize("name", KERNELS)
def test_real_kernels_keep_what_the_plan_says(name: str) -> None:
    """Moves in place, tables with an element more, statistics in single precision."""
    model, x = KERNELS[name]()

    def step(x: torch.Tensor) -> None:
        model.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = model(x).float().square().mean()
        loss.backward()

    measured = tmmu.measure(step, x)
    assert measured.agrees, measured.differences
    assert len(measured.calls) == measured.eager_calls
