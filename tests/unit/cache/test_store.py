import os
from pathlib import Path

import pytest

from tests.unit.cache.cached import key, program
from tmmu.cache import store
from tmmu.cache.entry import Entry, EntryRefused, decode_entry, encode_entry, open_entry
from tmmu.cache.miss import Miss, MissReason
from tmmu.ir.key import Key, key_of, part_of

BIG = 1 << 30
SIZE = len(encode_entry(key(), *program()))


def save(folder: Path, entry_key: Key, *, limit: int = BIG) -> Path:
    assert store.save(folder, entry_key, encode_entry(entry_key, *program()), limit=limit) == ""
    return store.entry_path(folder, entry_key)


def set_used(path: Path, second: int) -> None:
    os.utime(path, ns=(second * 10**9, second * 10**9))


def miss_reason(folder: Path, entry_key: Key) -> MissReason:
    miss = store.load(folder, entry_key)
    assert isinstance(miss, Miss)
    return miss.reason


def test_saved_entry_is_loaded(tmp_path: Path) -> None:
    save(tmp_path / "new" / "folder", key(1))
    entry = store.load(tmp_path / "new" / "folder", key(1))
    assert isinstance(entry, Entry)
    assert entry.key == key(1)


def test_missing_folder_has_no_entries(tmp_path: Path) -> None:
    assert miss_reason(tmp_path / "none", key()) is MissReason.ABSENT
    assert store.entries(tmp_path / "none") == ()
    assert store.evict(tmp_path / "none", limit=0) == ()


def test_entry_of_another_key_is_foreign(tmp_path: Path) -> None:
    save(tmp_path, key(1)).rename(store.entry_path(tmp_path, key(2)))
    assert miss_reason(tmp_path, key(2)) is MissReason.FOREIGN


@pytest.mark.parametrize("kind", ["folder", "pipe", "link", "loop", "device"])
def test_special_file_is_a_miss_and_does_not_block(tmp_path: Path, kind: str) -> None:
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
    assert miss_reason(tmp_path, key()) in (MissReason.FOREIGN, MissReason.UNREADABLE)


def test_huge_file_is_not_read(tmp_path: Path) -> None:
    with store.entry_path(tmp_path, key()).open("wb") as file:
        file.truncate(1 << 40)
    assert miss_reason(tmp_path, key()) is MissReason.FOREIGN


def test_save_evicts_least_recently_used_entries(tmp_path: Path) -> None:
    paths = [save(tmp_path, key(number)) for number in range(4)]
    for path, second in zip(paths, (3, 1, 4, 2), strict=True):
        set_used(path, second)
    save(tmp_path, key(4), limit=3 * SIZE)
    assert {file.path for file in store.entries(tmp_path)} == {paths[0], paths[2], store.entry_path(tmp_path, key(4))}


def test_save_keeps_its_own_entry_among_younger_ones(tmp_path: Path) -> None:
    for number in range(3):
        set_used(save(tmp_path, key(number)), 1 << 33)
    path = save(tmp_path, key(3), limit=2 * SIZE)
    assert path in [file.path for file in store.entries(tmp_path)]
    assert len(store.entries(tmp_path)) == 2


def test_load_counts_as_use(tmp_path: Path) -> None:
    first, second = save(tmp_path, key(1)), save(tmp_path, key(2))
    set_used(first, 1)
    set_used(second, 2)
    assert isinstance(store.load(tmp_path, key(1)), Entry)
    assert [file.path for file in store.entries(tmp_path)] == [second, first]


def test_read_entry_does_not_count_as_use(tmp_path: Path) -> None:
    path = save(tmp_path, key())
    set_used(path, 1)
    store.read_entry(path)
    assert store.entries(tmp_path)[0].used_ns == 10**9


def test_eviction_breaks_ties_by_name(tmp_path: Path) -> None:
    paths = sorted(save(tmp_path, key(number)) for number in range(4))
    for path in paths:
        set_used(path, 1)
    assert [file.path for file in store.evict(tmp_path, limit=2 * SIZE)] == paths[:2]


def test_eviction_bounds_the_number_of_entries(tmp_path: Path) -> None:
    paths = [save(tmp_path, key(number)) for number in range(4)]
    for path, second in zip(paths, (3, 1, 4, 2), strict=True):
        set_used(path, second)
    assert [file.path for file in store.evict(tmp_path, limit=BIG, count=2)] == [paths[1], paths[3]]
    assert len(store.entries(tmp_path)) == 2


def test_entry_larger_than_the_bound_is_not_stored(tmp_path: Path) -> None:
    save(tmp_path, key(1))
    why = store.save(tmp_path, key(2), encode_entry(key(2), *program()), limit=SIZE - 1)
    assert "more than the cache may hold" in why
    assert isinstance(store.load(tmp_path, key(1)), Entry)


def test_foreign_files_are_left_alone(tmp_path: Path) -> None:
    foreign_files = [
        tmp_path / "notes.txt",
        tmp_path / f"{'0' * 64}-{'0' * 31}.entry",
        tmp_path / "x.entry",
        tmp_path / ".tmmu-x.tmp",
    ]
    for path in foreign_files:
        path.write_bytes(bytes(10_000))
        set_used(path, 1)
    save(tmp_path, key(), limit=SIZE)
    assert all(path.exists() for path in foreign_files)
    assert len(store.entries(tmp_path)) == 1


def test_old_unfinished_files_are_removed(tmp_path: Path) -> None:
    old, young = tmp_path / ".tmmu-1-0.tmp", tmp_path / ".tmmu-2-0.tmp"
    old.touch()
    young.touch()
    set_used(old, 1)
    save(tmp_path, key())
    assert (old.exists(), young.exists()) == (False, True)


def test_save_says_why_the_folder_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    why = store.save(tmp_path / "file" / "below", key(), encode_entry(key(), *program()), limit=BIG)
    assert str(tmp_path / "file") in why


def test_save_says_that_a_folder_has_its_name(tmp_path: Path) -> None:
    store.entry_path(tmp_path, key()).mkdir()
    assert "it is a folder" in store.save(tmp_path, key(), encode_entry(key(), *program()), limit=BIG)
    assert store.entries(tmp_path)[0].path.is_dir()


def key_of_graph(graph: int, seed: int) -> Key:
    return key(graph, token=seed)


def test_entries_of_a_graph_are_found_however_it_is_planned(tmp_path: Path) -> None:
    for entry_key in (key_of_graph(1, 1), key_of_graph(1, 2), key_of_graph(2, 1)):
        save(tmp_path, entry_key)
    keys = [entry.key for entry in store.entries_of_graph(tmp_path, key_of_graph(1, 9))]
    assert set(keys) == {key_of_graph(1, 1), key_of_graph(1, 2)}
    assert len(keys) == 2
    assert list(store.entries_of_graph(tmp_path, key_of_graph(3, 1))) == []
    assert list(store.entries_of_graph(tmp_path / "none", key_of_graph(1, 1))) == []


@pytest.mark.parametrize("part", store.PLANNING_PARTS)
def test_planning_parts_alone_do_not_name_the_graph(tmp_path: Path, part: str) -> None:
    save(tmp_path, key(1, **{part: 1, "mode": 1}))
    assert len(list(store.entries_of_graph(tmp_path, key(1, **{part: 2, "mode": 1})))) == 1
    assert len(list(store.entries_of_graph(tmp_path, key(1, **{part: 1, "mode": 2})))) == 0


def test_damaged_entry_of_a_graph_is_passed_over(tmp_path: Path) -> None:
    path = save(tmp_path, key_of_graph(1, 1))
    path.write_bytes(path.read_bytes()[:-1])
    assert list(store.entries_of_graph(tmp_path, key_of_graph(1, 2))) == []


def test_folder_is_readable_by_its_owner_alone(tmp_path: Path) -> None:
    save(tmp_path / "cache", key())
    assert (tmp_path / "cache").stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("kind", ["link", "pipe"])
def test_save_replaces_links_and_pipes_without_following_them(tmp_path: Path, kind: str) -> None:
    folder, precious = tmp_path / "cache", tmp_path / "precious"
    folder.mkdir()
    precious.write_text("precious")
    path = store.entry_path(folder, key(1))
    if kind == "link":
        path.symlink_to(precious)
    else:
        os.mkfifo(path)
    save(folder, key(1))
    assert precious.read_text() == "precious"
    assert path.is_file()
    assert not path.is_symlink()
    assert isinstance(store.load(folder, key(1)), Entry)


SHARED: dict[str, tuple[str, int]] = {
    "others write": ("plans", 0o707),
    "the group writes": ("plans", 0o770),
    "others write with the sticky bit": ("plans", 0o1777),
    "others write to a parent": (".", 0o777),
}


@pytest.mark.parametrize(("name", "mode"), SHARED.values(), ids=SHARED.keys())
def test_folder_that_others_may_write_serves_and_stores_nothing(tmp_path: Path, name: str, mode: int) -> None:
    folder = tmp_path / "top" / "plans"
    save(folder, key())
    (tmp_path / "top" / name).chmod(mode)
    assert miss_reason(folder, key()) is MissReason.SHARED
    assert "others may write" in str(store.load(folder, key()))
    assert "others may write" in store.save(folder, key(), encode_entry(key(), *program()), limit=BIG)
    assert "others may write" in store.listing_error(folder)
    assert not list(store.entries_of_graph(folder, key()))
    (tmp_path / "top" / name).chmod(0o700)
    assert isinstance(store.load(folder, key()), Entry)


def test_shared_parent_with_the_sticky_bit_is_no_objection(tmp_path: Path) -> None:
    (tmp_path / "top").mkdir()
    (tmp_path / "top").chmod(0o1777)
    save(tmp_path / "top" / "plans", key())
    assert isinstance(store.load(tmp_path / "top" / "plans", key()), Entry)


def test_folder_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "plans"
    folder.mkdir(mode=0o700)
    if os.geteuid() == 0:
        os.chown(folder, 12345, -1)
    else:
        monkeypatch.setattr("os.geteuid", lambda: 12345)
    assert miss_reason(folder, key()) is MissReason.SHARED


def test_entry_under_the_name_of_another_key_is_not_served(tmp_path: Path) -> None:
    path = save(tmp_path, key(1))
    store.entry_path(tmp_path, key(2)).write_bytes(path.read_bytes())
    assert miss_reason(tmp_path, key(2)) is MissReason.FOREIGN


@pytest.mark.parametrize("name", ["mode", "preset"])
def test_entry_whose_plan_was_asked_for_otherwise_is_not_served(name: str) -> None:
    asked = key_of([part_of("mode", "inference"), part_of("preset", "inference")])
    assert open_entry(decode_entry(encode_entry(asked, *program()))) == program()
    forged = key_of([part_of(name, "another")])
    with pytest.raises(EntryRefused, match=f"another {name}"):
        open_entry(decode_entry(encode_entry(forged, *program())))
