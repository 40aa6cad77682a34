"""Plans that a test suite has recorded, and by how much a new plan has grown beyond them.

A recorded plan is ``NAME.plan.cbor`` with its graph ``NAME.ir.cbor``, as ``tmmu plan`` writes them; ``tmmu diff`` takes
it too. Without torch.
"""

import re
from hashlib import blake2b
from pathlib import Path
from typing import Final

from tmmu.api.memory_plan import MemoryPlan
from tmmu.errors import InvalidConfig, PeakOverLimit, PlanMismatch
from tmmu.planner.arenas import readable_size
from tmmu.summary.diff_report import Limit, parse_limit

FOLDER: Final = "memory_plans"
"""Beside the test file."""
_PLAIN_NAME: Final = re.compile(r"(?P<test>[A-Za-z0-9_.=-]+)(\[(?P<case>[A-Za-z0-9_.=-]+)\])?")
_NOT_IN_NAMES: Final = re.compile(r"[^A-Za-z0-9_.=-]+")
_LONGEST_NAME: Final = 120
"""Characters of a test's name in a file's."""
_LISTED: Final = 30
"""Lines of the difference."""


def parse_growth(limit: str | int) -> Limit:
    """``"1%"``, a size such as ``"64MiB"``, or bytes; ``INVALID_CONFIG`` for anything else."""
    if type(limit) is not int and not isinstance(limit, str):
        raise InvalidConfig(f"{limit!r:.80} is no limit", fix='write "1%", a size such as "64MiB", or bytes')
    return parse_limit(str(limit))


def recorded_path(test_file: Path, name: str) -> Path:
    """Where the plan ``name`` of a test file lies, each name elsewhere; ``INVALID_CONFIG`` for what is no name.

    What a file name may not have is ``-``, and a digest tells such names, and long ones, apart.
    """
    if not isinstance(name, str) or not name:
        raise InvalidConfig(f"name={name!r:.80} is no name of a plan", fix="write a text")
    plain = _PLAIN_NAME.fullmatch(name)
    if plain and len(name) <= _LONGEST_NAME:
        part = "-".join(filter(None, (plain["test"], plain["case"])))
    else:
        readable = _NOT_IN_NAMES.sub("-", name)[:_LONGEST_NAME].strip("-")
        part = f"{readable}-{blake2b(name.encode('utf-8', 'surrogatepass'), digest_size=4).hexdigest()}"
    return test_file.parent / FOLDER / f"{test_file.stem}.{part}.plan.cbor"


def require_no_growth(before: MemoryPlan, after: MemoryPlan, limit: Limit, *, name: str) -> None:
    """``PEAK_OVER_LIMIT`` where a figure of either run is over the limit, with the text of ``tmmu diff``."""
    settings = [(plan.graph.target, plan.plan.mode) for plan in (before, after)]
    if settings[0] != settings[1]:
        was, now = (f"{mode} on {device}" for device, mode in settings)
        raise PlanMismatch(f"{name} was recorded for {was}, and this plan is for {now}", fix="record it again")
    difference = before.diff(after)
    over = difference.over(limit.text)
    if over:
        raise PeakOverLimit(
            f"more memory than {name} says: {', '.join(over)} by more than {limit.text}",
            fix="make it smaller, or record the new plan: pytest --tmmu-update",
            over=list(over),
            limit=limit.text,
            difference="\n".join(str(difference).splitlines()[:_LISTED]),
        )


def require_steady(plan: MemoryPlan, limit: Limit) -> None:
    """``PEAK_OVER_LIMIT`` where each run of a step leaves more than it found; a model leaves nothing.

    ``INVALID_CONFIG`` for a percentage: a step that leaves nothing has none.
    """
    if limit.bytes is None:
        raise InvalidConfig(
            f"per_step={limit.text!r} is a share of nothing", fix='write bytes, or a size such as "64KiB"'
        )
    growth = plan.first_step.growth if plan.first_step else 0
    if growth > limit.bytes:
        raise PeakOverLimit(
            f"each step leaves {growth} bytes ({readable_size(growth)}) more than it found, allowed {limit.text}",
            fix="drop what a step keeps, such as losses that still hold their graph, or allow it: per_step=...",
            over=growth,
            limit=limit.text,
        )
