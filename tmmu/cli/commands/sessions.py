"""``tmmu sessions simulate``: policies that swap idle sessions, side by side in virtual time."""

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from tmmu.cli import options
from tmmu.cli.error_boundary import print_json
from tmmu.cli.output import render
from tmmu.cli.output.sessions_report import lines, record
from tmmu.cli.parsing import parse_file, parse_option, refuse, require_writable
from tmmu.codec.files import write_atomic
from tmmu.engine.policies.table import POLICIES, SwapPolicy, policy_named
from tmmu.engine.simulation.recording import Recording, encode_recording
from tmmu.engine.simulation.results import SimulationResult
from tmmu.engine.simulation.simulate import bounds, simulate
from tmmu.engine.simulation.workload import SessionWorkload
from tmmu.engine.simulation.workload_file import load_workload, with_agents
from tmmu.errors import InvalidConfig

app = typer.Typer(add_completion=False, help="Simulate sessions of an engine that swap.")


@app.callback()
def sessions() -> None:
    """Simulate sessions of an engine that swap."""


@app.command(name="simulate")
def simulate_command(
    *,
    workload: Annotated[Path, typer.Argument(metavar="WORKLOAD.toml", help="Simulate the agents of this file.")],
    policy: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Simulate this policy; may be repeated. Default: all of them, and bounds."),
    ] = None,
    agents: Annotated[
        int | None,
        typer.Option(metavar="N", help="Simulate N agents in the first group of the file. Default: as it says."),
    ] = None,
    trace: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Write a trace of the one --policy for Perfetto here. Default: nowhere."),
    ] = None,
    as_json: options.Json = False,
) -> options.Run:
    """Simulate WORKLOAD under each policy: how long agents wait when they resume, tokens a second, bytes swapped."""
    return lambda: run_simulation(simulation_job(workload, policy or [], agents, trace, as_json=as_json))


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulationJob:
    """One run, every option checked. Without names all policies and the bounds are simulated."""

    path: Path
    workload: SessionWorkload
    policies: tuple[SwapPolicy, ...]
    with_bounds: bool
    trace: Path | None
    json: bool


def simulation_job(
    path: Path, names: list[str], agents: int | None, trace: str | None, *, as_json: bool
) -> SimulationJob:
    """The job that the options ask for."""
    policies = tuple(parse_option("--policy", partial(policy_named, name)) for name in dict.fromkeys(names))
    if len(policies) != 1:
        refuse({"--trace": trace}, "a trace is of one policy", fix="name it with --policy")
    workload = load_workload(path)
    if agents is not None:
        if agents < 1:
            raise InvalidConfig(f"--agents: {agents} is not 1 or more", fix="give a count")
        workload = parse_option("--agents", lambda: with_agents(workload, agents))
    return SimulationJob(
        path=path,
        workload=workload,
        policies=policies or POLICIES,
        with_bounds=not policies,
        trace=None if trace is None else require_writable(parse_file(trace, "--trace"), "--trace", never=path),
        json=as_json,
    )


def run_simulation(job: SimulationJob) -> int:
    """Print a row for each policy; returns 0."""
    recording = Recording(is_on=job.trace is not None)
    results = [simulate(job.workload, policy, recording) for policy in job.policies]
    if job.with_bounds:
        results.extend(bounds(job.workload))
    if job.trace is not None:
        write_atomic(job.trace, encode_recording(recording, f"{job.path.stem}: {results[0].policy}", _names(job)))
    return _print(job, results)


def _print(job: SimulationJob, results: list[SimulationResult]) -> int:
    if job.json:
        print_json(record(job.workload, results) | {"trace": job.trace and str(job.trace)})
        return 0
    written = [f"wrote {job.trace}"] if job.trace else []
    render.print_lines(render.console(), [*lines(job.path.stem, job.workload, results), *written])
    return 0


def _names(job: SimulationJob) -> tuple[str, ...]:
    return tuple(f"{group.name} {number}" for group in job.workload.groups for number in range(group.count))
