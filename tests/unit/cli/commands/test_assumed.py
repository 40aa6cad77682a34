"""``tmmu plan`` and ``tmmu run`` of models that look at values which their file gives."""

import pytest

from tests.unit.cli.graphs import Shell
from tests.unit.passes.known_values import BODIES, FILE


@pytest.mark.parametrize("name", [name for name in BODIES if name != "none"])
def test_runs_take_the_values_and_have_the_bits_of_the_model(shell: Shell, name: str) -> None:
    (shell.folder / "net.py").write_text(FILE.format(body=BODIES[name][0]))
    ran = shell.tmmu("run", "net.py", "--check", "--json")
    assert ran.code == 0, ran.err
    assert sorted(ran.record["assumed"]) == sorted(BODIES[name][1])
    assert ran.record["same"] == ran.record["checked"] > 0


def test_plan_says_for_which_values_it_holds(shell: Shell) -> None:
    (shell.folder / "net.py").write_text(FILE.format(body=BODIES["two"][0]))
    planned = shell.tmmu("plan", "net.py")
    assert "planned for these values of keep and pad: with others the model may take another path" in planned.out
    assert shell.tmmu("plan", "net.py", "--json").record["assumed"] == ["keep", "pad"]
    refused = shell.tmmu("plan", "net.py", "--symbolic-inputs")
    assert refused.code == 2
    assert refused.err.startswith("tmmu: CAPTURE_FAILED: net.py:12")


HOLDER = """
import torch
class Net(torch.nn.Module):
    def forward(self, x):
        self.last = x * 2
        return x + 1
model = Net
def inputs(): return (torch.randn(2, 4),)
"""


def test_plan_and_run_say_what_they_leave_out(shell: Shell) -> None:
    (shell.folder / "net.py").write_text(HOLDER)
    says = "left out: 1 tensor of 32 B that the step makes and somebody holds afterwards (net.py:5)"
    assert says in shell.tmmu("plan", "net.py").out
    assert says in shell.tmmu("run", "net.py").out
    assert shell.tmmu("plan", "net.py", "--json").record["survivors"] == [{"bytes": 32, "source": "net.py:5"}]
