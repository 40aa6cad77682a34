"""Update of a golden folder, the only writer of its files.

State: the files, their checksums (``SUMS``) and, while files are renamed, a journal. Invariant: checks come first, and
no file is written unless all of them pass. A killed update leaves old and new files and the journal; running the update
again completes it and reports what the first one found.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tmmu.codec.files import read_file, remove_unfinished, write_together
from tmmu.codec.lock import lock_folder
from tmmu.errors import GoldenMismatch
from tmmu.golden import store
from tmmu.golden.cases import MANIFEST, GoldenCase, PlanConfig, graph_file
from tmmu.golden.check import Finding, case_files, check_case
from tmmu.golden.formats import new_files
from tmmu.golden.journal import Journal, forget_journal, interrupted_findings, read_journal, write_journal
from tmmu.golden.replay import Replay


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateReport:
    """What moved, and the names of the files written and removed."""

    moved: tuple[Finding, ...]
    written: tuple[str, ...]
    removed: tuple[str, ...]


def update(
    folder: Path, cases: Sequence[GoldenCase], replays: Mapping[str, Mapping[PlanConfig, Replay]]
) -> UpdateReport:
    """Record ``replays`` (by case name and configuration) in the folder.

    ``GoldenMismatch`` if planner, simulator and judge disagree, if a file of an old format changed, or if a case
    outside ``replays`` did.
    """
    with lock_folder(folder):
        return _update(folder, cases, replays)


def _update(
    folder: Path, cases: Sequence[GoldenCase], replays: Mapping[str, Mapping[PlanConfig, Replay]]
) -> UpdateReport:
    remove_unfinished(folder)
    journal, sums = read_journal(folder), _recorded_sums(folder)
    chosen = [case for case in cases if case.name in replays]
    moved = tuple(finding for case in chosen for finding in _case_findings(folder, case, replays[case.name], sums))
    _require_agreement(moved)
    _require_unchanged(folder, cases, chosen, sums)
    kept_files = {case.name: _format_files(folder, case, replays[case.name]) for case in chosen if case.keep}
    format_files = dict(new_files(sums, kept_files))
    _require_known_formats(folder, sums, format_files)
    removed = _leftovers(folder, cases, {*sums, *journal.removed})
    files = {
        name: data for case in chosen for name, data in case_files(folder, case, replays[case.name])
    } | format_files
    files[store.SUMS] = _sums(folder, files, removed).encode()
    changed = {name: data for name, data in files.items() if not _holds(folder / name, data)}
    moved = _merge_findings(interrupted_findings(folder, cases, journal), moved)
    _write_files(folder, moved, changed, removed)
    return UpdateReport(moved=moved, written=tuple(changed), removed=removed)


def _write_files(folder: Path, moved: Sequence[Finding], changed: Mapping[str, bytes], removed: Sequence[str]) -> None:
    """Write and remove the files under the protection of the journal."""
    if changed or removed:
        sums = {name: store.checksum_of(data) for name, data in changed.items()}
        write_journal(folder, Journal(moved=tuple(moved), sums=sums, removed=tuple(removed)))
    for name in changed:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
    write_together([(folder / name, data) for name, data in changed.items()], is_locked=True)
    for name in removed:
        (folder / name).unlink()
    forget_journal(folder)


def _merge_findings(before: Sequence[Finding], now: Sequence[Finding]) -> tuple[Finding, ...]:
    """Findings of an interrupted update, then those found now that it had not reported."""
    reported = {(finding.case, finding.config, finding.kind) for finding in before}
    begun = {finding.case for finding in before}
    more = [finding for finding in now if (finding.case, finding.config, finding.kind) not in reported]
    return (*before, *(finding for finding in more if finding.case not in begun or finding.kind != "stale"))


def _recorded_sums(folder: Path) -> Mapping[str, str]:
    """The recorded checksums; empty for a new folder."""
    return store.read_sums(folder) if (folder / store.SUMS).exists() else {}


def _case_findings(
    folder: Path, case: GoldenCase, replays: Mapping[PlanConfig, Replay], sums: Mapping[str, str]
) -> Iterator[Finding]:
    """Findings of a case; if its graph changed, that and disagreements alone, since the record is of another graph."""
    findings = tuple(check_case(folder, case, replays))
    recorded = None if case.recipe else sums.get(graph_file(case))
    if recorded is None or recorded == store.checksum_of(read_file(folder / graph_file(case))):
        return iter(findings)
    graph_finding = Finding(case=case.name, kind="graph", what="another graph than was recorded")
    return iter([graph_finding, *(finding for finding in findings if finding.kind == "disagreement")])


def _require_agreement(findings: Sequence[Finding]) -> None:
    for finding in findings:
        if finding.kind == "disagreement":
            raise GoldenMismatch(
                f"{finding.case}, {finding.config}: {finding.what}", fix="correct the planner, then update"
            )


def _format_files(folder: Path, case: GoldenCase, replays: Mapping[PlanConfig, Replay]) -> tuple[bytes, bytes]:
    """Encoded graph and plan of a case with ``keep``."""
    return read_file(folder / graph_file(case)), replays[case.review].plan


def _leftovers(folder: Path, cases: Sequence[GoldenCase], own: Collection[str]) -> tuple[str, ...]:
    """Files that updates wrote for cases that are gone; ``GoldenMismatch`` for a file that no update wrote."""
    expected = store.expected_files(cases)
    unexpected = [name for name in store.list_files(folder) if name not in expected and not store.is_kept(name)]
    for name in unexpected:
        if name not in own or not name.endswith(store.GENERATED_SUFFIXES):
            raise GoldenMismatch(f"{folder / name} belongs to no case", fix=f"add one to {MANIFEST}, or delete it")
    return tuple(unexpected)


def _require_unchanged(
    folder: Path, cases: Sequence[GoldenCase], chosen: Sequence[GoldenCase], sums: Mapping[str, str]
) -> None:
    """``GoldenMismatch`` if files of cases outside ``chosen``, or of old formats, are not as recorded."""
    others = {name for case in cases if case not in chosen for name in store.files_of(case)}
    names = store.list_files(folder)
    for name, digest in sums.items():
        old = name.startswith(f"{store.FORMATS}/")
        if (old or name in others) and (name not in names or store.checksum_of(read_file(folder / name)) != digest):
            fix = "restore it from version control" if old else "update its case too"
            raise GoldenMismatch(f"{folder / name} is not as it was written", fix=fix)


def _require_known_formats(folder: Path, sums: Mapping[str, str], new: Mapping[str, bytes]) -> None:
    """Without checksums, files of old formats must be those that this update would write."""
    for name in store.list_files(folder) if not sums else ():
        if name.startswith(f"{store.FORMATS}/") and new.get(name) != read_file(folder / name):
            message = f"{folder / store.SUMS} is not there, and an earlier update made {name}"
            raise GoldenMismatch(message, fix=f"restore {store.SUMS} from version control")


def _sums(folder: Path, files: Mapping[str, bytes], removed: Sequence[str]) -> str:
    """The text of the checksum file after the update."""
    sums = {
        name: store.checksum_of(read_file(folder / name)) for name in store.list_files(folder) if name not in removed
    }
    return store.print_sums(sums | {name: store.checksum_of(data) for name, data in files.items()})


def _holds(path: Path, data: bytes) -> bool:
    return path.exists() and read_file(path) == data
