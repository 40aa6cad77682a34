"""The folder of compiled kernels: the least recently used go first, and what killed compilers left."""

import os
from pathlib import Path

from tmmu.cache.kernel_files import evict_kernels


def library(folder: Path, name: str, size: int, used: int) -> Path:
    path = folder / f"{name}.so"
    path.write_bytes(bytes(size))
    path.with_suffix(".lock").touch()
    for file in (path, path.with_suffix(".lock")):
        os.utime(file, (used, used))
    return path


def test_the_least_recently_used_go_first(tmp_path: Path) -> None:
    paths = [library(tmp_path, name, 100, used) for name, used in (("b", 3), ("a", 1), ("c", 2))]
    removed = evict_kernels(tmp_path, limit=200, before=0)
    assert [file.path for file in removed] == [paths[1]]
    assert {path.exists() for path in (paths[0], paths[2])} == {True}


def test_what_was_just_made_is_kept(tmp_path: Path) -> None:
    paths = [library(tmp_path, name, 100, used) for name, used in (("a", 1), ("b", 2))]
    evict_kernels(tmp_path, limit=100, before=0, keep=paths[0])
    assert [path.exists() for path in paths] == [True, False]


def test_launches_of_a_gpu_are_among_them(tmp_path: Path) -> None:
    paths = [library(tmp_path, name, 100, used) for name, used in (("a", 1), ("b", 3))]
    launches = tmp_path / "launches" / "c.py"
    launches.parent.mkdir()
    launches.write_bytes(bytes(100))
    os.utime(launches, (2, 2))
    evict_kernels(tmp_path, limit=100, before=0)
    assert [path.exists() for path in (*paths, launches)] == [False, True, False]
    launches.write_bytes(bytes(100))
    evict_kernels(tmp_path, limit=0, before=0)
    assert not launches.exists()


def test_what_killed_compilers_left_goes_after_its_time(tmp_path: Path) -> None:
    work = tmp_path / "compile_x"
    work.mkdir()
    (work / "kernels.so").write_bytes(b"half")
    lock = tmp_path / "gone.lock"
    lock.touch()
    for path in (work, lock):
        os.utime(path, (100, 100))
    assert evict_kernels(tmp_path, limit=1000, before=99 * 10**9) == ()
    assert {file.path for file in evict_kernels(tmp_path, limit=1000, before=101 * 10**9)} == {work, lock}
    assert list(tmp_path.iterdir()) == []


def test_everything_goes_with_a_limit_of_nothing(tmp_path: Path) -> None:
    (tmp_path / "forms").mkdir()
    (tmp_path / "forms" / "x.json").write_text("{}")
    library(tmp_path, "a", 10, 1)
    evict_kernels(tmp_path, limit=0, before=1 << 63)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_a_folder_that_is_not_there_has_nothing(tmp_path: Path) -> None:
    assert evict_kernels(tmp_path / "none", limit=0, before=1 << 63) == ()
