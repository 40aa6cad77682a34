"""``tmmu run`` of training steps has the bits of the model's own steps, for every class of ``torch.optim``."""

import pytest

from tests.unit.cli.graphs import Shell
from tests.unit.passes.capture.test_optimizers import COMPLEX, REFUSED, SQUARE
from tests.unit.passes.capture.test_training import LOSS
from tmmu.passes.capture.optimizers import optimizer_classes

TEXTS = (
    "adamw:fused", "adamw:foreach", "adam:amsgrad=true,foreach", "sgd:momentum=0.9,nesterov=true",
    "sgd:fused,momentum=0.9", "nadam:foreach", "rprop:foreach", "radam:foreach,decoupled_weight_decay=true",
    *sorted(set(optimizer_classes()) - REFUSED),
)  # fmt: skip


@pytest.mark.parametrize("text", TEXTS)
def test_updates_have_the_bits_of_the_optimizer(shell: Shell, text: str) -> None:
    (shell.folder / "net.py").write_text(SQUARE + LOSS)
    ran = shell.tmmu("run", "net.py", "--mode", "backward", "--optimizer", text, "--check", "--json")
    assert ran.code == 0, ran.err
    assert ran.record["same"] == ran.record["checked"] > 1


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
