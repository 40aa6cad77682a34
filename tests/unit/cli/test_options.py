"""Options that commands share are declared once; old spellings and environment variables set them too."""

import subprocess
import sys
from dataclasses import dataclass
from typing import Annotated, ClassVar

import pytest
import typer
from typer.testing import CliRunner

from tests.unit.cli.graphs import Shell, small
from tmmu.cli.option_groups import OptionGroup, applications, expand_groups, flags, switches
from tmmu.cli.options import CaptureOptions, PlanningOptions

NET = "import torch\nmodel = torch.nn.Linear(8, 8)\ninputs = torch.zeros(1, 8)\n"

EXTENDED = """
from dataclasses import dataclass
from typing import Annotated
import typer
from tmmu.cli import options

@dataclass(frozen=True, slots=True, kw_only=True)
class Extended(options.{group}):
    color: Annotated[str | None, typer.Option(help="Of the roof.")] = None

options.{group} = Extended
from tmmu.cli.app import run
for words in {commands}:
    run([*words, "--help"])
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared(OptionGroup):
    HIDDEN: ClassVar = {"--colour": "color"}

    color: Annotated[str | None, typer.Option(envvar="TEST_COLOR", help="Of the roof.")] = None
    many: Annotated[list[str] | None, typer.Option("--some")] = None
    loud: Annotated[bool, typer.Option("--loud")] = False


def parse(*arguments: str, **environment: str) -> tuple[int, object]:
    """Exit code and parsed values of a command with one option of its own and a group."""
    parsed: list[object] = []
    cli = typer.Typer()

    @cli.command()
    @expand_groups
    def command(*, name: str, shared: Shared, size: int = 3) -> None:
        parsed.append((name, shared, size))

    return CliRunner().invoke(cli, arguments, env=environment).exit_code, parsed[0] if parsed else None


def test_group_gives_a_command_each_of_its_options() -> None:
    assert parse("x", "--color", "red", "--some", "a", "--some", "b", "--loud") == (
        0,
        ("x", Shared(color="red", many=["a", "b"], loud=True), 3),
    )
    assert parse("x") == (0, ("x", Shared(), 3))


def test_old_spelling_sets_its_option_and_is_in_no_help() -> None:
    assert parse("x", "--colour", "red") == (0, ("x", Shared(color="red"), 3))
    assert parse("x", "--colour", "red", "--color", "blue")[0] != 0


def test_environment_variable_is_a_default_and_not_a_given_option() -> None:
    blue = Shared(color="blue", from_environment=frozenset(("color",)))
    assert parse("x", TEST_COLOR="blue") == (0, ("x", blue, 3))
    assert list(blue.given_options()) == []
    for option in ("--color", "--colour"):
        assert parse("x", option, "red", TEST_COLOR="blue") == (0, ("x", Shared(color="red"), 3))


def test_group_says_what_was_given_as_it_is_written() -> None:
    assert dict(Shared(many=["a"], loud=True).given_options()) == {"--some": ["a"], "--loud": True}
    assert flags(Shared) == {"color": "--color", "many": "--some", "loud": "--loud"}
    assert switches(Shared) == {"--loud"}


@pytest.mark.parametrize(
    ("group", "commands"),
    [
        ("CaptureOptions", [("plan",), ("run",), ("ring",), ("diff",), ("cache", "why")]),
        ("PlanningOptions", [("plan",), ("run",), ("ring",), ("diff",), ("cache", "why")]),
        ("TokenOptions", [("plan",), ("run",), ("ring",), ("verify",), ("cache", "why")]),
    ],
)
def test_option_that_is_added_to_a_shared_group_is_in_every_command(
    group: str, commands: list[tuple[str, ...]]
) -> None:
    program = EXTENDED.format(group=group, commands=commands)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    helps = done.stdout.split("Usage: ")[1:]
    assert [help_text.split()[1 : 1 + len(words)] for help_text, words in zip(helps, commands, strict=True)] == [
        list(words) for words in commands
    ]
    assert all("--color" in help_text for help_text in helps)


def test_every_option_of_capture_and_planning_says_for_which_models_it_is() -> None:
    for group in (CaptureOptions, PlanningOptions):
        assert set(applications(group)) == set(flags(group).values())


def test_json_before_a_command_is_not_dropped_without_a_word(shell: Shell) -> None:
    ran = shell.tmmu("--json", "show", "net.plan.cbor")
    assert (ran.code, "write it after: tmmu show … --json" in ran.err) == (2, True)
    assert "version" in shell.tmmu("--json", "--version").record


def test_device_has_its_old_name_for_a_release(shell: Shell) -> None:
    (shell.folder / "net.py").write_text(NET)
    old, new = (
        shell.tmmu("plan", "net.py", option, "cpu", "--no-cache", "--json") for option in ("--target", "--device")
    )
    assert old.record["digest"] == new.record["digest"]
    both = shell.tmmu("plan", "net.py", "--target", "cpu", "--device", "cuda")
    assert (both.code, "--target and --device are one option" in both.err) == (2, True)
    assert "--target" not in shell.tmmu("plan", "--help").out


def test_device_of_the_environment_is_used_where_one_is_chosen(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    (shell.folder / "net.py").write_text(NET)
    monkeypatch.setenv("TMMU_DEVICE", "cpu")
    assert shell.tmmu("plan", "net.py", "--no-cache", "--json").record["target"] == "cpu"
    assert shell.tmmu("plan", "net.py", "--no-cache", "--json", "--device", "cuda").record["target"] == "cuda"
    assert shell.tmmu("plan", shell.graph(small())).code == 0, "a graph has its device, and none is refused"
    monkeypatch.setenv("TMMU_DEVICE", "tpu")
    done = shell.tmmu("plan", "net.py")
    assert (done.code, "TMMU_DEVICE" in done.err) == (2, True)


def test_cache_is_left_out_where_the_environment_says_so(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMMU_NO_CACHE", "1")
    assert shell.tmmu("plan", shell.graph(small()), "--json").record["cache"] is None
    assert shell.tmmu("cache", "why", "small.ir.cbor", "--json").record["kept"] is False


def test_reserve_of_the_environment_is_in_plan_and_show(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMMU_RESERVE", "7GB")
    plan = shell.plan()
    assert shell.tmmu("show", plan, "--json").record["reserve"] == 7 * 10**9
    assert shell.tmmu("show", plan, "--json", "--reserve", "1GB").record["reserve"] == 10**9


def test_object_of_a_package_is_a_model(shell: Shell) -> None:
    (shell.folder / "zoo").mkdir()
    (shell.folder / "zoo" / "__init__.py").write_text("")
    (shell.folder / "zoo" / "nets.py").write_text("import torch\nclass Net(torch.nn.Linear):\n    pass\n")
    done = shell.tmmu(
        "plan", "zoo.nets:Net", "--set", "in_features=8", "--set", "out_features=4", "--input", "input=float32[2,8]"
    )
    assert (done.code, shell.files()) == (0, ("zoo", "zoo.nets.Net.ir.cbor", "zoo.nets.Net.plan.cbor")), done.err


def test_count_of_zero_is_given() -> None:
    assert dict(CaptureOptions(batch=0).given_options()) == {"--batch": 0}
