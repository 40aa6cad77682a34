"""``tmmu diff``: what a second plan needs that a first did not, and which line of the model makes the difference."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Final

from tmmu.cli import render
from tmmu.cli.boundary import conclude, print_json
from tmmu.cli.compared import Figure, Limit, Report, blame, compare, over
from tmmu.cli.diff_text import markdown, print_report
from tmmu.cli.options import named
from tmmu.cli.sides import Options, Spec, parse_side, plan_sides, require_use
from tmmu.errors import InvalidConfig, PeakOverLimit, error_record
from tmmu.planner.arenas import parse_size, readable_size

PERCENT: Final = re.compile(r"([0-9]{1,6})(?:\.([0-9]{1,4}))?\s*%", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class DiffJob:
    """One run of ``tmmu diff``, every option checked."""

    sides: tuple[Spec, ...]
    options: Options
    limit: Limit | None
    json: bool
    markdown: bool


def diff_job(  # noqa: PLR0913 - one parameter per option
    *, before: str, after: str, options: Mapping[str, object], fail_over: str | None, as_json: bool, as_markdown: bool
) -> DiffJob:
    """The job that the options ask for; refuses what makes no sense before anything slow starts."""
    if as_json and as_markdown:
        raise InvalidConfig("--json and --markdown both say how to print", fix="give one of them")
    sides = (parse_side(before), parse_side(after))
    given = {option: _texts(value) for option, value in options.items()}
    require_use(given, sides)
    return DiffJob(sides=sides, options=given, limit=parse_limit(fail_over), json=as_json, markdown=as_markdown)


def _texts(value: object) -> list[str]:
    """An option's values as they are written on a command line; none where it is not given."""
    if value is None or value is False:
        return []
    return [str(one) for one in value] if isinstance(value, list) else [str(value)]


def parse_limit(text: str | None) -> Limit | None:
    """``1%``, ``0.5 %`` or a size such as ``64MiB``."""
    if text is None:
        return None
    found = PERCENT.fullmatch(text.strip())
    if found:
        whole, part = found[1], (found[2] or "").ljust(4, "0")
        return Limit(text=text.strip(), bytes=None, ppm=int(whole + part))
    return Limit(text=text.strip(), bytes=named("--fail-over", lambda: parse_size(text)), ppm=0)


def run_diff(job: DiffJob) -> int:
    """The report printed; 0, or 3 where a limit is passed."""
    before, after = plan_sides(job.sides, job.options)
    report = compare(before, after, names=[side.text for side in job.sides])
    passed = over(report, job.limit)
    error = _refusal(report, passed, job.limit) if passed and job.limit else None
    if job.json:
        print_json(asdict(report) | {"over": [one.name for one in passed], "error": error and error_record(error)})
    elif job.markdown:
        render.print_lines(render.console(), markdown(report))
    else:
        print_report(render.console(), report)
    return conclude(error)


def _refusal(report: Report, passed: Sequence[Figure], limit: Limit) -> PeakOverLimit:
    grown = " and ".join(f"{one.name} by {one.change} bytes ({readable_size(one.change)})" for one in passed)
    found = blame(report)
    by = f", most of it by {found[0].source or found[0].op}" if found else ""
    return PeakOverLimit(
        f"{report.after.name} needs more than {report.before.name}: {grown}, limit {limit.text}{by}",
        fix="make it smaller, or accept it: raise the limit once, or record the new plan",
        over={one.name: one.change for one in passed},
        limit=limit.text,
    )
