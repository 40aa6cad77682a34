"""``tmmu golden``: check, update or show the recorded plans of fixed graphs."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import starmap
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from tmmu.cli import options
from tmmu.cli.error_boundary import conclude, print_json
from tmmu.cli.output import render
from tmmu.cli.output.progress import progress_bar
from tmmu.cli.parsing import refuse, require_count
from tmmu.cli.worker_processes import worker_processes
from tmmu.codec.files import read_file
from tmmu.codec.printable import align_columns
from tmmu.codec.text import print_plan
from tmmu.errors import GoldenMismatch, InvalidConfig, error_record
from tmmu.golden import store
from tmmu.golden.cases import CONFIGS, GoldenCase, PlanConfig, graph_of, load, read_cases
from tmmu.golden.check import Finding, check_case, check_files, recorded_cases, unplannable_cases
from tmmu.golden.digests import KINDS
from tmmu.golden.replay import Replay, replay
from tmmu.golden.update import UpdateReport, update

if TYPE_CHECKING:
    from tmmu.passes.capture.request import Progress

MAX_SEEDS: Final = 8
"""Seeds that a line names."""
GOLDEN: Final = Path("golden")

Cases = Annotated[
    list[str] | None,
    typer.Argument(metavar="[CASE]...", help="Plan only these cases. Default: all of them.", show_default=False),
]
Folder = Annotated[Path, typer.Option("--dir", metavar="D", help="Use the golden files of this folder.")]
Jobs = Annotated[int, typer.Option(metavar="N", envvar="TMMU_JOBS", help="Plan with N processes at once.")]

app = typer.Typer(add_completion=False, help="Compare plans with recorded ones, record them, show them.")


@app.command()
def check(
    cases: Cases = None, *, folder: Folder = GOLDEN, jobs: Jobs = 2, as_json: options.Json = False
) -> options.Run:
    """Plan every case again and compare each digest; say what moved. Writes nothing."""
    return lambda: run_check(
        golden_job(folder=folder, names=cases or (), jobs=jobs, as_json=as_json, read=recorded_cases)
    )


@app.command(name="update")
def update_command(
    cases: Cases = None, *, folder: Folder = GOLDEN, jobs: Jobs = 2, as_json: options.Json = False
) -> options.Run:
    """Record what the planner says now, and say what moved and which version that takes."""
    return lambda: run_update(golden_job(folder=folder, names=cases or (), jobs=jobs, as_json=as_json))


@app.command()
def show(
    case: Annotated[
        str | None,
        typer.Argument(metavar="[CASE]", help="Print this case. Default: a list of all.", show_default=False),
    ] = None,
    *,
    folder: Folder = GOLDEN,
    mode: Annotated[
        options.Mode | None, typer.Option(help="Print the plan of this mode. Default: the case's own choice.")
    ] = None,
    preset: Annotated[
        options.Preset | None, typer.Option(help="Print the plan of this preset. Default: the case's own choice.")
    ] = None,
    as_json: options.Json = False,
) -> options.Run:
    """Print the cases and their reasons, or the graph and one plan of a case."""
    if case is None:
        refuse({"--mode": mode, "--preset": preset}, "of which case", fix="name a case, or leave it out")
        return lambda: run_list(golden_job(folder=folder, names=(), jobs=1, as_json=as_json))
    return lambda: run_show(golden_job(folder=folder, names=(case,), jobs=1, as_json=as_json), mode=mode, preset=preset)


@dataclass(frozen=True, slots=True, kw_only=True)
class GoldenJob:
    """One run of ``tmmu golden``, every option checked. ``chosen`` are the cases that are planned again."""

    folder: Path
    cases: tuple[GoldenCase, ...]
    chosen: tuple[GoldenCase, ...]
    jobs: int
    json: bool


def golden_job(
    *,
    folder: Path,
    names: Sequence[str],
    jobs: int,
    as_json: bool,
    read: Callable[[Path], tuple[GoldenCase, ...]] = read_cases,
) -> GoldenJob:
    """The job that the options ask for; refuses names of no case."""
    cases = read(folder)
    names_of_cases = [case.name for case in cases]
    for name in names:
        if name not in names_of_cases:
            raise InvalidConfig(f"no case {name!r} in {folder}", fix=f"use {', '.join(names_of_cases)}")
    chosen = tuple(case for case in cases if not names or case.name in names)
    return GoldenJob(folder=folder, cases=cases, chosen=chosen, jobs=require_count(jobs, "--jobs") or 1, json=as_json)


def run_check(job: GoldenJob) -> int:
    """Print differences from the record; returns 0, or 3 if there are any. Writes nothing."""
    findings = [*check_files(job.folder, job.cases), *unplannable_cases(job.folder, job.chosen)]
    cases_with_findings = {finding.case for finding in findings}
    job = replace(job, chosen=tuple(case for case in job.chosen if case.name not in cases_with_findings))
    with progress_bar() as progress:
        for case, replays in zip(job.chosen, _replays(job, progress), strict=True):
            findings += check_case(job.folder, case, replays)
    plans = _plans(job)
    error = _mismatch(job, findings) if findings else None
    if job.json:
        listed = [_record(finding) for finding in findings]
        print_json(
            {"cases": len(job.chosen), "plans": plans, "findings": listed, "error": error and error_record(error)}
        )
    else:
        lines = map(_line, findings) if findings else [f"golden: {len(job.chosen)} cases, {plans} plans as recorded"]
        render.print_lines(render.console(), lines)
    return conclude(error)


def _mismatch(job: GoldenJob, findings: Sequence[Finding]) -> GoldenMismatch:
    case_names = ", ".join(dict.fromkeys(finding.case for finding in findings))
    return GoldenMismatch(
        f"{job.folder} is not as recorded, in {case_names}",
        fix="if that is meant, run tmmu golden update and raise the version as it says",
        findings=len(findings),
    )


def run_update(job: GoldenJob) -> int:
    """Record the plans as they are now, and print what moved; returns 0."""
    with progress_bar() as progress:
        replays = dict(zip((case.name for case in job.chosen), _replays(job, progress), strict=True))
    done = update(job.folder, job.cases, replays)
    if job.json:
        print_json(
            asdict(done) | {"moved": [_record(finding) for finding in done.moved], "version": _version(done.moved)}
        )
        return 0
    render.print_lines(render.console(), _update_lines(job, done))
    return 0


def _update_lines(job: GoldenJob, done: UpdateReport) -> Iterator[str]:
    yield from dict.fromkeys(f"{finding.case}: new" if finding.is_new else _line(finding) for finding in done.moved)
    yield from (f"wrote {job.folder / name}" for name in done.written)
    yield from (f"removed {job.folder / name}" for name in done.removed)
    version = _version(done.moved)
    if version == "major":
        yield "major version: liveness, slots or addresses moved, so a token no longer replays what it did"
    elif version == "minor":
        yield "minor version: only offsets or figures moved; a token still replays the same slots and addresses"
    elif not done.written:
        yield f"golden: {len(job.chosen)} cases as recorded, nothing written"


def _version(moved: Sequence[Finding]) -> str:
    """The version that a change must raise; empty if cases were only added or removed."""
    if any(finding.is_major for finding in moved):
        return "major"
    return "minor" if any(finding.kind == "plan" for finding in moved) else ""


def run_list(job: GoldenJob) -> int:
    """Print the cases and their reasons; returns 0."""
    if job.json:
        rows = [{"case": c.name, "reason": c.reason, "made": c.origin, "seeds": len(c.seeds)} for c in job.cases]
        print_json({"cases": rows})
        return 0
    texts = [(case.name, *_counts(job.folder, case), case.reason) for case in job.cases]
    render.print_lines(render.console(), align_columns("<>><", ("case", "ops", "buffers", "reason"), texts))
    return 0


def run_show(job: GoldenJob, *, mode: str | None, preset: str | None) -> int:
    """Print the case's review file, or its plan of this mode and preset; returns 0."""
    config = _config_asked(mode, preset)
    (case,) = job.chosen
    if config is None and not case.recipe:
        text = read_file(job.folder / store.review_file(case)).decode("utf-8", errors="replace")
    elif config is None:
        text = f"# {case.name}: {case.reason}\n# made by the recipe {case.recipe}; only digests are kept\n"
    else:
        text = _plan_text(job, case, config)
    if job.json:
        print_json({"case": case.name, "reason": case.reason, "text": text})
    else:
        render.print_lines(render.console(), text.rstrip("\n").split("\n"))
    return 0


def _config_asked(mode: str | None, preset: str | None) -> PlanConfig | None:
    if mode is None and preset is None:
        return None
    mode = mode or "inference"
    return PlanConfig(mode=mode, preset=preset or ("inference" if mode == "inference" else "train_full"))


def _plan_text(job: GoldenJob, case: GoldenCase, config: PlanConfig) -> str:
    plans = {} if case.recipe else load(job.folder / store.plans_file(case), store.decode_plans)
    if config not in plans:
        raise InvalidConfig(
            f"no plan of {case.name} is kept in {config}", fix="it is refused there, or only digests are kept"
        )
    return print_plan(plans[config])


def _counts(folder: Path, case: GoldenCase) -> tuple[str, str]:
    """Numbers of ops and buffers; a recipe's graph is not built for them."""
    if case.recipe:
        return "recipe", "recipe"
    graph = graph_of(folder, case)
    return str(len(graph.ops)), str(len(graph.buffers))


def _plans(job: GoldenJob) -> int:
    """Number of plans of the chosen cases."""
    return sum(len(case.seeds) * len(CONFIGS) for case in job.chosen)


def _replays(job: GoldenJob, progress: "Progress") -> Iterator[dict[PlanConfig, Replay]]:
    """Plan every chosen case again, with ``job.jobs`` processes; results in the order of the cases."""
    tasks = [(job.folder, case, config) for case in job.chosen for config in CONFIGS]
    if job.jobs == 1:
        yield from _by_case(job, starmap(replay, tasks), progress)
        return
    with worker_processes(job.jobs) as pool:
        yield from _by_case(job, pool.map(replay, *zip(*tasks, strict=True)), progress)


def _by_case(job: GoldenJob, replays: Iterator[Replay], progress: "Progress") -> Iterator[dict[PlanConfig, Replay]]:
    done, plans = 0, _plans(job)
    for case in job.chosen:
        replay_of: dict[PlanConfig, Replay] = {}
        for config in CONFIGS:
            progress(f"planning {case.name}: {done} of {plans} plans", 0)
            replay_of[config] = next(replays)
            done += len(case.seeds)
        yield replay_of


def _record(finding: Finding) -> dict[str, object]:
    return asdict(finding) | {"seeds": [str(seed) for seed in finding.seeds]}


def _line(finding: Finding) -> str:
    prefix = f"{finding.case}: " + (f"{finding.config}: " if finding.config else "")
    seeds = [str(seed) for seed in finding.seeds[:MAX_SEEDS]]
    more = [f"and {len(finding.seeds) - MAX_SEEDS} more"] if len(finding.seeds) > MAX_SEEDS else []
    under = f" (seed {', '.join([*seeds, *more])})" if seeds else ""
    verb = f"{finding.kind} moved: " if finding.kind in KINDS else f"{finding.kind}: "
    return f"{prefix}{verb}{finding.what}{under}"
