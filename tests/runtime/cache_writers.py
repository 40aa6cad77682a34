"""Writers of one cache, killed at random: a program that prints a report as JSON.

    python -m tests.runtime.cache_writers FOLDER KILLS [LIMIT]

Four processes store plans under ever new keys, and write the number of each stored one to a pipe. Again and again one
of them is killed with SIGKILL, whatever it is doing, and another is started, while this process reads the folder.
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
"""Seconds, at most, until the next kill: a few writes."""


@dataclass
class Writer:
    """A process that writes, and the reading end of the pipe with the numbers that it has stored."""

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
    """Kills the writer; returns the numbers that it had stored."""
    os.kill(writer.process, signal.SIGKILL)
    os.waitpid(writer.process, 0)
    data = b""
    while piece := os.read(writer.pipe, 1 << 16):
        data += piece
    os.close(writer.pipe)
    return [number for (number,) in struct.iter_unpack("<Q", data)]


def faults_of(folder: Path, numbers: list[int], *, evicted: bool) -> list[str]:
    """Faults of the entries of these numbers; with ``evicted`` an entry may be absent."""
    faults = []
    for number in numbers:
        entry = store.load(folder, key(number))
        if isinstance(entry, Miss):
            if not (evicted and entry.reason is MissReason.ABSENT):
                faults.append(f"{number}: {entry}")
        elif open_entry(entry) != program():
            faults.append(f"{number}: another program")
    return faults


def damaged_entries(folder: Path) -> list[str]:
    """Faults of all entries of the folder."""
    faults = []
    for stored in store.entries(folder):
        try:
            store.read_matching_entry(stored.path)
        except EntryRefused as error:
            if error.miss.reason is not MissReason.ABSENT:
                faults.append(f"{stored.path.name}: {error.miss}")
    return faults


def main(folder: Path, kills: int, limit: int) -> dict[str, object]:
    chance, faults, stored_numbers = random.Random(7), [], []
    evicted = limit < MAX_FOLDER_BYTES
    program()
    writers = [start(folder, n << 40, limit) for n in range(WRITERS)]
    for n in range(kills):
        sleep(chance.uniform(0, LONGEST))
        index = chance.randrange(WRITERS)
        numbers = kill(writers[index])
        writers[index] = start(folder, (WRITERS + n) << 40, limit)
        faults += faults_of(folder, numbers, evicted=evicted)
        stored_numbers += numbers
    for writer in writers:
        stored_numbers += kill(writer)
    faults += faults_of(folder, stored_numbers, evicted=evicted) + damaged_entries(folder)
    names = sorted(path.name for path in folder.iterdir())
    orphans = [name for name in names if name.endswith(".tmp")]
    strangers = [name for name in names if not name.endswith((".tmp", ".entry"))]
    return {
        "kills": kills,
        "kept": len(stored_numbers),
        "entries": len(names) - len(orphans),
        "bytes": sum(stored.bytes for stored in store.entries(folder)),
        "unfinished": len(orphans),
        "strangers": strangers,
        "faults": faults[:8],
    }


if __name__ == "__main__":
    arguments = sys.argv[1:]
    print(
        json.dumps(
            main(Path(arguments[0]), int(arguments[1]), int(arguments[2]) if len(arguments) > 2 else MAX_FOLDER_BYTES)
        )
    )
