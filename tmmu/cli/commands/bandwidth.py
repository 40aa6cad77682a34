"""``tmmu bandwidth``: what copies cost on this machine."""

from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tmmu.cli import options
from tmmu.cli.error_boundary import print_json
from tmmu.cli.output import render
from tmmu.cli.parsing import parse_option
from tmmu.codec.printable import align_columns
from tmmu.planner.arenas import parse_size

if TYPE_CHECKING:
    from tmmu.runtime.device.bandwidth import Bandwidth, CopyRate

app = typer.Typer(add_completion=False)


@app.command()
def bandwidth(
    *,
    device: Annotated[
        str | None,
        typer.Option(
            metavar="DEVICE",
            envvar="TMMU_DEVICE",
            help="Measure this device: cpu, cuda or cuda:N. Default: cuda where there is one, else cpu.",
        ),
    ] = None,
    size: Annotated[str, typer.Option(metavar="SIZE", help="Copy this many bytes at once.")] = "256MiB",
    tries: Annotated[
        int, typer.Option(metavar="N", min=1, max=10_000, help="Measure N times and report the best.")
    ] = 5,
    as_json: options.Json = False,
) -> options.Run:
    """Measure copies between host and DEVICE: pinned and pageable, both ways, what one costs, how wide the link is."""
    return lambda: run_bandwidth(device, parse_option("--size", lambda: parse_size(size)), tries=tries, as_json=as_json)


def run_bandwidth(device: str | None, size: int, *, tries: int, as_json: bool) -> int:
    """Time the copies and print the report; returns 0."""
    from tmmu.runtime.device.bandwidth import measure_bandwidth

    measured = measure_bandwidth(device, size, tries)
    if as_json:
        print_json(record(measured))
        return 0
    render.print_lines(render.console(), lines(measured))
    return 0


def record(bandwidth: "Bandwidth") -> dict[str, Any]:
    """The report as one JSON object."""
    rates = [asdict(rate) | {"bytes_per_second": rate.bytes_per_second} for rate in bandwidth.rates]
    return asdict(bandwidth) | {"rates": rates}


def lines(bandwidth: "Bandwidth") -> Iterator[str]:
    """The report as text."""
    yield f"{bandwidth.device}: {bandwidth.name}"
    yield ""
    heading = ("from", "to", "bytes", "rate", "one of 4 KiB")
    yield from align_columns("<<>>>", heading, [_row(rate) for rate in bandwidth.rates])
    yield ""
    if bandwidth.device == "cpu":
        yield "no GPU: copies within the host's memory, which a ring on the CPU is made of; there is no link to measure"
    elif bandwidth.unpinned:
        yield f"memory cannot be pinned: {bandwidth.unpinned}; raise the limit of locked memory (ulimit -l)"
    if bandwidth.link is not None:
        link = bandwidth.link
        most = f"at most {link.max_speed}, {link.max_width} lanes"
        yield f"link {link.address}: {link.speed}, {link.width} lanes, {most}"


def _row(rate: "CopyRate") -> tuple[str, ...]:
    tenths = rate.bytes_per_second // 10**8
    gigabytes = f"{tenths // 10}.{tenths % 10} GB/s"
    microseconds = f"{rate.small_ns / 1000:.1f} us"
    return (rate.source, rate.target, render.size(rate.bytes), gigabytes, microseconds)
