"""Startup imports no torch if no model is traced, and no module of another command."""

import subprocess
import sys

import pytest

from tests.unit.cli.graphs import Shell
from tmmu.cli.app import COMMANDS, command_module

EVERY_COMMAND = ", ".join(map(command_module, COMMANDS))


@pytest.mark.parametrize("statement", ["import tmmu.cli.app", f"import {EVERY_COMMAND}", "import tmmu.driver"])
def test_importing_the_command_line_imports_no_torch(statement: str) -> None:
    probe = f"import sys; {statement}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", probe], check=False).returncode == 0


def test_command_imports_no_module_of_another(shell: Shell) -> None:
    probe = (
        f"import sys; from tmmu.cli.app import run; assert not run(['verify', {str(shell.plan())!r}]); "
        "print(*(name for name in sys.modules if name.startswith(('tmmu.cli.commands.', 'tmmu.driver'))))"
    )
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[1:] == ["tmmu.cli.commands.verify"]


def test_misspelt_command_is_answered_with_a_like_one(shell: Shell) -> None:
    done = shell.tmmu("paln")
    assert (done.code, "No such command 'paln'. Did you mean 'plan'?" in done.err) == (2, True)


def test_help_lists_every_command(shell: Shell) -> None:
    lines = [line[2:].split(" ")[0] for line in shell.tmmu("--help").out.splitlines()]
    assert [line for line in lines if line in COMMANDS] == list(COMMANDS)
