"""``tmmu verify``: judge a plan by executing it abstractly on its graph, and its graph by what it was made of."""

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from tmmu.cli import options
from tmmu.cli.error_boundary import print_json
from tmmu.cli.option_groups import expand_groups
from tmmu.cli.options import TokenOptions
from tmmu.cli.parsing import DEFAULT_SEED, parse_token
from tmmu.codec.fitted import base_path, load_base
from tmmu.codec.load import ir_path, load_graph, load_judged, load_plan
from tmmu.codec.printable import printable
from tmmu.errors import InvalidConfig, PlanMismatch
from tmmu.ir.fit import AGAIN
from tmmu.ir.graph import Graph
from tmmu.ir.plan import Plan
from tmmu.ir.rewrite import FROM_HOST, PARTIAL_KINDS, SUBLIST
from tmmu.planner.token import token_from_seed

BaseFile = Annotated[
    Path | None,
    typer.Option(
        "--base",
        metavar="FILE",
        help="Read here the graph that PLAN's was made of, and prove that both mean the same. Default: not proven.",
    ),
]

app = typer.Typer(add_completion=False)


@app.command()
@expand_groups
def verify(
    *,
    plan: options.PlanFile,
    ir: options.GraphFile = None,
    base: BaseFile = None,
    token: TokenOptions,
    as_json: options.Json = False,
) -> options.Run:
    """Execute PLAN abstractly on its graph, and check every byte, span, slot and address."""
    return lambda: run_verify(
        VerifyJob(
            plan=plan, ir=ir, base=base, token=parse_token(token.seed, token.token, token.token_file), json=as_json
        )
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyJob:
    """One run of ``tmmu verify``, every option checked."""

    plan: Path
    ir: Path | None
    base: Path | None
    token: bytes | None
    json: bool


def run_verify(job: VerifyJob) -> int:
    """Print the verdicts; returns 0 for a sound plan, else the judge's error is raised."""
    plan = load_plan(job.plan)
    token = _token_of(plan, job.token)
    if plan.fit is None and job.base is not None:
        raise InvalidConfig(f"--base: {job.plan} is for a graph as it is, made of no other", fix="leave it out")
    base = None if job.base is None else load_base(job.base, plan, token, plan_name=str(job.plan))
    ir = ir_path(job.ir, job.plan)
    is_fused = plan.fit is not None and plan.fit.fused is not None
    if base is None or is_fused or job.ir is not None or ir.exists():
        _judge_with_graph(job, plan, ir, token)
    if job.json:
        counts = {"ops": len(plan.order), "buffers": len(plan.buffers)}
        meaning = {"meaning_checked": None if plan.fit is None else base is not None}
        record = {"sound": True, "addresses_checked": token is not None, "digest": plan.digest.hex()}
        print_json(record | counts | meaning)
        return 0
    addresses = "" if token else "; addresses not checked: give --seed, --token or --token-file"
    verdict = f"sound: {job.plan}, {len(plan.order)} ops, {len(plan.buffers)} buffers{addresses}"
    for line in (verdict, *_meaning_lines(job, plan, base)):
        print(printable(line))  # noqa: T201
    return 0


def _judge_with_graph(job: VerifyJob, plan: Plan, ir: Path, token: bytes | None) -> None:
    """The plan is sound for the graph of ``ir``; where that is missing or the base, the error says so."""
    if plan.fit is None:
        load_judged(plan, ir, token, plan_name=str(job.plan))
        return
    if not ir.exists():
        other = "" if plan.fit.fused else f", or name the graph that it was made of: --base {base_path(job.plan)}"
        raise InvalidConfig(
            f"cannot read {ir}: there is no such file, and {job.plan} is of that graph",
            fix=f"put it there{other}",
            path=str(ir),
        )
    try:
        load_judged(plan, ir, token, plan_name=str(job.plan))
    except PlanMismatch as error:
        if load_graph(ir).ir_hash != plan.fit.rewrite.base_hash:
            raise
        raise PlanMismatch(
            f"{ir} is the graph that the one of {job.plan} was made of", fix=f"name it with --base {ir}"
        ) from error


def _meaning_lines(job: VerifyJob, plan: Plan, base: Graph | None) -> list[str]:
    """What was found of the rewrite; empty for a plan without one."""
    if plan.fit is None:
        return []
    if base is None:
        return [f"meaning not checked: give --base {base_path(job.plan)}, the graph that this one was made of"]
    counts = Counter(plan.fit.rewrite.kind)
    again = sum(counts[kind] for kind in AGAIN)
    pieces = sum(counts[kind] for kind in PARTIAL_KINDS)
    parts = f"parts of lists {counts[SUBLIST]}" + (f", other parts {pieces}" if pieces else "")
    near = f"; near, not equal: {', '.join(plan.fit.near)}" if plan.fit.near else ""
    host = f", to the host and back {counts[FROM_HOST]}" if counts[FROM_HOST] else ""
    fused = "" if plan.fit.fused is None else "; its ops are fused since, which a run checks and no file can"
    return [f"means its base: {job.base}, {len(base.ops)} ops; run again {again}, {parts}{host}{near}{fused}"]


def _token_of(plan: Plan, token: bytes | None) -> bytes | None:
    """The token to recompute addresses with: ``token``, or the default seed's if the plan was made with it."""
    if token is not None:
        return token
    default = token_from_seed(DEFAULT_SEED)
    return default if default[:8] == plan.token_prefix else None
