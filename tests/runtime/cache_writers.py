"""Writers of one cache, killed at random: run as a program, prints what it found as JSON.

    python -m tests.runtime.cache_writers FOLDER KILLS [LIMIT]

Four processes plan and keep programs under ever new keys, and say so through a pipe when a plan is kept. Again and
again one of them is killed with SIGKILL, whatever it is doing, and another takes its place, while this process reads.
"""

import json
import os
import random
import signal
import struct
import sys
from dataclasses import dataclass
from pathlib import Path
from time import sleep
from typing import NoReturn

from tests.unit.cache.cached import key, program
from tmmu.cache import Miss, MissReason, PlanCache, store
from tmmu.cache.entry import EntryRefused, open_entry
from tmmu.cache.plans import MAX_FOLDER_BYTES

WRITERS = 4
LONGEST = 0.02
"""Seconds that a writer lives at most: a few writes."""


@dataclass
class Writer:
    """A process that writes, and the end of the pipe that says what it has kept."""

    process: int
    pipe: int


def start(folder: Path, first: int, limit: int) -> Writer:
    read, write = os.pipe()
    process = os.fork()
    if process == 0:
        os.close(read)
        write_until_killed(folder, first, write, limit)
    os.close(write)
    return Writer(process, read)


def write_until_killed(folder: Path, first: int, pipe: int, limit: int) -> NoReturn:
    try:
        cache = PlanCache(folder, limit=limit)
        for number in range(first, first + (1 << 20)):
            if cache.get_or_make(key(number), program).store_error == "":
                os.write(pipe, struct.pack("<Q", number))
    finally:
        os._exit(1)


def kill(writer: Writer) -> list[int]:
    """The writer is gone; the numbers that it had kept."""
    os.kill(writer.process, signal.SIGKILL)
    os.waitpid(writer.process, 0)
    data = b""
    while piece := os.read(writer.pipe, 1 << 16):
        data += piece
    os.close(writer.pipe)
    return [number for (number,) in struct.iter_unpack("<Q", data)]


def faults_of(folder: Path, numbers: list[int], *, evicted: bool) -> list[str]:
    """What is wrong with the entries of these numbers."""
    found = []
    for number in numbers:
        entry = store.load(folder, key(number))
        if isinstance(entry, Miss):
            if not (evicted and entry.reason is MissReason.ABSENT):
                found.append(f"{number}: {entry}")
        elif open_entry(entry) != program():
            found.append(f"{number}: another program")
    return found


def unreadable(folder: Path) -> list[str]:
    """Entries of the folder that are not whole."""
    found = []
    for stored in store.entries(folder):
        try:
            store.read_matching_entry(stored.path)
        except EntryRefused as error:
            if error.miss.reason is not MissReason.ABSENT:
                found.append(f"{stored.path.name}: {error.miss}")
    return found


def main(folder: Path, kills: int, limit: int) -> dict[str, object]:
    chance, faults, kept = random.Random(7), [], []
    evicted = limit < MAX_FOLDER_BYTES
    program()
    writers = [start(folder, n << 40, limit) for n in range(WRITERS)]
    for n in range(kills):
        sleep(chance.uniform(0, LONGEST))
        at = chance.randrange(WRITERS)
        numbers = kill(writers[at])
        writers[at] = start(folder, (WRITERS + n) << 40, limit)
        faults += faults_of(folder, numbers, evicted=evicted)
        kept += numbers
    for writer in writers:
        kept += kill(writer)
    faults += faults_of(folder, kept, evicted=evicted) + unreadable(folder)
    names = sorted(path.name for path in folder.iterdir())
    orphans = [name for name in names if name.endswith(".tmp")]
    strangers = [name for name in names if not name.endswith((".tmp", ".entry"))]
    return {
        "kills": kills,
        "kept": len(kept),
        "entries": len(names) - len(orphans),
        "bytes": sum(stored.bytes for stored in store.entries(folder)),
        "unfinished": len(orphans),
        "strangers": strangers,
        "faults": faults[:8],
    }


if __name__ == "__main__":
    given = sys.argv[1:]
    print(json.dumps(main(Path(given[0]), int(given[1]), int(given[2]) if len(given) > 2 else MAX_FOLDER_BYTES)))
