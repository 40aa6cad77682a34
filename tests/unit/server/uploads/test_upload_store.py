"""Uploads by hash: what arrived stays, what is wrong goes, and a client has its own alone, up to a bound."""

import os
from pathlib import Path
from typing import Any

import pytest
from blake3 import blake3

from tmmu.errors import InvalidConfig, InvalidRequest, QuotaExceeded, WireBroken
from tmmu.server.keys import KeyRing
from tmmu.server.uploads import upload_store
from tmmu.server.uploads.upload_service import UploadService
from tmmu.server.uploads.upload_store import UploadStore
from tmmu.wire.in_process import InProcessConnection
from tmmu.wire.service_table import ServiceTable
from tmmu.wire.upload_messages import FindUploads, PutUploads, TensorContents, UploadPart


def contents_of(data: bytes) -> TensorContents:
    return TensorContents(blake3(data).digest(), len(data))


def store_in(folder: Path, most: int = 1000) -> UploadStore:
    return UploadStore(folder, most, lambda client: client)


def put(store: UploadStore, data: bytes, begin: int, end: int, client: str = "a") -> int:
    (count,) = store.put(client, [UploadPart(contents_of(data), begin)], [memoryview(data)[begin:end]])
    return count


def test_parts_are_added_where_the_last_one_ended_by_whichever_server(tmp_path: Path) -> None:
    data = bytes(range(100))
    store, contents = store_in(tmp_path), contents_of(data)
    assert put(store, data, 0, 40) == 40
    assert put(store, data, 30, 60) == put(store, data, 50, 60) == 40
    assert store.whole_file("a", contents) is None
    other = store_in(tmp_path)
    assert other.received("a", (contents, contents_of(b"other"))) == (40, 0)
    assert put(other, data, 40, 100) == 100
    file = other.whole_file("a", contents)
    assert file is not None
    assert file.read_bytes() == data
    assert put(other, data, 0, 100) == 100
    assert [entry.name for entry in os.scandir(tmp_path / "a")] == [contents.hash.hex()]


def test_a_client_finds_nothing_of_others(tmp_path: Path) -> None:
    data = b"secret"
    store = store_in(tmp_path)
    put(store, data, 0, 6)
    assert store.received("b", (contents_of(data),)) == (0,)
    assert store.whole_file("b", contents_of(data)) is None


def test_bytes_of_another_hash_leave_nothing(tmp_path: Path) -> None:
    store, contents = store_in(tmp_path), contents_of(b"right")
    with pytest.raises(WireBroken, match="another hash"):
        store.put("a", [UploadPart(contents, 0)], [memoryview(b"wrong")])
    assert store.received("a", (contents,)) == (0,)
    for offset, payload in ((0, b""), (0, b"longer"), (4, b"ht")):
        with pytest.raises(InvalidRequest):
            store.put("a", [UploadPart(contents, offset)], [memoryview(payload)])
    assert not list((tmp_path / "a").iterdir())


def test_what_was_used_longest_ago_makes_room(tmp_path: Path) -> None:
    store = store_in(tmp_path, most=100)
    rows = [bytes([number]) * 40 for number in range(3)]
    for age, row in enumerate(rows[:2]):
        put(store, row, 0, 40)
        os.utime(tmp_path / "a" / contents_of(row).hash.hex(), ns=(age, age))
    store.received("a", (contents_of(rows[0]),))  # used now
    put(store, rows[2], 0, 40)
    assert [store.received("a", (contents_of(row),)) for row in rows] == [(40,), (0,), (40,)]


def test_files_of_few_bytes_have_a_bound_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upload_store, "MOST_FILES", 3)
    store = store_in(tmp_path)
    for number in range(5):
        put(store, bytes([number]), 0, 1)
    assert len(list((tmp_path / "a").iterdir())) == 3
    assert store.received("a", (contents_of(b"\x04"),)) == (1,)
    put(store, b"long", 0, 1)
    before = sorted((tmp_path / "a").iterdir())
    put(store, b"long", 1, 3)  # no file more
    assert sorted((tmp_path / "a").iterdir()) == before


def test_parts_of_a_request_look_at_the_folder_once_and_make_no_room_in_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scans, scandir = list[Path](), os.scandir
    store, long, old = store_in(tmp_path, most=100), bytes(100), bytes([9]) * 30
    put(store, long, 0, 30)
    put(store, old, 0, 30)

    def counting(folder: Path) -> Any:
        scans.append(folder)
        return scandir(folder)

    monkeypatch.setattr(os, "scandir", counting)
    rows = [bytes([number]) * 20 for number in range(1, 3)]
    parts = [UploadPart(contents_of(long), 30), *(UploadPart(contents_of(row), 0) for row in rows)]
    payloads = [memoryview(long)[:30], *map(memoryview, rows)]
    assert store.put("a", parts, payloads) == (60, 20, 20)
    assert len(scans) == 1
    assert [store.received("a", (contents_of(data),)) for data in (long, old)] == [(60,), (0,)]
    with pytest.raises(QuotaExceeded):
        store.put("a", [UploadPart(contents_of(row * 3), 0) for row in rows], [memoryview(row * 3) for row in rows])


def test_a_server_that_was_killed_before_the_last_hash_has_what_arrived(tmp_path: Path) -> None:
    data, wrong = b"0123456789", b"9876543210"
    store, contents = store_in(tmp_path), contents_of(data)
    put(store, data, 0, 4)
    unfinished = tmp_path / "a" / f"{contents.hash.hex()}.part"
    for there, count in ((wrong, 0), (data, 10)):
        unfinished.write_bytes(there)
        assert store.received("a", (contents,)) == (count,)
        assert not unfinished.exists()
    file = store.whole_file("a", contents)
    assert file is not None
    assert file.read_bytes() == data


def test_more_than_a_client_may_have_is_refused_before_it_travels(tmp_path: Path) -> None:
    store = store_in(tmp_path, most=100)
    with pytest.raises(QuotaExceeded):
        store.received("a", (contents_of(bytes(60)), contents_of(bytes(41))))
    assert store.received("a", (contents_of(bytes(60)), contents_of(bytes(60)))) == (0, 0)
    data = bytes(101)
    put(store, data, 0, 100)
    with pytest.raises(QuotaExceeded):
        put(store, data, 100, 101)


def test_a_file_that_was_cut_is_sent_again(tmp_path: Path) -> None:
    data = b"0123456789"
    store, contents = store_in(tmp_path), contents_of(data)
    put(store, data, 0, 10)
    with (tmp_path / "a" / contents.hash.hex()).open("r+b") as file:
        file.truncate(4)
    assert store.received("a", (contents,)) == (0,)
    assert put(store, data, 0, 10) == 10


def test_a_folder_that_cannot_be_is_a_fault_of_the_settings(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(InvalidConfig, match="upload_folder"):
        store_in(tmp_path / "file" / "below")


def test_a_key_has_its_folder_wherever_it_stands() -> None:
    first, second = "a" * 16, "b" * 16
    before, after = KeyRing([first, second]), KeyRing([second])
    assert before.folder_of("key-2") == after.folder_of("key-1") != before.folder_of("key-1")
    assert second not in after.folder_of("key-1")


def test_the_service_answers_for_the_client_of_the_connection(tmp_path: Path) -> None:
    data, table = b"12345", ServiceTable([UploadService(store_in(tmp_path))])
    parts = (UploadPart(contents_of(data), 0),)
    connection = InProcessConnection(table, client="a")
    answer, _ = connection.request(PutUploads(parts=parts), [memoryview(data)])
    assert answer.received == (5,)  # type: ignore[attr-defined]
    other = InProcessConnection(table, client="b")
    assert other.request(FindUploads(tensors=(contents_of(data),)))[0].received == (0,)  # type: ignore[attr-defined]
    with pytest.raises(InvalidRequest, match="different numbers"):
        connection.request(PutUploads(parts=parts), [])
    bare = InProcessConnection(ServiceTable([UploadService(None)]))
    with pytest.raises(InvalidRequest, match="keeps no uploads"):
        bare.request(FindUploads(tensors=()))
