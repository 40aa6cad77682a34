"""Whoever is killed while plans are kept: every plan that was kept is there, whole, and nobody has to wait or mend."""

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


def killed(folder: Path, kills: int, limit: int = MAX_FOLDER_BYTES) -> Any:
    folder.mkdir()
    command = [sys.executable, "-m", "tests.runtime.cache_writers", str(folder), str(kills), str(limit)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=Path(__file__).parents[2])
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("kills", [40, pytest.param(1000, marks=pytest.mark.slow)])
def test_nothing_that_was_kept_is_lost_or_damaged_and_nothing_is_locked(tmp_path: Path, kills: int) -> None:
    folder = tmp_path / "plans"
    found = killed(folder, kills)
    assert found["faults"] == []
    assert found["strangers"] == []
    assert found["kills"] == kills
    assert found["kept"] >= kills // 4
    assert found["entries"] >= found["kept"]
    assert found["unfinished"] >= kills // 50, "no kill has met a writer in the middle of a write"
    make = CountingMaker()
    assert PlanCache(folder).get_or_make(key(-1), make).store_error == ""
    assert PlanCache(folder).get_or_make(key(-1), make).origin == "disk"
    assert make.calls == 1


def test_what_killed_writers_left_is_swept_once_it_is_old(tmp_path: Path) -> None:
    folder = tmp_path / "plans"
    killed(folder, 20)
    for path in folder.glob("*.tmp"):
        os.utime(path, ns=(1, 1))
    PlanCache(folder).get_or_make(key(-1), CountingMaker())
    assert list(folder.glob("*.tmp")) == []


def test_a_full_cache_stays_within_its_bound_and_whole(tmp_path: Path) -> None:
    folder = tmp_path / "plans"
    one = 2000
    found = killed(folder, 40, limit=10 * one)
    assert found["faults"] == []
    assert found["strangers"] == []
    PlanCache(folder, limit=10 * one).get_or_make(key(-1), CountingMaker())
    assert sum(stored.bytes for stored in store.entries(folder)) <= 10 * one
