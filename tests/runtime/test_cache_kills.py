"""Killed writers: every stored plan is there and whole, and no reader or writer waits or repairs anything."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.unit.cache.cached import CountingMaker, key
from tmmu.cache import PlanCache, store
from tmmu.cache.plans import MAX_FOLDER_BYTES

pytestmark = pytest.mark.slow


def run_killed_writers(folder: Path, kills: int, limit: int = MAX_FOLDER_BYTES) -> Any:
    folder.mkdir()
    command = [sys.executable, "-m", "tests.runtime.cache_writers", str(folder), str(kills), str(limit)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=Path(__file__).parents[2])
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("kills", [40, pytest.param(1000, marks=pytest.mark.long)])
def test_kills_lose_and_damage_no_stored_plan(tmp_path: Path, kills: int) -> None:
    folder = tmp_path / "plans"
    report = run_killed_writers(folder, kills)
    assert report["faults"] == []
    assert report["strangers"] == []
    assert report["kills"] == kills
    assert report["kept"] >= kills // 4
    assert report["entries"] >= report["kept"]
    assert report["unfinished"] >= kills // 50, "no kill has met a writer in the middle of a write"
    make = CountingMaker()
    assert PlanCache(folder).get_or_make(key(-1), make).store_error == ""
    assert PlanCache(folder).get_or_make(key(-1), make).origin == "disk"
    assert make.calls == 1


def test_old_files_of_killed_writers_are_removed(tmp_path: Path) -> None:
    folder = tmp_path / "plans"
    run_killed_writers(folder, 20)
    for path in folder.glob("*.tmp"):
        os.utime(path, ns=(1, 1))
    PlanCache(folder).get_or_make(key(-1), CountingMaker())
    assert list(folder.glob("*.tmp")) == []


def test_full_cache_stays_within_its_bound_under_kills(tmp_path: Path) -> None:
    folder = tmp_path / "plans"
    entry_bytes = 2000
    report = run_killed_writers(folder, 40, limit=10 * entry_bytes)
    assert report["faults"] == []
    assert report["strangers"] == []
    PlanCache(folder, limit=10 * entry_bytes).get_or_make(key(-1), CountingMaker())
    assert sum(stored.bytes for stored in store.entries(folder)) <= 10 * entry_bytes
