"""What an update is about to do, beside the files that it writes: whoever is cut off between two of them leaves it.

Files are renamed one by one. Once the digests of a case are new, nothing else in the folder tells what moved; so that
is written down before the first file is renamed, and forgotten after the last. The next update says it again.
"""

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from tmmu.codec.files import read_ordinary, write_atomic
from tmmu.errors import TmmuError
from tmmu.golden import store
from tmmu.golden.cases import Case
from tmmu.golden.check import Finding

JOURNAL: Final = ".update.json"
"""Hidden, so that it is no file of the folder."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Journal:
    """What moved; the sums of the files that were to be written; the names of those that were to be removed."""

    moved: tuple[Finding, ...] = ()
    sums: Mapping[str, str]
    removed: tuple[str, ...] = ()


NONE: Final = Journal(sums={})


def write_journal(folder: Path, journal: Journal) -> None:
    """It is on disk."""
    moved = [asdict(one) for one in journal.moved]
    record = {"moved": moved, "sums": dict(journal.sums), "removed": journal.removed}
    write_atomic(folder / JOURNAL, json.dumps(record).encode())


def read_journal(folder: Path) -> Journal:
    """What an update that was cut off left; ``NONE`` where none was, or where it cannot be read."""
    try:
        record = json.loads(read_ordinary(folder / JOURNAL))
        moved = tuple(Finding(**row | {"seeds": tuple(row["seeds"])}) for row in record["moved"])
        return Journal(moved=moved, sums=dict(record["sums"]), removed=tuple(record["removed"]))
    except (TmmuError, ValueError, TypeError, KeyError):
        return NONE


def forget_journal(folder: Path) -> None:
    """It is gone."""
    with suppress(OSError):
        (folder / JOURNAL).unlink()


def cut_off(folder: Path, cases: Sequence[Case], journal: Journal) -> tuple[Finding, ...]:
    """What moved in the cases of which the update that was cut off had written a file that is still there."""
    begun = {case.name for case in cases if any(_is_written(folder, name, journal) for name in store.files_of(case))}
    return tuple(one for one in journal.moved if one.case in begun)


def _is_written(folder: Path, name: str, journal: Journal) -> bool:
    with suppress(TmmuError):
        return name in journal.sums and store.sum_of(read_ordinary(folder / name)) == journal.sums[name]
    return False
