"""Training steps as users write them, run inside their plan: two steps with eager's bits, and all that persists."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.eager.loops import HEAD, LOOPS, loop_text
from tests.runtime.harness import TOKEN
from tests.runtime.scripts import SCRIPTS
from tmmu.driver import PlanRequest
from tmmu.errors import CaptureFailed, UnsupportedOp
from tmmu.ir.program import RepeatedStep
from tmmu.model_run import RunRequest, run_model
from tmmu.passes.capture.eager_step import EagerStep
from tmmu.passes.capture.request import CaptureRequest, no_progress
from tmmu.passes.lowering import repeat_step as repeat
from tmmu.planner.arenas import default_arenas
from tmmu.runtime.compare import step_run
from tmmu.runtime.compare.bench import CALLS, EAGER, PLANNED
from tmmu.runtime.compare.eager import Row
from tmmu.runtime.compare.run import RunReport

KEYS = ("optimizer.step.", "optimizer.exp_avg.", "optimizer.exp_avg_sq.")
TRAIN = "    F.cross_entropy(model(batch[0]), batch[1]).backward()\n"
SGD = "opt = torch.optim.SGD(model.parameters(), lr=0.1)\n"


def run(folder: Path, text: str, *, seed: int = 3, check: bool = True, **settings: bool) -> RunReport:
    (folder / "train.py").write_text(text)
    request = CaptureRequest(model=f"{folder / 'train.py'}:step", mode="step", device="cpu")
    plan = PlanRequest(mode="backward", preset="train_full", token=TOKEN, arenas=default_arenas())
    options = RunRequest(seed=seed, weights=None, check=check, **settings)
    return run_model(request, plan, options, no_progress)[1]


def require_eager_bits(report: RunReport) -> None:
    assert report.runs == 2
    assert report.checked == report.same > 0
    assert report.near == 0


QUICK = ("default adamw and a schedule",)
"""Of the loops, those that the default tests run; the command line's run others."""


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in LOOPS]
)
def test_two_steps_have_eagers_bits(tmp_path: Path, name: str) -> None:
    report = run(tmp_path, loop_text(name))
    require_eager_bits(report)
    # Rate, last rate, epoch and count of a schedule, or a count of the user's, in each of two steps.
    assert report.numbers == {"default adamw and a schedule": 8, "in a class": 2}.get(name, 0)
    torch.compiler.reset()


STEPS = {
    "dropout": HEAD.replace("nn.GELU()", "nn.Dropout(0.5)")
    + SGD
    + "def step(batch):\n    opt.zero_grad()\n"
    + TRAIN
    + "    opt.step()\n",
    "a generator of its own": HEAD
    + "gen = torch.Generator().manual_seed(3)\n"
    + "def step(batch):\n    return model(batch[0] + torch.randn(16, 32, generator=gen))\n",
    "a hidden state that is replaced": HEAD
    + """
cell = nn.GRUCell(32, 64)
opt = torch.optim.Adam([*cell.parameters(), *model.parameters()])
state = {"h": torch.zeros(16, 64)}
def step(batch):
    opt.zero_grad()
    h = cell(batch[0], state["h"].detach())
    F.cross_entropy(model[2](h), batch[1]).backward()
    opt.step()
    state["h"] = h
""",
    "a sum that begins at zero each time": HEAD
    + SGD
    + """
running = {"loss": 0.0, "steps": 0}
def step(batch):
    opt.zero_grad()
    total = torch.tensor(0.0)
    for x, y in zip(batch[0].chunk(2), batch[1].chunk(2)):
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        total += loss.detach()
    opt.step()
    running["loss"] += total.item()
    running["steps"] += 1
    return total
""",
    "a tensor made of another number each time": HEAD
    + "count = [0]\ndef step(batch):\n    count[0] += 1\n    rate = torch.tensor(0.1 / count[0])\n"
    + TRAIN
    + "    with torch.no_grad():\n        for p in model.parameters():\n"
    + "            p.sub_(rate * p.grad)\n            p.grad = None\n",
    "statistics of a batch": HEAD.replace("nn.GELU()", "nn.BatchNorm1d(64)") + "def step(batch):\n" + TRAIN,
    "two tensors that change places": HEAD
    + """
a, b = torch.zeros(10), torch.ones(10)
pair = [a, b]
def step(batch):
    with torch.no_grad():
        pair[0].mul_(0.9).add_(model(batch[0]).sum(0))
        pair[1].add_(pair[0])
    pair[0], pair[1] = pair[1], pair[0]
""",
    "torch's own average, a rate in a tensor": HEAD
    + """
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
opt = torch.optim.AdamW(model.parameters(), lr=torch.tensor(1e-3))
ema = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
def step(batch):
    opt.zero_grad()
"""
    + TRAIN
    + "    opt.step()\n    ema.update_parameters(model)\n",
    "what a hook keeps": HEAD
    + "seen = {}\nmodel[1].register_forward_hook(lambda m, i, o: seen.update(mean=o.detach().mean()))\n"
    + "def step(batch):\n"
    + TRAIN
    + "    return seen\n",
    "updates inside the backward pass": HEAD
    + """
opts = {p: torch.optim.SGD([p], lr=0.1, momentum=0.9) for p in model.parameters()}
def update(p):
    opts[p].step()
    opts[p].zero_grad()
for p in model.parameters():
    p.register_post_accumulate_grad_hook(update)
def step(batch):
"""
    + TRAIN,
    "weights in short floats and their master copies": HEAD
    + """
model = model.to(torch.bfloat16)
master = [p.detach().float() for p in model.parameters()]
opt = torch.optim.AdamW(master)
def step(batch):
    F.cross_entropy(model(batch[0].bfloat16()).float(), batch[1]).backward()
    for m, p in zip(master, model.parameters()):
        m.grad, p.grad = p.grad.float(), None
    opt.step()
    with torch.no_grad():
        for m, p in zip(master, model.parameters()):
            p.copy_(m)
""",
    "a gradient of the batch": HEAD
    + SGD
    + """
def step(batch):
    opt.zero_grad(set_to_none=False)
    x = batch[0].requires_grad_()
    loss = F.cross_entropy(model(x), batch[1])
    (g,) = torch.autograd.grad(loss, x, create_graph=True)
    (loss + g.pow(2).sum()).backward()
    opt.step()
""",
    "an optimizer of the user's with a count": HEAD
    + """
class Signs(torch.optim.Optimizer):
    def __init__(self, params, lr=1e-3):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                if not state:
                    state["mean"], state["count"] = torch.zeros_like(p), 0
                state["count"] += 1
                p.add_((state["mean"] * 0.9 + p.grad * 0.1).sign(), alpha=-group["lr"] / state["count"])
                state["mean"].lerp_(p.grad, 0.01)
opt = Signs(model.parameters())
def step(batch):
    opt.zero_grad()
"""
    + TRAIN
    + "    opt.step()\n",
    "a list that grows": HEAD
    + "kept = []\ndef step(batch):\n    with torch.no_grad():\n        kept.append(model(batch[0]))\n",
    "no batch": HEAD + "x = torch.randn(16, 32)\ndef step():\n    model(x).sum().backward()\n",
}


@pytest.mark.slow
@pytest.mark.parametrize("name", list(STEPS))
def test_what_steps_keep_has_eagers_bits(tmp_path: Path, name: str) -> None:
    require_eager_bits(run(tmp_path, STEPS[name]))


@pytest.mark.slow
@pytest.mark.parametrize("name", list(SCRIPTS))
def test_whole_script_has_eagers_bits(tmp_path: Path, name: str) -> None:
    require_eager_bits(run(tmp_path, SCRIPTS[name]))


def labels(monkeypatch: pytest.MonkeyPatch, folder: Path, text: str) -> set[str]:
    """What is compared after the second step and after the third."""
    compared: list[str] = []
    original = step_run.count_same

    def count(rows: list[Row], origin: str) -> tuple[int, int]:
        compared.extend(label for label, _, _ in rows)
        return original(rows, origin)

    monkeypatch.setattr(step_run, "count_same", count)
    report = run(folder, text)
    require_eager_bits(report)
    assert len(compared) == report.same
    return set(compared)


def test_all_that_a_loop_with_a_scaler_keeps_is_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    weights = [f"{layer}.{part}" for layer in (0, 2) for part in ("weight", "bias")]
    names = [f"{kind}{path}" for kind in ("", "grad.", *KEYS) for path in weights]
    names += ["scaler._scale", "scaler._growth_tracker"]
    compared = labels(monkeypatch, tmp_path, loop_text("mixed precision with a scaler"))
    assert compared == {f"state {name} after step {step}" for name in names for step in (2, 3)}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("loop", "name"),
    [
        ("average of weights", "state ema.0.weight"),
        ("optimizer by hand", "state moments.3"),
        ("last logits kept", "state seen.logits"),
        ("accumulation and clipping", "output"),
        ("two optimizers", "state optimizer.square_avg.critic.0.weight"),
        ("low-rank adapters on a frozen base", "state 0.base.weight"),
        ("in a class", "output loss"),
    ],
)
def test_what_a_loop_keeps_is_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, loop: str, name: str) -> None:
    compared = labels(monkeypatch, tmp_path, loop_text(loop))
    assert {f"{name} after step 2", f"{name} after step 3"} <= compared


def test_change_of_one_tensor_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The step itself is disturbed by hand after its second run."""
    ran: list[int] = []
    original = EagerStep.run

    def disturbed(step: EagerStep, inputs: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        results = original(step, inputs)
        ran.append(1)
        if len(ran) == 2:
            step.reach().tensors["ema.2.bias"].view(-1)[0] += 1
        return results

    monkeypatch.setattr(EagerStep, "run", disturbed)
    with pytest.raises(CaptureFailed, match=r"state ema\.2\.bias after step 2 is not what the step itself gives"):
        run(tmp_path, loop_text("average of weights"))


def test_numbers_of_the_second_step_are_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = repeat.repeat_step

    def stuck(*args: Any) -> RepeatedStep:
        repeated = original(*args)
        first, second = repeated.runs
        assert first.calls.keys() == second.calls.keys()
        assert first.calls
        return replace(repeated, runs=(first, replace(second, calls=first.calls)))

    monkeypatch.setattr(repeat, "repeat_step", stuck)
    with pytest.raises(
        CaptureFailed, match=r"CAPTURE_FAILED: state 0.weight after step 3 is not what the step itself gives"
    ):
        run(tmp_path, loop_text("default adamw and a schedule"))


@pytest.mark.slow
def test_bench_asks_the_allocator_less_often_than_the_step_itself(tmp_path: Path) -> None:
    """State that is replaced is carried in place; what is left is what operators allocate inside, and a loss."""
    report = run(tmp_path, loop_text("optimizer by hand"), check=False, bench=True)
    rows = {row.way: row for row in report.bench}
    assert list(rows) == [PLANNED, CALLS, EAGER]
    inside = sum(row.calls for row in report.unplanned)
    assert rows[PLANNED].allocations <= inside + 1 < rows[EAGER].allocations
    assert report.grown == 0


@pytest.mark.slow
def test_without_check_one_step_runs(tmp_path: Path) -> None:
    report = run(tmp_path, loop_text("foreach adamw"), check=False)
    assert (report.runs, report.checked, report.same) == (1, 0, 0)
    assert report.peak_bytes["data"] > 3 * 4 * (32 * 64 + 64 + 64 * 10 + 10)


@pytest.mark.slow
def test_sanitizer_finds_no_fault_in_a_step_that_replaces_its_state(tmp_path: Path) -> None:
    report = run(tmp_path, loop_text("optimizer by hand"), sanitize=True)
    assert report.sanitized > 100
    require_eager_bits(report)


@pytest.mark.slow
def test_sanitizer_draws_from_a_generator_of_the_steps_own_what_the_planned_op_draws(tmp_path: Path) -> None:
    report = run(tmp_path, STEPS["a generator of its own"], sanitize=True)
    assert report.sanitized > 10
    require_eager_bits(report)


@pytest.mark.slow
def test_seed_decides_weights_and_batches(tmp_path: Path) -> None:
    text = HEAD.replace("torch.manual_seed(0)\n", "") + "def step(batch):\n    return model(batch[0])\n"
    for seed in (1, 2):
        require_eager_bits(run(tmp_path, text, seed=seed))


def test_tensors_that_take_turns_are_refused(tmp_path: Path) -> None:
    text = HEAD + (
        "turns, count = [torch.zeros(10) for _ in range(3)], [0]\n"
        "def step(batch):\n"
        "    with torch.no_grad():\n"
        "        turns[count[0] % 3].add_(model(batch[0]).sum(0))\n"
        "    count[0] += 1\n"
    )
    with pytest.raises(UnsupportedOp, match=r"the step takes turns\.2 where it took turns\.1 the run before"):
        run(tmp_path, text)


@pytest.mark.slow
def test_tensor_to_which_no_name_leads_is_refused(tmp_path: Path) -> None:
    text = HEAD + (
        "def hidden():\n"
        "    total = torch.randn(10)\n"
        "    while True:\n"
        "        row = yield total\n"
        "        total = total + row\n"
        "sums = hidden()\n"
        "next(sums)\n"
        "def step(batch):\n"
        "    with torch.no_grad():\n"
        "        sums.send(model(batch[0]).sum(0))\n"
    )
    with pytest.raises(UnsupportedOp, match=r"the step reads constant_\d+, and the step itself, loaded again, has no"):
        run(tmp_path, text)


@pytest.mark.slow
def test_update_that_a_scaler_leaves_out_is_told(tmp_path: Path) -> None:
    text = loop_text("mixed precision with a scaler").replace('GradScaler("cpu")', 'GradScaler("cpu", 2.0**126)')
    with pytest.raises(CaptureFailed, match="the step itself updates 0 times, and the plan 1: a scaler leaves out"):
        run(tmp_path, text.replace("scaler.scale(loss)", "scaler.scale(loss * 1e4)"))


@pytest.mark.slow
def test_number_that_is_of_a_clock_is_named(tmp_path: Path) -> None:
    text = HEAD + "import time\nclock = {}\ndef step(batch):\n    clock['last'] = time.perf_counter()\n" + TRAIN
    with pytest.raises(
        CaptureFailed, match=r"CAPTURE_FAILED: clock.last after step 2 is [\d.]+, and [\d.]+ in the step itself"
    ):
        run(tmp_path, text)


@pytest.mark.slow
def test_tensor_that_only_the_step_itself_has_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = EagerStep.run

    def richer(step: EagerStep, inputs: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        results = original(step, inputs)
        step.reach().modules["model"].extra = torch.zeros(3)  # type: ignore[assignment]
        return results

    monkeypatch.setattr(EagerStep, "run", richer)
    with pytest.raises(CaptureFailed, match=r"CAPTURE_FAILED: after step 2 only the step itself has model\.extra"):
        run(tmp_path, loop_text("foreach adamw"))
