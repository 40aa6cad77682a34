"""Options that commands share are declared once, and old spellings go on working."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, ClassVar, get_type_hints

import pytest
import typer
from typer.testing import CliRunner

from tests.unit.cli.graphs import Shell
from tmmu.cli import app as program
from tmmu.cli.options import (
    CaptureOptions,
    OptionGroup,
    PlanningOptions,
    TokenOptions,
    applications,
    expand_groups,
    flags,
    switches,
)

COMMANDS: dict[str, Callable[..., object]] = {
    "plan": program.plan,
    "run": program.run_command,
    "ring": program.ring_command,
    "diff": program.diff,
    "verify": program.verify,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared(OptionGroup):
    HIDDEN: ClassVar = {"--colour": "color"}

    color: Annotated[str | None, typer.Option(help="Of the roof.")] = None
    many: Annotated[list[str] | None, typer.Option("--some")] = None
    loud: Annotated[bool, typer.Option("--loud")] = False


def parsed(*arguments: str) -> tuple[int, object]:
    got: list[object] = []
    cli = typer.Typer()

    @cli.command()
    @expand_groups
    def command(*, name: str, shared: Shared, size: int = 3) -> None:
        got.append((name, shared, size))

    return CliRunner().invoke(cli, arguments).exit_code, got[0] if got else None


def test_group_gives_a_command_each_of_its_options() -> None:
    assert parsed("x", "--color", "red", "--some", "a", "--some", "b", "--loud") == (
        0,
        ("x", Shared(color="red", many=["a", "b"], loud=True), 3),
    )
    assert parsed("x") == (0, ("x", Shared(), 3))


def test_old_spelling_sets_its_option_and_is_in_no_help() -> None:
    assert parsed("x", "--colour", "red") == (0, ("x", Shared(color="red"), 3))
    assert parsed("x", "--colour", "red", "--color", "blue")[0] != 0


def test_group_says_what_was_given_as_it_is_written() -> None:
    assert dict(Shared(many=["a"], loud=True).given_options()) == {"--some": ["a"], "--loud": True}
    assert flags(Shared) == {"color": "--color", "many": "--some", "loud": "--loud"}
    assert switches(Shared) == {"--loud"}


@pytest.mark.parametrize("name", COMMANDS)
def test_shared_option_is_an_option_of_every_command_that_takes_its_group(name: str) -> None:
    command = COMMANDS[name]
    signature = inspect.signature(command).parameters
    groups = [hint for hint in get_type_hints(inspect.unwrap(command)).values() if hint in GROUPS]
    assert groups
    for group in groups:
        assert set(flags(group)) <= set(signature)


GROUPS = (CaptureOptions, PlanningOptions, TokenOptions)


def test_every_option_of_capture_and_planning_says_for_which_models_it_is() -> None:
    for group in (CaptureOptions, PlanningOptions):
        assert set(applications(group)) == set(flags(group).values())


def test_device_has_its_old_name_for_a_release(shell: Shell) -> None:
    (shell.folder / "net.py").write_text("import torch\nmodel = torch.nn.Linear(8, 8)\ninputs = torch.zeros(1, 8)\n")
    old, new = (
        shell.tmmu("plan", "net.py", option, "cpu", "--no-cache", "--json") for option in ("--target", "--device")
    )
    assert old.record["digest"] == new.record["digest"]
    both = shell.tmmu("plan", "net.py", "--target", "cpu", "--device", "cuda")
    assert (both.code, "--target and --device are one option" in both.err) == (2, True)
    assert "--target" not in shell.tmmu("plan", "--help").out


def test_object_of_a_package_is_a_model(shell: Shell) -> None:
    (shell.folder / "zoo").mkdir()
    (shell.folder / "zoo" / "__init__.py").write_text("")
    (shell.folder / "zoo" / "nets.py").write_text("import torch\nclass Net(torch.nn.Linear):\n    pass\n")
    done = shell.tmmu(
        "plan", "zoo.nets:Net", "--set", "in_features=8", "--set", "out_features=4", "--input", "input=float32[2,8]"
    )
    assert (done.code, shell.files()) == (0, ("nets.Net.ir.cbor", "nets.Net.plan.cbor", "zoo")), done.err
