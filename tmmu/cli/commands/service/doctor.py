"""``tmmu doctor``: what of this machine costs a server time or memory."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from tmmu.cli import options
from tmmu.cli.error_boundary import conclude, print_json
from tmmu.cli.output import render
from tmmu.codec.printable import align_columns
from tmmu.errors import HostUnfit

if TYPE_CHECKING:
    from tmmu.server.doctor import MachineFinding

app = typer.Typer(add_completion=False)


@app.command()
def doctor(
    *,
    device: Annotated[options.Device, typer.Option(help="Look at what a server on this device needs.")] = "cpu",
    strict: Annotated[bool, typer.Option("--strict", help="Exit with 3 where there is a warning. Default: 0.")] = False,
    as_json: options.Json = False,
) -> options.Run:
    """Look at this machine as tmmu serve would: a line for each thing, and how to mend what is not right."""
    return lambda: run_doctor(device, strict=strict, as_json=as_json)


def run_doctor(device: options.Device, *, strict: bool, as_json: bool) -> int:
    """Look and print; returns 0, or 3 where ``strict`` finds a warning."""
    from tmmu.server.doctor import examine_machine  # noqa: PLC0415 - torch

    findings = examine_machine(device)
    if as_json:
        print_json({"findings": [asdict(finding) for finding in findings]})
    else:
        rows = [(finding.status, finding.name, _words(finding)) for finding in findings]
        render.print_lines(render.console(), align_columns("<<<", rows[0], rows[1:]))
    warned = [finding.name for finding in findings if finding.status == "warn"]
    if not (strict and warned):
        return 0
    return conclude(HostUnfit(f"{', '.join(warned)}: not as a server wants it", fix="do what the lines say"))


def _words(finding: "MachineFinding") -> str:
    return f"{finding.state}: {finding.fix}" if finding.fix else finding.state
