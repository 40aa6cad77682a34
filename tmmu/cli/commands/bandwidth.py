"""``tmmu bandwidth``: what copies cost on this machine, for the planner and for whoever wonders."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from tmmu.cli.error_boundary import print_json
from tmmu.cli.output import render
from tmmu.cli.parsing import naming_option
from tmmu.planner.arenas import parse_size

if TYPE_CHECKING:
    from tmmu.runtime.device.bandwidth import Bandwidth, CopyRate


@dataclass(frozen=True, slots=True, kw_only=True)
class BandwidthJob:
    """One run of ``tmmu bandwidth``, every option checked."""

    device: str | None
    size: int
    tries: int
    json: bool


def bandwidth_job(*, device: str | None, size: str, tries: int, as_json: bool) -> BandwidthJob:
    """The job that the options ask for."""
    return BandwidthJob(
        device=device, size=naming_option("--size", lambda: parse_size(size)), tries=tries, json=as_json
    )


def run_bandwidth(job: BandwidthJob) -> int:
    """The copies are timed and the report is printed; 0."""
    from tmmu.runtime.device.bandwidth import measure_bandwidth

    bandwidth = measure_bandwidth(job.device, job.size, job.tries)
    if job.json:
        print_json(record(bandwidth))
        return 0
    render.print_lines(render.console(), lines(bandwidth))
    return 0


def record(bandwidth: "Bandwidth") -> dict[str, Any]:
    """The report as one JSON object."""
    rates = [asdict(rate) | {"bytes_per_second": rate.bytes_per_second} for rate in bandwidth.rates]
    return asdict(bandwidth) | {"rates": rates}


def lines(bandwidth: "Bandwidth") -> Iterator[str]:
    """The report as a person reads it."""
    yield f"{bandwidth.device}: {bandwidth.name}"
    yield ""
    heading = ("from", "to", "bytes", "rate", "one of 4 KiB")
    yield from render.align_columns("<<>>>", heading, [_row(rate) for rate in bandwidth.rates])
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
