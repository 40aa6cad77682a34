"""``tmmu plan FILE.py:step``: a step of the user's own, with its optimizer and all."""

import pytest

from tests.eager.loops import HEAD, LOOPS, loop_text
from tests.unit.cli.graphs import Shell


def write(shell: Shell, text: str) -> str:
    (shell.folder / "train.py").write_text(text)
    return "train.py:step"


def test_function_that_takes_a_batch_and_trains_on_it_is_a_step(shell: Shell) -> None:
    record = shell.tmmu("plan", write(shell, loop_text("foreach adamw")), "--device", "cpu", "--json").record
    assert record["mode"] == "backward"
    assert [part["kind"] for part in record["state"]] == ["weights", "optimizer"]
    assert record["first_step"]["total_bytes"] > 0
    assert record["first_step"]["growth"] == 0
    weights = 4 * (32 * 64 + 64 + 64 * 10 + 10)
    steps = 4 * 4
    inputs = 4 * 16 * 32 + 8 * 16
    assert record["eager"]["total_bytes"] - record["eager"]["stack_bytes"] == 3 * weights + steps + inputs


ONCE = (
    HEAD
    + """seen = []
def step(batch):
    if not seen:
        seen.append(torch.zeros(2_000_000_000).sum().item())
    model(batch[0]).sum().backward()
"""
)


def test_device_that_only_later_steps_fit_does_not_fit(shell: Shell) -> None:
    record = shell.tmmu("plan", write(shell, ONCE), "--json").record
    assert record["eager"]["total_bytes"] < 10**9
    assert [row["fits"] for row in record["eager_fits"] if row["gb"] in (8, 12)] == [False, True]


def test_text_says_what_the_first_step_takes_and_what_grows(shell: Shell) -> None:
    text = (
        HEAD
        + "kept = []\ndef step(batch):\n    loss = model(batch[0]).sum()\n    loss.backward()\n    kept.append(loss)\n"
    )
    lines = shell.tmmu("plan", write(shell, text), "--device", "cpu").out.splitlines()
    assert any(line.startswith("the first step, which makes what later ones find, takes ") for line in lines)
    assert "each step leaves 4 B more than it found" in lines


def test_function_without_backward_is_what_it_was(shell: Shell) -> None:
    text = HEAD + "def step(layers):\n    return nn.Linear(layers, 4)\n"
    assert "step needs layers" in shell.tmmu("plan", write(shell, text)).err


def test_mode_step_takes_any_function(shell: Shell) -> None:
    text = HEAD + "def step(batch):\n    return model(batch[0])\n"
    record = shell.tmmu("plan", write(shell, text), "--mode", "step", "--device", "cpu", "--json").record
    assert record["outputs" if "outputs" in record else "ops"]
    assert record["first_step"] is not None


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("plan", "train.py", "--mode", "step"), "--mode step: only for a function of Python code"),
        (("plan", "train.py:step", "--optimizer", "adamw"), "--optimizer: only with --mode backward"),
        (("run", "train.py:step", "--ring", "--budget", "1MiB"), "--ring is for a model: a step makes its own"),
        (("run", "train.py:step", "--weights", "w.safetensors"), "--weights is for a model: a step makes its own"),
        (("plan", "train.py:model", "--mode", "step"), "model is no function"),
    ],
)
def test_what_makes_no_sense_is_one_line(shell: Shell, arguments: tuple[str, ...], text: str) -> None:
    write(shell, HEAD + LOOPS["foreach adamw"])
    done = shell.tmmu(*arguments)
    assert text in done.err
    assert done.err.count("\n") == 1


def test_run_checks_two_steps_and_says_so(shell: Shell) -> None:
    step = write(shell, loop_text("sgd with momentum").replace("lr=0.1", "lr=0.1 / 2"))
    lines = shell.tmmu("run", step, "--check").out.splitlines()
    assert "step ran on cpu: " in lines[0]
    assert lines[0].endswith("weights of train.py")
    assert "checked: 24 outputs and states have the bits of a run without a plan" in lines
    assert "checked: 24 outputs and states have the bits of the step itself, over 2 steps" in lines


def test_run_in_a_plan_of_the_step_takes_its_mode(shell: Shell) -> None:
    step = write(shell, loop_text("gradients kept as zeros"))
    shell.tmmu("plan", step, "--device", "cpu", "-o", "step.plan.cbor")
    record = shell.tmmu("run", step, "--plan", "step.plan.cbor", "--json").record
    assert (record["mode"], record["runs"], record["checked"]) == ("backward", 1, 0)


def test_step_is_compared_with_its_plan_as_a_step(shell: Shell) -> None:
    step = write(shell, loop_text("sgd with momentum"))
    assert shell.tmmu("plan", step, "--device", "cpu").code == 0
    done = shell.tmmu("diff", "train.step.plan.cbor", step, "--json")
    assert (done.code, done.err) == (0, "")
    assert not any(figure["change"] for figure in done.record["figures"])
    assert done.record["after"]["mode"] == "backward"


@pytest.mark.parametrize(
    ("body", "arguments"),
    [
        ("    model(batch[0]).sum().backward()\n", ("plan", "train.py:step", "--mode", "backward")),
        ("    trainer.training_step(batch)\n", ("plan", "train.py:step")),
    ],
)
def test_function_that_lacks_its_batch_is_told_of_mode_step(
    shell: Shell, body: str, arguments: tuple[str, ...]
) -> None:
    write(shell, HEAD + "def step(batch):\n" + body)
    err = shell.tmmu(*arguments).err
    assert "step needs batch (use --mode step if it takes a step" in err
    assert "if it is the program, give --input batch=dtype[shape]" in err
    assert "--set batch=VALUE" in err


COUNTED = (
    HEAD
    + """optimizer = torch.optim.SGD(model.parameters(), 0.1)
count = 0
def step(batch):
    global count
    model(batch[0]).sum().backward()
    count += 1
    if count % EVERY == 0:
        optimizer.step()
        optimizer.zero_grad()
"""
)
UNUPDATED = "no update is in it: it called no optimizer's step"


def test_accumulation_that_a_counter_ends_later_is_said_to_have_no_update(shell: Shell) -> None:
    result = shell.tmmu("plan", write(shell, COUNTED.replace("EVERY", "8")), "--device", "cpu")
    assert UNUPDATED in result.out
    assert shell.tmmu("plan", "train.py:step", "--json").record["first_step"]["skips_update"] is True


def test_step_that_updates_or_leaves_no_gradient_is_not_said_to_lack_an_update(shell: Shell) -> None:
    assert UNUPDATED not in shell.tmmu("plan", write(shell, COUNTED.replace("EVERY", "1")), "--device", "cpu").out
    text = HEAD + "optimizer = torch.optim.SGD(model.parameters(), 0.1)\n"
    evaluation = "def step(batch):\n    optimizer.zero_grad()\n    with torch.no_grad():\n        model(batch[0])\n"
    result = shell.tmmu("plan", write(shell, text + evaluation), "--mode", "step", "--device", "cpu", "--json")
    assert result.record["first_step"]["skips_update"] is False


@pytest.mark.parametrize("body", ["def step():\n    train(inputs()[0])\n", "def step(batch):\n    train(batch[0])\n"])
def test_plan_of_a_step_is_compared_with_a_step_whatever_it_calls(shell: Shell, body: str) -> None:
    step = write(shell, HEAD + "def train(x):\n    model(x).sum().backward()\n" + body)
    assert shell.tmmu("plan", step, "--mode", "step", "--device", "cpu").code == 0
    done = shell.tmmu("diff", "train.step.plan.cbor", step, "--json")
    assert (done.code, done.err) == (0, "")
    assert not any(figure["change"] for figure in done.record["figures"])
