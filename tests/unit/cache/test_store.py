import os
from pathlib import Path

import pytest

from tests.unit.cache.cached import key, program
from tmmu.cache import store
from tmmu.cache.entry import Entry, encode_entry
from tmmu.cache.miss import Miss, MissReason
from tmmu.ir.key import Key

BIG = 1 << 30
SIZE = len(encode_entry(key(), *program()))


def save(folder: Path, one: Key, *, limit: int = BIG) -> Path:
    assert store.save(folder, one, encode_entry(one, *program()), limit=limit) == ""
    return store.entry_path(folder, one)


def used(path: Path, second: int) -> None:
    os.utime(path, ns=(second * 10**9, second * 10**9))


def missing(folder: Path, one: Key) -> MissReason:
    found = store.load(folder, one)
    assert isinstance(found, Miss)
    return found.reason


def test_what_was_saved_is_loaded(tmp_path: Path) -> None:
    save(tmp_path / "new" / "folder", key(1))
    found = store.load(tmp_path / "new" / "folder", key(1))
    assert isinstance(found, Entry)
    assert found.key == key(1)


def test_nothing_is_absent_without_the_folder(tmp_path: Path) -> None:
    assert missing(tmp_path / "none", key()) is MissReason.ABSENT
    assert store.entries(tmp_path / "none") == ()
    assert store.evict(tmp_path / "none", limit=0) == ()


def test_another_keys_entry_under_this_name_is_foreign(tmp_path: Path) -> None:
    save(tmp_path, key(1)).rename(store.entry_path(tmp_path, key(2)))
    assert missing(tmp_path, key(2)) is MissReason.FOREIGN


@pytest.mark.parametrize("kind", ["folder", "pipe", "link", "loop", "device"])
def test_what_is_no_ordinary_file_is_a_miss_and_blocks_nobody(tmp_path: Path, kind: str) -> None:
    path = store.entry_path(tmp_path, key())
    real = tmp_path / "real"
    real.write_bytes(encode_entry(key(), *program()))
    {
        "folder": path.mkdir,
        "pipe": lambda: os.mkfifo(path),
        "link": lambda: path.symlink_to(real),
        "loop": lambda: path.symlink_to(path),
        "device": lambda: path.symlink_to("/dev/zero"),
    }[kind]()
    assert missing(tmp_path, key()) in (MissReason.FOREIGN, MissReason.UNREADABLE)


def test_a_huge_file_is_not_read(tmp_path: Path) -> None:
    with store.entry_path(tmp_path, key()).open("wb") as file:
        file.truncate(1 << 40)
    assert missing(tmp_path, key()) is MissReason.FOREIGN


def test_the_least_recently_used_entries_go_until_the_rest_fits(tmp_path: Path) -> None:
    paths = [save(tmp_path, key(number)) for number in range(4)]
    for path, second in zip(paths, (3, 1, 4, 2), strict=True):
        used(path, second)
    save(tmp_path, key(4), limit=3 * SIZE)
    assert {one.path for one in store.entries(tmp_path)} == {paths[0], paths[2], store.entry_path(tmp_path, key(4))}


def test_what_was_just_saved_stays_whatever_the_times_of_others_say(tmp_path: Path) -> None:
    for number in range(3):
        used(save(tmp_path, key(number)), 1 << 33)
    path = save(tmp_path, key(3), limit=2 * SIZE)
    assert path in [one.path for one in store.entries(tmp_path)]
    assert len(store.entries(tmp_path)) == 2


def test_a_hit_counts_as_use(tmp_path: Path) -> None:
    first, second = save(tmp_path, key(1)), save(tmp_path, key(2))
    used(first, 1)
    used(second, 2)
    assert isinstance(store.load(tmp_path, key(1)), Entry)
    assert [one.path for one in store.entries(tmp_path)] == [second, first]


def test_looking_at_an_entry_does_not_count_as_use(tmp_path: Path) -> None:
    path = save(tmp_path, key())
    used(path, 1)
    store.read_entry(path)
    assert store.entries(tmp_path)[0].used_ns == 10**9


def test_entries_used_at_one_time_go_by_name(tmp_path: Path) -> None:
    paths = sorted(save(tmp_path, key(number)) for number in range(4))
    for path in paths:
        used(path, 1)
    assert [one.path for one in store.evict(tmp_path, limit=2 * SIZE)] == paths[:2]


def test_entries_are_counted_as_well(tmp_path: Path) -> None:
    paths = [save(tmp_path, key(number)) for number in range(4)]
    for path, second in zip(paths, (3, 1, 4, 2), strict=True):
        used(path, second)
    assert [one.path for one in store.evict(tmp_path, limit=BIG, count=2)] == [paths[1], paths[3]]
    assert len(store.entries(tmp_path)) == 2


def test_an_entry_that_is_larger_than_the_bound_is_not_stored_and_moves_nothing_out(tmp_path: Path) -> None:
    save(tmp_path, key(1))
    why = store.save(tmp_path, key(2), encode_entry(key(2), *program()), limit=SIZE - 1)
    assert "more than the cache may hold" in why
    assert isinstance(store.load(tmp_path, key(1)), Entry)


def test_files_of_others_are_left_alone_and_count_for_nothing(tmp_path: Path) -> None:
    others = [
        tmp_path / "notes.txt",
        tmp_path / f"{'0' * 64}-{'0' * 31}.entry",
        tmp_path / "x.entry",
        tmp_path / ".tmmu-x.tmp",
    ]
    for other in others:
        other.write_bytes(bytes(10_000))
        used(other, 1)
    save(tmp_path, key(), limit=SIZE)
    assert all(other.exists() for other in others)
    assert len(store.entries(tmp_path)) == 1


def test_what_killed_writers_left_goes_when_it_is_old(tmp_path: Path) -> None:
    old, young = tmp_path / ".tmmu-1-0.tmp", tmp_path / ".tmmu-2-0.tmp"
    old.touch()
    young.touch()
    used(old, 1)
    save(tmp_path, key())
    assert (old.exists(), young.exists()) == (False, True)


def test_a_folder_that_cannot_be_made_is_a_reason(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    why = store.save(tmp_path / "file" / "below", key(), encode_entry(key(), *program()), limit=BIG)
    assert str(tmp_path / "file") in why


def test_a_place_that_is_taken_is_a_reason(tmp_path: Path) -> None:
    store.entry_path(tmp_path, key()).mkdir()
    assert "it is a folder" in store.save(tmp_path, key(), encode_entry(key(), *program()), limit=BIG)
    assert store.entries(tmp_path)[0].path.is_dir()


def graph_of(graph: int, seed: int) -> Key:
    return key(graph, token=seed)


def test_entries_of_one_graph_are_relatives_however_it_is_planned(tmp_path: Path) -> None:
    for one in (graph_of(1, 1), graph_of(1, 2), graph_of(2, 1)):
        save(tmp_path, one)
    found = [entry.key for entry in store.entries_of_graph(tmp_path, graph_of(1, 9))]
    assert sorted(found, key=lambda one: one.digest) == sorted(
        (graph_of(1, 1), graph_of(1, 2)), key=lambda one: one.digest
    )
    assert list(store.entries_of_graph(tmp_path, graph_of(3, 1))) == []
    assert list(store.entries_of_graph(tmp_path / "none", graph_of(1, 1))) == []


@pytest.mark.parametrize("part", store.PLANNING_PARTS)
def test_only_parts_that_say_how_to_plan_leave_the_graph_what_it_is(tmp_path: Path, part: str) -> None:
    save(tmp_path, key(1, **{part: 1, "mode": 1}))
    assert len(list(store.entries_of_graph(tmp_path, key(1, **{part: 2, "mode": 1})))) == 1
    assert len(list(store.entries_of_graph(tmp_path, key(1, **{part: 1, "mode": 2})))) == 0


def test_a_damaged_relative_is_none(tmp_path: Path) -> None:
    path = save(tmp_path, graph_of(1, 1))
    path.write_bytes(path.read_bytes()[:-1])
    assert list(store.entries_of_graph(tmp_path, graph_of(1, 2))) == []


def test_the_folder_is_its_owners(tmp_path: Path) -> None:
    save(tmp_path / "cache", key())
    assert (tmp_path / "cache").stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("kind", ["link", "pipe"])
def test_an_entry_takes_the_place_of_what_is_no_file_and_touches_nothing_behind_it(tmp_path: Path, kind: str) -> None:
    folder, other = tmp_path / "cache", tmp_path / "precious"
    folder.mkdir()
    other.write_text("precious")
    path = store.entry_path(folder, key(1))
    if kind == "link":
        path.symlink_to(other)
    else:
        os.mkfifo(path)
    save(folder, key(1))
    assert other.read_text() == "precious"
    assert path.is_file()
    assert not path.is_symlink()
    assert isinstance(store.load(folder, key(1)), Entry)
