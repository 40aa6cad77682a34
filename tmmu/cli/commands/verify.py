"""``tmmu verify``: judge a plan by executing it abstractly on its graph."""

from dataclasses import dataclass
from pathlib import Path

import typer

from tmmu.cli import options
from tmmu.cli.error_boundary import print_json
from tmmu.cli.option_groups import expand_groups
from tmmu.cli.options import TokenOptions
from tmmu.cli.parsing import DEFAULT_SEED, parse_token
from tmmu.codec.load import ir_path, load_judged, load_plan
from tmmu.codec.printable import printable
from tmmu.ir.plan import Plan
from tmmu.planner.token import token_from_seed

app = typer.Typer(add_completion=False)


@app.command()
@expand_groups
def verify(
    *, plan: options.PlanFile, ir: options.GraphFile = None, token: TokenOptions, as_json: options.Json = False
) -> options.Run:
    """Execute PLAN abstractly on its graph, and check every byte, span, slot and address."""
    return lambda: run_verify(
        VerifyJob(plan=plan, ir=ir, token=parse_token(token.seed, token.token, token.token_file), json=as_json)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyJob:
    """One run of ``tmmu verify``, every option checked."""

    plan: Path
    ir: Path | None
    token: bytes | None
    json: bool


def run_verify(job: VerifyJob) -> int:
    """Print the verdict; returns 0 for a sound plan, else the judge's error is raised."""
    plan = load_plan(job.plan)
    token = _token_of(plan, job.token)
    load_judged(plan, ir_path(job.ir, job.plan), token, plan_name=str(job.plan))
    if job.json:
        counts = {"ops": len(plan.order), "buffers": len(plan.buffers)}
        print_json({"sound": True, "addresses_checked": token is not None, "digest": plan.digest.hex()} | counts)
        return 0
    addresses = "" if token else "; addresses not checked: give --seed, --token or --token-file"
    verdict = f"sound: {job.plan}, {len(plan.order)} ops, {len(plan.buffers)} buffers{addresses}"
    print(printable(verdict))  # noqa: T201
    return 0


def _token_of(plan: Plan, token: bytes | None) -> bytes | None:
    """The token to recompute addresses with: ``token``, or the default seed's if the plan was made with it."""
    if token is not None:
        return token
    default = token_from_seed(DEFAULT_SEED)
    return default if default[:8] == plan.token_prefix else None
