"""Write-ahead journal of an update: the findings to report, in case the update is killed halfway.

Files are renamed one by one. Invariant: from before the first rename until after the last the journal lists what moved,
since new digests no longer show it. The next update reports it again.
"""

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from tmmu.codec.files import read_file, write_atomic
from tmmu.codec.json_text import decode_json
from tmmu.errors import TmmuError
from tmmu.golden import store
from tmmu.golden.cases import GoldenCase
from tmmu.golden.check import Finding

JOURNAL: Final = ".update.json"
"""Hidden: ``store.list_files`` leaves it out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Journal:
    """Findings; checksums of the files to write; names of the files to remove."""

    moved: tuple[Finding, ...] = ()
    sums: Mapping[str, str]
    removed: tuple[str, ...] = ()


EMPTY_JOURNAL: Final = Journal(sums={})


def write_journal(folder: Path, journal: Journal) -> None:
    """Write the journal atomically."""
    moved = [asdict(finding) for finding in journal.moved]
    record = {"moved": moved, "sums": dict(journal.sums), "removed": journal.removed}
    write_atomic(folder / JOURNAL, json.dumps(record).encode())


def read_journal(folder: Path) -> Journal:
    """The journal of an interrupted update; ``EMPTY_JOURNAL`` if there is none or it cannot be read."""
    try:
        record = decode_json(read_file(folder / JOURNAL))
        moved = tuple(Finding(**row | {"seeds": tuple(row["seeds"])}) for row in record["moved"])
        return Journal(moved=moved, sums=dict(record["sums"]), removed=tuple(record["removed"]))
    except (TmmuError, ValueError, TypeError, KeyError):
        return EMPTY_JOURNAL


def forget_journal(folder: Path) -> None:
    """Delete the journal."""
    with suppress(OSError):
        (folder / JOURNAL).unlink()


def interrupted_findings(folder: Path, cases: Sequence[GoldenCase], journal: Journal) -> tuple[Finding, ...]:
    """The journal's findings of cases of which the interrupted update wrote a file that is still there."""
    begun = {case.name for case in cases if any(_is_written(folder, name, journal) for name in store.files_of(case))}
    return tuple(finding for finding in journal.moved if finding.case in begun)


def _is_written(folder: Path, name: str, journal: Journal) -> bool:
    with suppress(TmmuError):
        return name in journal.sums and store.checksum_of(read_file(folder / name)) == journal.sums[name]
    return False
