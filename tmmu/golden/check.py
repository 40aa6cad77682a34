"""Holding a golden folder against the planner: what is missing, damaged, unreadable, or has moved."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tmmu.codec.files import read_ordinary
from tmmu.codec.read import read_plan
from tmmu.errors import GoldenMismatch, TmmuError, UserError
from tmmu.golden import store
from tmmu.golden.cases import CONFIGS, MANIFEST, Case, Config, graph_of, load, read_cases
from tmmu.golden.difference import first_difference
from tmmu.golden.digests import KINDS, MAJOR
from tmmu.golden.formats import unreadable
from tmmu.golden.replay import Replay, Row
from tmmu.ir.plan import Plan

FILES: Final = "files"
"""The ``case`` of a finding that is about no case."""

UNTOLD: Final = "which buffer is not told by digests alone"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that is not as it was recorded.

    ``kind`` is one of ``KINDS`` for what moved, else ``missing``, ``orphan``, ``damaged``, ``stale``, ``unreadable``,
    ``refusal``, ``graph`` or ``disagreement``. ``config`` and ``seeds`` are empty where it is about a file.
    """

    case: str
    kind: str
    what: str
    config: str = ""
    seeds: tuple[int, ...] = ()

    @property
    def new(self) -> bool:
        """Whether nothing was recorded: a plan that is asked for the first time."""
        return self.kind == "missing" and bool(self.config)

    @property
    def major(self) -> bool:
        """Whether what moved is what a replay relies on."""
        return self.kind in MAJOR or self.kind == "refusal"


def check_files(folder: Path, cases: Sequence[Case]) -> Iterator[Finding]:
    """Missing, orphaned and damaged files of the folder, and what of the old formats can no longer be read."""
    sums: Mapping[str, str] | None
    try:
        sums = store.read_sums(folder)
    except TmmuError as error:
        sums = None
        yield Finding(case=FILES, kind="damaged", what=error.what)
    wanted, found = store.expected(cases), store.present(folder)
    for name in sorted(wanted.union(sums or ()) - set(found)):
        yield Finding(case=FILES, kind="missing", what=f"{name} is not there")
    for name in found:
        if name not in wanted and not store.is_kept(name):
            yield Finding(case=FILES, kind="orphan", what=f"{name} belongs to no case of {MANIFEST}")
        else:
            yield from _damage(folder, name, sums)
    for name, why in unreadable(folder):
        yield Finding(case=FILES, kind="unreadable", what=f"{name}: {why}")


def _damage(folder: Path, name: str, sums: Mapping[str, str] | None) -> Iterator[Finding]:
    """Whether a file cannot be read, or is not as the sums say."""
    try:
        found = store.sum_of(read_ordinary(folder / name))
    except TmmuError as error:
        yield Finding(case=FILES, kind="unreadable", what=error.what)
        return
    if sums is not None and sums.get(name) != found:
        why = "is not as it was written" if name in sums else f"is not in {store.SUMS}"
        yield Finding(case=FILES, kind="damaged", what=f"{name} {why}")


def recorded_cases(folder: Path) -> tuple[Case, ...]:
    """The cases of a folder; ``GoldenMismatch`` where their list cannot be read, and is not as it was recorded."""
    try:
        return read_cases(folder)
    except UserError as error:
        if not _is_other(folder, MANIFEST):
            raise
        fix = f"restore {MANIFEST} from version control, or correct it and run tmmu golden update"
        raise GoldenMismatch(f"not as it was recorded: {error.what}", fix=fix) from error


def _is_other(folder: Path, name: str) -> bool:
    """Whether the file was recorded and is not as it was."""
    with suppress(TmmuError):
        recorded = store.read_sums(folder).get(name)
        with suppress(TmmuError):
            return recorded not in (None, store.sum_of(read_ordinary(folder / name)))
        return recorded is not None
    return False


def unplannable(folder: Path, cases: Sequence[Case]) -> Iterator[Finding]:
    """The cases whose graph cannot be read or is not legal."""
    for case in cases:
        try:
            if not case.recipe:
                graph_of(folder, case)
        except TmmuError as error:
            yield Finding(case=case.name, kind="unreadable", what=error.what)


def check_case(folder: Path, case: Case, replays: Mapping[Config, Replay]) -> Iterator[Finding]:
    """What the planner now says of a case and the folder does not; else files that are not as made."""
    found = tuple(_differences(folder, case, replays))
    yield from found
    for name, data in () if found else contents(folder, case, replays):
        if _is_stale(folder / name, data):
            yield Finding(case=case.name, kind="stale", what=f"{name} is not what an update would write")


def _is_stale(path: Path, data: bytes) -> bool:
    """Whether a file can be read and holds something else."""
    with suppress(TmmuError):
        return path.is_file() and read_ordinary(path) != data
    return False


def _differences(folder: Path, case: Case, replays: Mapping[Config, Replay]) -> Iterator[Finding]:
    """Preset by preset and mode by mode."""
    rows, plans = recorded(folder, case)
    for config in CONFIGS:
        now = replays[config]
        for fault in now.faults:
            yield Finding(case=case.name, config=str(config), kind="disagreement", what=fault)
        yield from _moves(folder, case, now, rows, plans.get(config))
    gone = rows.keys() - {(row.seed, row.config) for now in replays.values() for row in now.rows}
    for seed, config in sorted(gone, key=lambda row: (str(row[1]), row[0])):
        what = "is recorded and no longer asked for"
        yield Finding(case=case.name, config=str(config), seeds=(seed,), kind="orphan", what=what)


def contents(folder: Path, case: Case, replays: Mapping[Config, Replay]) -> Iterator[tuple[str, bytes]]:
    """The files of a case that an update makes."""
    rows = [row for config in CONFIGS for row in replays[config].rows]
    rows.sort(key=lambda row: (case.seeds.index(row.seed), CONFIGS.index(row.config)))
    yield store.digests_file(case), store.print_digests(case, rows).encode()
    if not case.recipe:
        yield store.plans_file(case), store.encode_plans({config: replays[config].plan for config in CONFIGS})
        plan = replays[case.review].plan
        text = store.print_review(case, graph_of(folder, case), read_plan(plan) if plan else None)
        yield store.review_file(case), text.encode()


def recorded(folder: Path, case: Case) -> tuple[Mapping[tuple[int, Config], tuple[str, ...]], Mapping[Config, Plan]]:
    """The digests and plans of a case as they lie in the folder; nothing for a file that is missing or damaged."""
    rows: Mapping[tuple[int, Config], tuple[str, ...]] = {}
    plans: Mapping[Config, Plan] = {}
    with suppress(TmmuError):
        rows = store.parse_digests(read_ordinary(folder / store.digests_file(case)).decode("utf-8", errors="replace"))
    with suppress(TmmuError):
        plans = {} if case.recipe else load(folder / store.plans_file(case), store.decode_plans)
    return rows, plans


def _moves(
    folder: Path, case: Case, now: Replay, rows: Mapping[tuple[int, Config], tuple[str, ...]], before: Plan | None
) -> Iterator[Finding]:
    """One finding for each way in which rows differ, with all the seeds that differ in it, and the first buffer."""
    seeds: dict[tuple[str, str], list[int]] = {}
    for row in now.rows:
        for kind, what in _changes(row, rows.get((row.seed, row.config))):
            seeds.setdefault((kind, what), []).append(row.seed)
    told = before if now.plan else None
    for (kind, what), moved in seeds.items():
        if what or told is None or now.rows[0].seed not in moved:
            said = what or UNTOLD
        else:
            said = first_difference(graph_of(folder, case), kind, told, read_plan(now.plan))
        yield Finding(case=case.name, config=str(now.rows[0].config), seeds=tuple(moved), kind=kind, what=said)


def _changes(row: Row, before: tuple[str, ...] | None) -> Iterator[tuple[str, str]]:
    """How a row differs from what was recorded: the kind, and words where the kind does not say all.

    The plan's own digest covers the others: it counts only where no other moved.
    """
    if before is None:
        yield "missing", "is asked for and not recorded"
    elif len(before) != len(KINDS) or len(row.digests) != len(KINDS):
        if before != row.digests:
            yield "refusal", f"is now {_outcome(row.digests)}, was {_outcome(before)}"
    else:
        moved = [kind for kind, old, new in zip(KINDS, before, row.digests, strict=True) if old != new]
        if len(moved) > 1 and moved[-1] == "plan":
            moved.pop()
        yield from ((kind, "") for kind in moved)


def _outcome(digests: Sequence[str]) -> str:
    return "planned" if len(digests) == len(KINDS) else f"refused with {' '.join(digests):.80}"
