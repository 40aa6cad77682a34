"""``tmmu diff``: how much more memory one plan needs than another, and which line of the model causes it."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Annotated

import typer

from tmmu.cli import options
from tmmu.cli.diff_inputs import DiffInput, Options, parse_side, plan_sides, require_use
from tmmu.cli.error_boundary import conclude, print_json
from tmmu.cli.option_groups import OptionGroup, expand_groups
from tmmu.cli.options import CaptureOptions, PlanningOptions
from tmmu.cli.output import render
from tmmu.cli.output.diff_output import code, markdown, markdown_sections, print_report, print_sections
from tmmu.cli.output.new_model_report import (
    NewModelReport,
    new_model_headline,
    new_model_record,
    new_model_report,
    new_model_sections,
    new_model_verdict,
)
from tmmu.cli.parsing import parse_option
from tmmu.errors import InvalidConfig, PeakOverLimit, error_record
from tmmu.planner.arenas import readable_size
from tmmu.summary.diff_report import (
    DiffReport,
    Figure,
    Limit,
    compare,
    figures_over,
    largest_cause,
    parse_limit,
)
from tmmu.summary.diff_text import plan_setting

app = typer.Typer(add_completion=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class DiffCommandOptions(OptionGroup):
    """Options of ``tmmu diff`` alone."""

    fail_over: Annotated[
        str | None,
        typer.Option(metavar="LIMIT", help="Exit with 3 where more than 1%, or 64MiB, is added. Default: never."),
    ] = None
    as_markdown: Annotated[
        bool, typer.Option("--markdown", help="Print Markdown for a comment on a pull request. Default: text.")
    ] = False
    as_json: options.Json = False


@app.command()
@expand_groups
def diff(
    *,
    before: Annotated[
        str,
        typer.Argument(
            metavar="A", help="Compare with this: NAME.plan.cbor, a MODEL of tmmu plan, or git:REV: before either."
        ),
    ],
    after: Annotated[str, typer.Argument(metavar="B", help="Say what this needs more, named in the same way.")],
    settings: DiffCommandOptions,
    capture: CaptureOptions,
    planning: PlanningOptions,
) -> options.Run:
    """Say what B needs more than A, and which line of the model makes the difference."""
    plan_options = dict((*capture.given_options(), *planning.given_options()))
    return lambda: run_diff(diff_job((before, after), plan_options, settings))


@dataclass(frozen=True, slots=True, kw_only=True)
class DiffJob:
    """One run of ``tmmu diff``, every option checked."""

    sides: tuple[DiffInput, DiffInput]
    options: Options
    limit: Limit | None
    json: bool
    markdown: bool


def diff_job(names: tuple[str, str], plan_options: Mapping[str, object], settings: DiffCommandOptions) -> DiffJob:
    """The job that the options ask for; refuses what makes no sense before anything slow starts."""
    if settings.as_json and settings.as_markdown:
        raise InvalidConfig("--json and --markdown both say how to print", fix="give one of them")
    sides = (parse_side(names[0]), parse_side(names[1]))
    texts = {option: _texts(value) for option, value in plan_options.items()}
    require_use(texts, sides)
    text = settings.fail_over
    return DiffJob(
        sides=sides,
        options=texts,
        limit=None if text is None else parse_option("--fail-over", lambda: parse_limit(text)),
        json=settings.as_json,
        markdown=settings.as_markdown,
    )


def _texts(value: object) -> list[str]:
    """An option's values as words of a command line; empty if it is not given."""
    if value is None or value is False:
        return []
    return [str(item) for item in value] if isinstance(value, list) else [str(value)]


def run_diff(job: DiffJob) -> int:
    """Print the report; returns 0, or 3 if a limit is exceeded. A new model exceeds none."""
    before, after = plan_sides(job.sides, job.options)
    names = [side.name for side in job.sides]
    if before is None:
        return _report_new_model(job, new_model_report(after, absent=names[0], name=names[1]))
    report = compare(before, after, names=names)
    over_limit = figures_over(report, job.limit)
    error = _refusal(report, over_limit, job.limit) if over_limit and job.limit else None
    if job.json:
        record = asdict(report)
        eager = record.pop("eager")  # new keys come last
        refusal = {"over": [figure.name for figure in over_limit], "error": error and error_record(error)}
        print_json(record | refusal | {"eager": eager})
    elif job.markdown:
        render.print_lines(render.console(), markdown(report))
    else:
        print_report(render.console(), report)
    return conclude(error)


def _report_new_model(job: DiffJob, report: NewModelReport) -> int:
    """Print the report of a new model; returns 0."""
    if job.json:
        record = new_model_record(report)
        eager = record.pop("eager")
        print_json(record | {"over": [], "error": None, "eager": eager})
    elif job.markdown:
        about = f"{code(report.after.name)}: {plan_setting(report.after)}"
        parts = new_model_sections(report)
        render.print_lines(render.console(), markdown_sections(new_model_verdict(report), about, parts))
    else:
        print_sections(render.console(), new_model_headline(report), new_model_sections(report))
    return 0


def _refusal(report: DiffReport, over_limit: Sequence[Figure], limit: Limit) -> PeakOverLimit:
    growth = " and ".join(
        f"{figure.name} by {figure.change} bytes ({readable_size(figure.change)})" for figure in over_limit
    )
    cause = largest_cause(report)
    by = f", most of it by {cause[0].source or cause[0].op}" if cause else ""
    return PeakOverLimit(
        f"{report.after.name} needs more than {report.before.name}: {growth}, limit {limit.text}{by}",
        fix="make it smaller, or accept it: raise the limit once, or record the new plan",
        over={figure.name: figure.change for figure in over_limit},
        limit=limit.text,
    )
