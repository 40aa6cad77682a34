"""The command line: a table of commands, each in its own module, run at one error boundary.

A command's module is imported when the command is asked for, since it imports what the command runs. Typer only parses:
a command returns a callable, and ``run`` calls it.
"""

from collections.abc import Sequence
from functools import partial
from importlib import import_module
from importlib.metadata import version
from typing import Annotated, Any, Final

import typer
from typer.core import TyperGroup

from tmmu.cli import options
from tmmu.cli.error_boundary import print_json, run_guarded
from tmmu.errors import InvalidConfig

COMMANDS: Final = (
    "plan",
    "run",
    "generate",
    "serve",
    "doctor",
    "fit",
    "verify",
    "show",
    "report",
    "export",
    "pack",
    "ring",
    "diff",
    "sessions",
    "bandwidth",
    "golden",
    "cache",
)
"""Modules of ``tmmu.cli.commands``, in the order of the help. Each has its command or group as ``app``."""
_PATHS: Final = {"serve": "service.serve", "doctor": "service.doctor"}
"""Those that lie in a folder of it."""


def command_module(name: str) -> str:
    """The module of a command."""
    return f"tmmu.cli.commands.{_PATHS.get(name, name)}"


class CommandTable(TyperGroup):
    """The group of all commands: ``COMMANDS``, imported one by one."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.commands = dict.fromkeys(COMMANDS, self)  # their names, for the suggestion after a misspelt one

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ARG002 - the names are typer's
        """The command of this name, or ``None``."""
        if cmd_name not in COMMANDS:
            return None
        command = typer.main.get_command(import_module(command_module(cmd_name)).app)
        command.name = cmd_name
        return command

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002
        """The names, in the order of the help."""
        return list(COMMANDS)


app = typer.Typer(
    cls=CommandTable,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Plan the memory of a PyTorch model before it runs, to the byte.",
)


@app.callback(invoke_without_command=True)
def root(
    context: typer.Context,
    *,
    show_version: Annotated[bool, typer.Option("--version", help="Print the version and exit. Default: no.")] = False,
    as_json: options.Json = False,
) -> options.Run | None:
    """Plan the memory of a PyTorch model before it runs, to the byte."""
    if context.invoked_subcommand is not None:
        if as_json:
            raise InvalidConfig(
                "--json before a command is --version's",
                fix=f"write it after: tmmu {context.invoked_subcommand} … --json",
            )
        return None
    return partial(_print_version, as_json=as_json) if show_version else partial(_print_help, context)


def _print_help(context: typer.Context) -> int:
    typer.echo(context.get_help())
    return 0


def _print_version(*, as_json: bool) -> int:
    if as_json:
        print_json({"version": version("tmmu")})
    else:
        typer.echo(f"tmmu {version('tmmu')}")
    return 0


def run(arguments: Sequence[str]) -> int:
    """The exit code of the program for these arguments."""

    def step() -> int:
        job = app(list(arguments), prog_name="tmmu", standalone_mode=False)
        return job() if callable(job) else int(job or 0)

    return run_guarded(step, as_json="--json" in arguments)
