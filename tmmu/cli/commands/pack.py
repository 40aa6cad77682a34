"""``tmmu pack``: offsets for the intervals of a CSV file, and what is proven about their peak."""

from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Final

import typer

from tmmu.cli import options
from tmmu.cli.error_boundary import print_json
from tmmu.cli.option_groups import OptionGroup, expand_groups
from tmmu.cli.output.progress import packing_progress
from tmmu.cli.output.render import console, print_lines, size
from tmmu.cli.parsing import parse_option, require_nodes, require_writable
from tmmu.codec.files import write_atomic
from tmmu.codec.printable import align_columns
from tmmu.errors import AlignmentViolation, AllocationOverflow, ArenaTooSmall, InvalidConfig
from tmmu.ir.fault import U64_MAX
from tmmu.judge.packing import require_sound_packing
from tmmu.planner.arenas import parse_size
from tmmu.planner.intervals import Intervals, intervals_with_offsets, read_intervals
from tmmu.planner.pack.solve import PackingResult
from tmmu.planner.pack.solve import pack as pack_intervals

PPM: Final = 1_000_000

app = typer.Typer(add_completion=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class PackCommandOptions(OptionGroup):
    """Options of ``tmmu pack`` alone."""

    capacity: Annotated[
        str | None,
        typer.Option(metavar="SIZE", help="Stop at the first packing that fits in SIZE. Default: the least peak."),
    ] = None
    alignment: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Align rows that name no alignment to SIZE. Default: 1.")
    ] = None
    nodes: Annotated[
        int | None,
        typer.Option(metavar="N", help="Visit at most N nodes in the exact search. Default: as many as take a minute."),
    ] = None
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="OUT.csv", help="Write the rows with their offsets here. Default: nowhere."
        ),
    ] = None
    as_json: options.Json = False


@app.command()
@expand_groups
def pack(
    *,
    intervals: Annotated[
        Path, typer.Argument(metavar="INTERVALS.csv", help="Read id,lower,upper,size[,alignment][,offset] here.")
    ],
    settings: PackCommandOptions,
) -> options.Run:
    """Give every interval an offset so that the highest end is least; a given offset stays."""
    return lambda: run_pack(pack_job(intervals, settings))


@dataclass(frozen=True, slots=True, kw_only=True)
class PackJob:
    """One run of ``tmmu pack``, every option checked; ``capacity`` 0: none."""

    intervals: Path
    capacity: int
    alignment: int
    nodes: int | None
    output: Path | None
    json: bool


def pack_job(intervals: Path, settings: PackCommandOptions) -> PackJob:
    """The job that the options ask for; ``InvalidConfig`` or ``AlignmentViolation`` where one makes no sense."""
    capacity, alignment = settings.capacity, settings.alignment
    room = 0 if capacity is None else parse_option("--capacity", lambda: parse_size(capacity))
    if capacity is not None and not room:
        raise InvalidConfig("--capacity: 0 holds nothing", fix="give a size, or leave it out to minimize")
    step = 1 if alignment is None else parse_option("--alignment", lambda: parse_size(alignment))
    if step < 1 or step & (step - 1):
        raise AlignmentViolation(f"--alignment: {step} is no power of two", fix="use 1, 2, 4, 8, …")
    return PackJob(
        intervals=intervals,
        capacity=room,
        alignment=step,
        nodes=require_nodes(settings.nodes),
        output=None if settings.output is None else require_writable(settings.output, "--output", never=intervals),
        json=settings.as_json,
    )


def run_pack(job: PackJob) -> int:
    """Pack, write ``--output`` and print the result; returns 0. ``ArenaTooSmall`` if it exceeds the capacity."""
    intervals = read_intervals(job.intervals, alignment=job.alignment)
    _warn_slow(job)
    with packing_progress() as report:
        packed = pack_intervals(intervals.problem, search_nodes=job.nodes, capacity=job.capacity, report=report)
    require_sound_packing(intervals.problem, packed.offset, peak=packed.peak, bound=packed.bound)
    _demand_room(job, packed)
    if job.output is not None:
        write_atomic(job.output, intervals_with_offsets(intervals, packed.offset))
    _report(job, intervals, packed)
    return 0


def _warn_slow(job: PackJob) -> None:
    """Say on stderr that numba would compile a search."""
    if job.nodes != 0 and find_spec("numba") is None:
        console(stderr=True).print(
            "numba is not installed: a search takes up to a hundred times as long (pip install 'tmmu[pack]')"
        )


def _demand_room(job: PackJob, packed: PackingResult) -> None:
    if packed.peak > U64_MAX:
        raise AllocationOverflow(f"the packing found ends at {packed.peak}, past 64 bits", fix="use larger units")
    if not job.capacity or packed.peak <= job.capacity:
        return
    impossible = packed.bound > job.capacity
    if impossible:
        reason = f"no packing fits in {job.capacity} bytes: every one needs at least {packed.bound}"
        fix = f"give it {packed.peak} bytes, the least found"
    else:
        visited = f"{packed.nodes_visited} nodes"
        reason = f"no packing in {job.capacity} bytes was found with {visited}, nor shown to be impossible"
        fix = f"give it {packed.peak} bytes, the least found, or more --nodes"
    raise ArenaTooSmall(
        reason,
        fix=fix,
        capacity=job.capacity,
        peak=packed.peak,
        bound=packed.bound,
        impossible=impossible,
        nodes=packed.nodes_visited,
        short=packed.peak - job.capacity,
    )


def _report(job: PackJob, intervals: Intervals, packed: PackingResult) -> None:
    ratio = ratio_ppm(packed)
    if job.json:
        print_json(
            {
                "items": len(intervals.row_of),
                "peak": packed.peak,
                "live": packed.live,
                "bound": packed.bound,
                "ratio_ppm": ratio,
                "proven": packed.proven,
                "method": packed.method,
                "nodes": packed.nodes_visited,
                "capacity": job.capacity,
                "output": None if job.output is None else str(job.output),
            }
        )
        return
    cells = (
        str(len(intervals.row_of)),
        str(packed.peak),
        str(packed.bound),
        f"{ratio // PPM}.{ratio % PPM:06d}",
        "yes" if packed.proven else "no",
        packed.method,
        str(packed.nodes_visited),
    )
    out = console()
    print_lines(
        out, align_columns(">>>><<>", ("items", "peak", "bound", "ratio", "proven", "method", "nodes"), [cells])
    )
    if packed.bound > packed.live:
        out.print(f"most live at once: {packed.live} bytes ({size(packed.live)}); no packing is that low")
    if job.output is not None:
        out.print(f"wrote {job.output}")


def ratio_ppm(packed: PackingResult) -> int:
    """Peak / bound in parts per million, rounded up: ``PPM`` only if they are equal."""
    return -(-packed.peak * PPM // packed.bound) if packed.bound else PPM
