"""Progress of golden commands: the case and the number of plans, on a terminal only."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.unit.cli.graphs import Shell
from tmmu.cli.commands import golden

COMMANDS = [("check", "--jobs", 1), ("check", "--jobs", 2), ("update", "--jobs", 1)]
SAID = [f"planning diamond: {done} of 27 plans" for done in range(0, 18, 2)]
SAID += [f"planning mixed-roles: {done} of 27 plans" for done in range(18, 27)]


@pytest.mark.parametrize("command", COMMANDS)
def test_each_preset_and_mode_of_a_case_is_a_step(
    little: Shell, monkeypatch: pytest.MonkeyPatch, command: tuple[Any, ...]
) -> None:
    steps: list[str] = []

    @contextmanager
    def recorded() -> Iterator[Any]:
        yield lambda step, ops: steps.append(step)

    monkeypatch.setattr(golden, "progress_bar", recorded)
    assert little.tmmu("golden", *command).code == 0
    assert steps == SAID


def test_progress_is_shown_on_a_terminal_only(little: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = little.tmmu("golden", "check")
    assert (plain.code, plain.err) == (0, "")
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    done = little.tmmu("golden", "check", "--json")
    assert "planning mixed-roles: 26 of 27 plans" in done.err
    assert done.record["plans"] == 27
