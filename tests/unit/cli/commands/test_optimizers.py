"""``tmmu run`` of training steps has the bits of the model's own steps, for every class of ``torch.optim``."""

import re

import pytest

from tests.unit.cli.graphs import Shell
from tests.unit.passes.capture.test_optimizers import COMPLEX, REFUSED, SQUARE
from tests.unit.passes.capture.test_training import LOSS
from tmmu.passes.capture.training.optimizers import optimizer_classes

SCRIPT = """
import torch
linear = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(linear.parameters(), lr=0.1, momentum=0.9)
schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
log = []
class Step(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = linear
    @torch.enable_grad()
    def forward(self, x):
        optimizer.zero_grad()
        for _ in range({rounds}):
            loss = self.linear(x).square().mean()
            loss.backward()
        {use}
        optimizer.step()
        schedule.step()
        return loss.detach()
model = Step
inputs = lambda: (torch.ones(2, 4),)
"""
USES = {
    "plain": "pass",
    "clipped": "torch.nn.utils.clip_grad_norm_(self.linear.parameters(), 1.0)",
    "stored": "log.append(loss.item())",
    "formatted": "log.append(f'{loss.item():.3f}')",
    "scaled by a number": """with torch.no_grad():
            total = sum(p.grad.norm().item() ** 2 for p in self.linear.parameters()) ** 0.5
            for p in self.linear.parameters():
                p.grad.mul_(min(1.0, 0.01 / (total + 1e-6)))
        log.append(total)""",
}
FORMS = (
    "adamw:fused", "adamw:foreach", "adam:amsgrad=true,foreach", "sgd:momentum=0.9,nesterov=true",
    "sgd:fused,momentum=0.9", "nadam:foreach", "rprop:foreach", "radam:foreach,decoupled_weight_decay=true",
    "adam:amsgrad=true,fused,maximize=true,weight_decay=0.1", "adagrad:fused,lr_decay=0.1",
)  # fmt: skip
SLOW_FORMS = (
    "adam:lr=tensor(0.1)", "adamw:fused,lr=tensor(1e-2)", "sgd:lr=tensor(.1),momentum=0.9", "nadam:lr=tensor(0.1)",
    "adagrad:lr=tensor(.1)", "rmsprop:centered=true,momentum=0.9", "sgd:maximize=true,foreach,weight_decay=0.1",
    "adafactor:foreach", "adafactor:lr=0.1,weight_decay=0",
    "muon:ns_steps=3", "adadelta:foreach,maximize=true", "adamax:foreach,weight_decay=0.1", "asgd:foreach",
)  # fmt: skip
REFUSALS = {
    "lbfgs": ("INVALID_CONFIG", "how often a step of it evaluates the model"),
    "sparseadam": ("CAPTURE_FAILED", "torch/optim/sparse_adam.py:"),
    "adam:capturable=true": ("CAPTURE_FAILED", "torch/optim/adam.py:"),
    "adam:differentiable=true": ("CAPTURE_FAILED", "torch/optim/adam.py:"),
    "adam:foreach,lr=tensor(0.1)": ("INVALID_CONFIG", "lr as a Tensor is not supported"),
    "adam:lr=tensor(-1)": ("INVALID_CONFIG", "Invalid learning rate"),
    "adam:betas=3": ("INVALID_CONFIG", "not subscriptable"),
}
SPARSE = """
import torch
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.table = torch.nn.Embedding(10, 4, sparse=True)
    def forward(self, x):
        return self.table(x)
model = Net
inputs = lambda: (torch.tensor([1, 2, 3]),)
"""


@pytest.mark.parametrize(
    "text", [*sorted(optimizer_classes()), *FORMS, *(pytest.param(t, marks=pytest.mark.slow) for t in SLOW_FORMS)]
)
def test_updates_have_the_bits_of_the_optimizer_or_are_refused(shell: Shell, text: str) -> None:
    (shell.folder / "net.py").write_text(SQUARE + LOSS)
    ran = shell.tmmu("run", "net.py", "--mode", "backward", "--optimizer", text, "--check", "--json")
    if text in REFUSED:
        assert ran.code == 2, ran.err
        return
    assert ran.code == 0, ran.err
    assert ran.record["same"] == ran.record["checked"] > 1


@pytest.mark.parametrize("text", REFUSALS)
def test_refusals_have_a_code_a_reason_and_a_line(shell: Shell, text: str) -> None:
    (shell.folder / "net.py").write_text(SQUARE + LOSS)
    ran = shell.tmmu("plan", "net.py", "--mode", "backward", "--optimizer", text)
    code, reason = REFUSALS[text]
    assert ran.code == 2
    assert f"{code}: " in ran.err
    assert reason in ran.err
    assert len(ran.err.strip().splitlines()) == 1


def test_sparse_gradients_are_refused_with_the_line_that_makes_them(shell: Shell) -> None:
    (shell.folder / "net.py").write_text(SPARSE + LOSS)
    ran = shell.tmmu("plan", "net.py", "--mode", "backward", "--optimizer", "sparseadam")
    assert ran.code == 2
    assert "UNSUPPORTED_OP: net.py:8: " in ran.err
    assert "sparse=False" in ran.err


@pytest.mark.parametrize("form", ["adam:lr={}", "adamw:foreach,lr={}", "sgd:lr={},momentum=0.9", "adamw:fused,lr={}"])
def test_no_byte_of_a_plan_depends_on_the_learning_rate(shell: Shell, form: str) -> None:
    (shell.folder / "net.py").write_text(SQUARE + LOSS)
    plans = []
    for number in ("0.1", "0.025"):
        options = ("--mode", "backward", "--optimizer", form.format(number), "-o", f"{number}.plan.cbor")
        ran = shell.tmmu("plan", "net.py", *options)
        assert ran.code == 0, ran.err
        plans.append((shell.folder / f"{number}.plan.cbor").read_bytes())
    assert plans[0] == plans[1]


@pytest.mark.parametrize("name", USES)
def test_scripts_that_accumulate_clip_schedule_and_log_have_the_bits_of_eager(shell: Shell, name: str) -> None:
    (shell.folder / "net.py").write_text(SCRIPT.format(rounds=2, use=USES[name]))
    ran = shell.tmmu("run", "net.py", "--check", "--json")
    assert ran.code == 0, ran.err
    assert ran.record["same"] == ran.record["checked"] > 1


NUMBERS = """
import torch
class Net(torch.nn.Module):
    def forward(self, x):
        number = (x.abs() + 4).min().item()
        return {use}
model = Net
inputs = lambda: (torch.rand(2, 4),)
"""


@pytest.mark.parametrize("sanitize", [(), ("--sanitize",)])
@pytest.mark.parametrize(
    ("use", "says"),
    [("torch.add(x, x, alpha=1 / (number - number))", "division by zero"), ("x * 1e99 ** number", "out of range"),
     ("x * (-number) ** 0.5", "complex")],
)  # fmt: skip
def test_number_that_python_does_not_compute_is_one_line_with_its_op(
    shell: Shell, use: str, says: str, sanitize: tuple[str, ...]
) -> None:
    (shell.folder / "net.py").write_text(NUMBERS.format(use=use))
    ran = shell.tmmu("run", "net.py", *sanitize)
    assert ran.code == 2, ran.err
    assert re.search(rf"INVALID_CONFIG: op 3 aten\.(add|mul)\.Tensor \(net\.py:6\): .*{says}", ran.err)
    assert len(ran.err.strip().splitlines()) == 1


def test_number_that_zeros_would_not_have_is_that_of_the_inputs(shell: Shell) -> None:
    (shell.folder / "net.py").write_text(NUMBERS.format(use="x * (x.abs().max().item() - 0.01) ** 0.5"))
    ran = shell.tmmu("run", "net.py", "--check", "--json")
    assert ran.code == 0, ran.err
    assert ran.record["same"] == ran.record["checked"] == 1


SCALED = """
import torch
linear = torch.nn.Linear(4, 4)
optimizer = torch.optim.{optimizer}(linear.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, enabled={enabled})
class Step(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = linear
    @torch.enable_grad()
    def forward(self, x):
        optimizer.zero_grad()
        scaler.scale(self.linear(x).square().mean()).backward()
        scaler.unscale_(optimizer)
        norm = torch.nn.utils.clip_grad_norm_(self.linear.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        return norm.detach()
model = Step
inputs = lambda: (torch.ones(2, 4),)
"""


@pytest.mark.parametrize("optimizer", ["SGD", "AdamW"])
@pytest.mark.parametrize("enabled", [True, False])
def test_scaler_takes_the_step_without_overflow_and_the_report_says_so(
    shell: Shell, optimizer: str, enabled: bool
) -> None:
    (shell.folder / "net.py").write_text(SCALED.format(optimizer=optimizer, enabled=enabled))
    ran = shell.tmmu("run", "net.py", "--check", "--json")
    assert ran.code == 0, ran.err
    assert (ran.record["same"], ran.record["near"]) == (3, 0)  # the norm, weight and bias
    assert ran.record["scaled_updates"] == enabled
    text = shell.tmmu("plan", "net.py", "--device", "cpu").out
    assert ("planned for a step without overflow" in text) == enabled
    assert shell.tmmu("plan", "net.py", "--device", "cpu", "--json").record["scaled_updates"] == enabled


def test_complex_parameters_have_the_bits_of_the_optimizer(shell: Shell) -> None:
    (shell.folder / "net.py").write_text(COMPLEX + LOSS)
    ran = shell.tmmu("run", "net.py", "--mode", "backward", "--optimizer", "adamw", "--check", "--json")
    assert ran.code == 0, ran.err
    assert ran.record["same"] == ran.record["checked"] > 1


@pytest.mark.slow
def test_plan_is_compared_with_the_optimizer_that_it_was_made_with(shell: Shell) -> None:
    (shell.folder / "net.py").write_text(SQUARE + LOSS)
    assert shell.tmmu("plan", "net.py", "--mode", "backward", "--optimizer", "adam:amsgrad=true,foreach").code == 0
    compared = shell.tmmu("diff", "net.plan.cbor", "net.py", "--json")
    assert compared.code == 0, compared.err


@pytest.mark.parametrize("form", ["adafactor", "adafactor:foreach"])
def test_numbers_of_parameters_are_read_in_a_fitted_step_too(shell: Shell, form: str) -> None:
    (shell.folder / "net.py").write_text(SQUARE + LOSS)
    options = ("--mode", "backward", "--optimizer", form, "--device", "cpu")
    least = shell.tmmu("fit", "net.py", *options, "--step", "1", "--json").record["fields"]["least_bytes"]
    fitted = shell.tmmu("fit", "net.py", *options, "--step", str(least), "--json")
    assert fitted.record["stack_bytes"] == least < fitted.record["base_stack_bytes"]
    ran = shell.tmmu("run", "net.py", *options, "--plan", "net.fit.plan.cbor", "--check", "--json")
    assert ran.code == 0, ran.err
    assert ran.record["same"] == ran.record["checked"] > 1
