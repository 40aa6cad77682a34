"""Checks of a golden folder: files that are missing, damaged or unreadable, and plans that differ from the recorded."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tmmu.codec.files import read_file
from tmmu.codec.read import read_plan
from tmmu.errors import GoldenMismatch, TmmuError, UserError
from tmmu.golden import store
from tmmu.golden.cases import CONFIGS, MANIFEST, GoldenCase, PlanConfig, graph_of, load, read_cases
from tmmu.golden.difference import first_difference
from tmmu.golden.digests import KINDS, MAJOR
from tmmu.golden.formats import unreadable_files
from tmmu.golden.replay import PlanRow, Replay
from tmmu.ir.plan import Plan

FILES: Final = "files"
"""``Finding.case`` of findings about the folder's files."""

NO_BUFFER_NAMED: Final = "which buffer is not told by digests alone"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One difference from the record; the fields are keys of the JSON output.

    ``kind`` is one of ``KINDS`` for a digest that moved, else ``missing``, ``orphan``, ``damaged``, ``stale``,
    ``unreadable``, ``refusal``, ``graph`` or ``disagreement``. ``config`` and ``seeds`` are empty if it is
    about a file.
    """

    case: str
    kind: str
    what: str
    config: str = ""
    seeds: tuple[int, ...] = ()

    @property
    def is_new(self) -> bool:
        """Whether it is a plan that was never recorded."""
        return self.kind == "missing" and bool(self.config)

    @property
    def is_major(self) -> bool:
        """Whether replays rely on what moved."""
        return self.kind in MAJOR or self.kind == "refusal"


def check_files(folder: Path, cases: Sequence[GoldenCase]) -> Iterator[Finding]:
    """Missing, orphaned and damaged files of the folder, and unreadable files of old formats."""
    sums: Mapping[str, str] | None
    try:
        sums = store.read_sums(folder)
    except TmmuError as error:
        sums = None
        yield Finding(case=FILES, kind="damaged", what=error.what)
    expected_names, names = store.expected_files(cases), store.list_files(folder)
    for name in sorted(expected_names.union(sums or ()) - set(names)):
        yield Finding(case=FILES, kind="missing", what=f"{name} is not there")
    for name in names:
        if name not in expected_names and not store.is_kept(name):
            yield Finding(case=FILES, kind="orphan", what=f"{name} belongs to no case of {MANIFEST}")
        else:
            yield from _damage(folder, name, sums)
    for name, why in unreadable_files(folder):
        yield Finding(case=FILES, kind="unreadable", what=f"{name}: {why}")


def _damage(folder: Path, name: str, sums: Mapping[str, str] | None) -> Iterator[Finding]:
    """A finding if a file cannot be read or has another checksum."""
    try:
        checksum = store.checksum_of(read_file(folder / name))
    except TmmuError as error:
        yield Finding(case=FILES, kind="unreadable", what=error.what)
        return
    if sums is not None and sums.get(name) != checksum:
        why = "is not as it was written" if name in sums else f"is not in {store.SUMS}"
        yield Finding(case=FILES, kind="damaged", what=f"{name} {why}")


def recorded_cases(folder: Path) -> tuple[GoldenCase, ...]:
    """The cases of a folder; ``GoldenMismatch`` where their list cannot be read, and is not as it was recorded."""
    try:
        return read_cases(folder)
    except UserError as error:
        if not _is_changed(folder, MANIFEST):
            raise
        fix = f"restore {MANIFEST} from version control, or correct it and run tmmu golden update"
        raise GoldenMismatch(f"not as it was recorded: {error.what}", fix=fix) from error


def _is_changed(folder: Path, name: str) -> bool:
    """Whether the file was recorded with another checksum."""
    with suppress(TmmuError):
        recorded = store.read_sums(folder).get(name)
        with suppress(TmmuError):
            return recorded not in (None, store.checksum_of(read_file(folder / name)))
        return recorded is not None
    return False


def unplannable_cases(folder: Path, cases: Sequence[GoldenCase]) -> Iterator[Finding]:
    """The cases whose graph cannot be read or is not legal."""
    for case in cases:
        try:
            if not case.recipe:
                graph_of(folder, case)
        except TmmuError as error:
            yield Finding(case=case.name, kind="unreadable", what=error.what)


def check_case(folder: Path, case: GoldenCase, replays: Mapping[PlanConfig, Replay]) -> Iterator[Finding]:
    """Differences of a case from its record; if there are none, its stale files."""
    differences = tuple(_differences(folder, case, replays))
    yield from differences
    for name, data in () if differences else case_files(folder, case, replays):
        if _is_stale(folder / name, data):
            yield Finding(case=case.name, kind="stale", what=f"{name} is not what an update would write")


def _is_stale(path: Path, data: bytes) -> bool:
    """Whether a file is readable and has other bytes."""
    with suppress(TmmuError):
        return path.is_file() and read_file(path) != data
    return False


def _differences(folder: Path, case: GoldenCase, replays: Mapping[PlanConfig, Replay]) -> Iterator[Finding]:
    """Findings of all configurations, then rows that are recorded and no longer asked for."""
    rows, plans = read_records(folder, case)
    for config in CONFIGS:
        replay = replays[config]
        for fault in replay.faults:
            yield Finding(case=case.name, config=str(config), kind="disagreement", what=fault)
        yield from _plan_findings(folder, case, replay, rows, plans.get(config))
    gone = rows.keys() - {(row.seed, row.config) for replay in replays.values() for row in replay.rows}
    for seed, config in sorted(gone, key=lambda row: (str(row[1]), row[0])):
        detail = "is recorded and no longer asked for"
        yield Finding(case=case.name, config=str(config), seeds=(seed,), kind="orphan", what=detail)


def case_files(folder: Path, case: GoldenCase, replays: Mapping[PlanConfig, Replay]) -> Iterator[tuple[str, bytes]]:
    """(name, bytes) of the files that an update writes for a case."""
    rows = [row for config in CONFIGS for row in replays[config].rows]
    rows.sort(key=lambda row: (case.seeds.index(row.seed), CONFIGS.index(row.config)))
    yield store.digests_file(case), store.print_digests(case, rows).encode()
    if not case.recipe:
        yield store.plans_file(case), store.encode_plans({config: replays[config].plan for config in CONFIGS})
        plan = replays[case.review].plan
        text = store.print_review(case, graph_of(folder, case), read_plan(plan) if plan else None)
        yield store.review_file(case), text.encode()


def read_records(
    folder: Path, case: GoldenCase
) -> tuple[Mapping[tuple[int, PlanConfig], tuple[str, ...]], Mapping[PlanConfig, Plan]]:
    """The digests and plans of a case as they lie in the folder; nothing for a file that is missing or damaged."""
    rows: Mapping[tuple[int, PlanConfig], tuple[str, ...]] = {}
    plans: Mapping[PlanConfig, Plan] = {}
    with suppress(TmmuError):
        rows = store.parse_digests(read_file(folder / store.digests_file(case)).decode("utf-8", errors="replace"))
    with suppress(TmmuError):
        plans = {} if case.recipe else load(folder / store.plans_file(case), store.decode_plans)
    return rows, plans


def _plan_findings(
    folder: Path,
    case: GoldenCase,
    now: Replay,
    rows: Mapping[tuple[int, PlanConfig], tuple[str, ...]],
    before: Plan | None,
) -> Iterator[Finding]:
    """One finding for each way in which rows differ, with all the seeds that differ in it, and the first buffer."""
    seeds: dict[tuple[str, str], list[int]] = {}
    for row in now.rows:
        for kind, detail in _row_changes(row, rows.get((row.seed, row.config))):
            seeds.setdefault((kind, detail), []).append(row.seed)
    recorded_plan = before if now.plan else None
    for (kind, detail), moved in seeds.items():
        if detail or recorded_plan is None or now.rows[0].seed not in moved:
            message = detail or NO_BUFFER_NAMED
        else:
            message = first_difference(graph_of(folder, case), kind, recorded_plan, read_plan(now.plan))
        yield Finding(case=case.name, config=str(now.rows[0].config), seeds=tuple(moved), kind=kind, what=message)


def _row_changes(row: PlanRow, before: tuple[str, ...] | None) -> Iterator[tuple[str, str]]:
    """(kind, detail) of each difference between a row and its record.

    The plan's own digest covers the others: it counts only where no other moved.
    """
    if before is None:
        yield "missing", "is asked for and not recorded"
    elif len(before) != len(KINDS) or len(row.digests) != len(KINDS):
        if before != row.digests:
            yield "refusal", f"is now {_describe_outcome(row.digests)}, was {_describe_outcome(before)}"
    else:
        moved = [kind for kind, old, new in zip(KINDS, before, row.digests, strict=True) if old != new]
        if len(moved) > 1 and moved[-1] == "plan":
            moved.pop()
        yield from ((kind, "") for kind in moved)


def _describe_outcome(digests: Sequence[str]) -> str:
    return "planned" if len(digests) == len(KINDS) else f"refused with {' '.join(digests):.80}"
