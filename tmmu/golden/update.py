"""Recording a golden folder anew: the one way in which its files are written."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tmmu.codec.files import read_ordinary, remove_unfinished, write_together
from tmmu.errors import GoldenMismatch
from tmmu.golden import store
from tmmu.golden.cases import MANIFEST, Case, Config, graph_file
from tmmu.golden.check import Finding, check_case, contents
from tmmu.golden.formats import new_files
from tmmu.golden.journal import Journal, cut_off, forget_journal, read_journal, write_journal
from tmmu.golden.lock import locked
from tmmu.golden.replay import Replay


@dataclass(frozen=True, slots=True, kw_only=True)
class Updated:
    """What an update found moved, which files it wrote, and which it removed."""

    moved: tuple[Finding, ...]
    written: tuple[str, ...]
    removed: tuple[str, ...]


def update(folder: Path, cases: Sequence[Case], replays: Mapping[str, Mapping[Config, Replay]]) -> Updated:
    """The folder holds what ``replays`` (by case and configuration) say; all of it is written together or none.

    Who is killed between two renames leaves files of both kinds and a note of what moved; the next update says it
    again. ``GoldenMismatch`` where planner, simulator and judge disagree, where a file of an old format is no longer
    what it was, or where a case that is not among ``replays`` changed.
    """
    with locked(folder):
        return _update(folder, cases, replays)


def _update(folder: Path, cases: Sequence[Case], replays: Mapping[str, Mapping[Config, Replay]]) -> Updated:
    remove_unfinished(folder)
    left, sums = read_journal(folder), _recorded(folder)
    chosen = [case for case in cases if case.name in replays]
    moved = tuple(one for case in chosen for one in _moves(folder, case, replays[case.name], sums))
    _require_agreement(moved)
    _require_unchanged(folder, cases, chosen, sums)
    kept = {case.name: _kept(folder, case, replays[case.name]) for case in chosen if case.keep}
    old = dict(new_files(sums, kept))
    _require_known(folder, sums, old)
    removed = _leftovers(folder, cases, {*sums, *left.removed})
    files = {name: data for case in chosen for name, data in contents(folder, case, replays[case.name])} | old
    files[store.SUMS] = _sums(folder, files, removed).encode()
    changed = {name: data for name, data in files.items() if not _holds(folder / name, data)}
    moved = _joined(cut_off(folder, cases, left), moved)
    _carry_out(folder, moved, changed, removed)
    return Updated(moved=moved, written=tuple(changed), removed=removed)


def _carry_out(folder: Path, moved: Sequence[Finding], changed: Mapping[str, bytes], removed: Sequence[str]) -> None:
    """Files are written and removed, and nothing tells any more that it was under way."""
    if changed or removed:
        sums = {name: store.sum_of(data) for name, data in changed.items()}
        write_journal(folder, Journal(moved=tuple(moved), sums=sums, removed=tuple(removed)))
    for name in changed:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
    write_together([(folder / name, data) for name, data in changed.items()])
    for name in removed:
        (folder / name).unlink()
    forget_journal(folder)


def _joined(before: Sequence[Finding], now: Sequence[Finding]) -> tuple[Finding, ...]:
    """What an update that was cut off had found, and what is found beside that."""
    said = {(one.case, one.config, one.kind) for one in before}
    begun = {one.case for one in before}
    more = [one for one in now if (one.case, one.config, one.kind) not in said]
    return (*before, *(one for one in more if one.case not in begun or one.kind != "stale"))


def _recorded(folder: Path) -> Mapping[str, str]:
    """The sums as they were written; nothing where none ever were."""
    return store.read_sums(folder) if (folder / store.SUMS).exists() else {}


def _moves(folder: Path, case: Case, replays: Mapping[Config, Replay], sums: Mapping[str, str]) -> Iterator[Finding]:
    """What moved; of a case whose graph is another, that alone: nothing recorded says anything of it."""
    found = tuple(check_case(folder, case, replays))
    recorded = None if case.recipe else sums.get(graph_file(case))
    if recorded is None or recorded == store.sum_of(read_ordinary(folder / graph_file(case))):
        return iter(found)
    other = Finding(case=case.name, kind="graph", what="another graph than was recorded")
    return iter([other, *(one for one in found if one.kind == "disagreement")])


def _require_agreement(findings: Sequence[Finding]) -> None:
    for one in findings:
        if one.kind == "disagreement":
            raise GoldenMismatch(f"{one.case}, {one.config}: {one.what}", fix="correct the planner, then update")


def _kept(folder: Path, case: Case, replays: Mapping[Config, Replay]) -> tuple[bytes, bytes]:
    """Graph and plan of a case as they go among the files of old formats."""
    return read_ordinary(folder / graph_file(case)), replays[case.review].plan


def _leftovers(folder: Path, cases: Sequence[Case], own: Collection[str]) -> tuple[str, ...]:
    """Files that an update made for a case that is gone. What it did not make it does not remove, but refuses."""
    wanted = store.expected(cases)
    found = [name for name in store.present(folder) if name not in wanted and not store.is_kept(name)]
    for name in found:
        if name not in own or not name.endswith(store.MADE):
            raise GoldenMismatch(f"{folder / name} belongs to no case", fix=f"add one to {MANIFEST}, or delete it")
    return tuple(found)


def _require_unchanged(folder: Path, cases: Sequence[Case], chosen: Sequence[Case], sums: Mapping[str, str]) -> None:
    """What this update is not about is as it was: the other cases, and the files of old formats."""
    others = {name for case in cases if case not in chosen for name in store.files_of(case)}
    found = store.present(folder)
    for name, digest in sums.items():
        old = name.startswith(f"{store.FORMATS}/")
        if (old or name in others) and (name not in found or store.sum_of(read_ordinary(folder / name)) != digest):
            fix = "restore it from version control" if old else "update its case too"
            raise GoldenMismatch(f"{folder / name} is not as it was written", fix=fix)


def _require_known(folder: Path, sums: Mapping[str, str], new: Mapping[str, bytes]) -> None:
    """Without sums nothing says what a file of an old format was: only those are taken that this update would write."""
    for name in store.present(folder) if not sums else ():
        if name.startswith(f"{store.FORMATS}/") and new.get(name) != read_ordinary(folder / name):
            what = f"{folder / store.SUMS} is not there, and an earlier update made {name}"
            raise GoldenMismatch(what, fix=f"restore {store.SUMS} from version control")


def _sums(folder: Path, files: Mapping[str, bytes], removed: Sequence[str]) -> str:
    """The sums of all files as they will be."""
    sums = {name: store.sum_of(read_ordinary(folder / name)) for name in store.present(folder) if name not in removed}
    return store.print_sums(sums | {name: store.sum_of(data) for name, data in files.items()})


def _holds(path: Path, data: bytes) -> bool:
    return path.exists() and read_ordinary(path) == data
