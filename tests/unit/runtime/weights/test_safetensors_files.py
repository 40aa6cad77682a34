"""Safetensors files are read to the byte, or refused with the reason."""

import errno
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import _TYPES, save_file

from tmmu.errors import InvalidConfig
from tmmu.runtime.weights.safetensors_files import read_stored, stored_tensors

TENSORS = {"a": torch.arange(6, dtype=torch.float32).view(2, 3), "b": torch.ones(3, dtype=torch.bfloat16)}


def write_file(path: Path, header: Any, data: bytes = b"", *, size: int | None = None) -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes((len(text) if size is None else size).to_bytes(8, "little") + text + data)
    return path


def row(dtype: Any = "U8", shape: Any = (2,), low: Any = 0, high: Any = 2) -> dict[str, Any]:
    return {"dtype": dtype, "shape": list(shape) if isinstance(shape, tuple) else shape, "data_offsets": [low, high]}


def test_stored_tensors_are_those_that_were_saved(tmp_path: Path) -> None:
    path = tmp_path / "w.safetensors"
    save_file(TENSORS, path, {"format": "pt"})
    stored = stored_tensors(path)
    assert set(stored) == {"a", "b"}
    for name, tensor in TENSORS.items():
        entry = stored[name]
        assert (entry.dtype, entry.shape, entry.size) == (str(tensor.dtype)[6:], tuple(tensor.shape), tensor.nbytes)
        data = bytearray(entry.size)
        read_stored(entry, memoryview(data))
        assert bytes(data) == tensor.view(torch.uint8).numpy().tobytes()
        part = bytearray(3)
        read_stored(entry, memoryview(part), 2)
        assert part == data[2:5]


def test_folder_has_the_tensors_of_all_its_files(tmp_path: Path) -> None:
    for name, tensor in TENSORS.items():
        save_file({name: tensor}, tmp_path / f"{name}.safetensors")
    assert set(stored_tensors(tmp_path)) == {"a", "b"}
    save_file({"a": TENSORS["a"]}, tmp_path / "again.safetensors")
    with pytest.raises(InvalidConfig, match=r"a is in a\.safetensors too"):
        stored_tensors(tmp_path)


def test_dtypes_of_the_format_are_all_known_by_torchs_names(tmp_path: Path) -> None:
    for dtype in _TYPES.values():
        save_file({"t": torch.zeros(4, dtype=dtype)}, tmp_path / "w.safetensors")
        assert stored_tensors(tmp_path / "w.safetensors")["t"].dtype == str(dtype)[6:]


@pytest.mark.parametrize(
    ("header", "data", "reason"),
    [
        ({"t": row(high=3)}, b"abc", "has 3 bytes, and its shape and dtype make 2"),
        ({"t": row(shape=(1 << 62, 4), high=8)}, b"a" * 8, "shape and dtype make"),
        ({"t": row()}, b"a", "end at byte 70, and the file at 69"),
        ({"t": row()}, b"abc", "end at byte 70, and the file at 71"),
        ({"t": row(low=1, high=3)}, b"abc", "starts at byte"),
        ({"t": row(), "u": row()}, b"ab", "u starts at byte"),
        ({"t": row(), "u": row(low=1, high=3)}, b"abc", "u starts at byte"),
        ({"t": row(dtype="X9")}, b"ab", "dtype 'X9', which is unknown"),
        ({"t": row(dtype=["U8"])}, b"ab", "which is unknown"),
        ({"t": row(shape=(-2,))}, b"ab", "has shape"),
        ({"t": row(shape=(2.0,))}, b"ab", "has shape"),
        ({"t": row(shape=(True, 2))}, b"ab", "has shape"),
        ({"t": row(shape="2")}, b"ab", "has shape"),
        ({"t": row(shape=(1,) * 65, high=1)}, b"a", "has shape"),
        ({"t": row(low=-2, high=0)}, b"ab", "offsets"),
        ({"t": {"dtype": "U8", "shape": [2]}}, b"ab", "not described by"),
        ({"t": row() | {"more": 1}}, b"ab", "not described by"),
        ({"t": 3}, b"", "not described by"),
        ([], b"", "its header is no map"),
        (b"{", b"", "no JSON"),
        (b"\xff", b"", "no JSON"),
        (b"[" * 100_000, b"", "no JSON"),
        (b'{"t": 1, "t": 2}', b"", "a name is there twice"),
    ],
)  # fmt: skip
def test_malformed_files_are_refused_with_the_reason(tmp_path: Path, header: Any, data: bytes, reason: str) -> None:
    with pytest.raises(InvalidConfig, match="is no whole safetensors file") as caught:
        stored_tensors(write_file(tmp_path / "w.safetensors", header, data))
    assert reason in caught.value.what


@pytest.mark.parametrize("size", [1, 99, 1 << 40, (1 << 64) - 1])
def test_header_longer_than_the_file_is_refused(tmp_path: Path, size: int) -> None:
    with pytest.raises(InvalidConfig, match=f"a header of {size} bytes in a file of 8"):
        stored_tensors(write_file(tmp_path / "w.safetensors", b"", size=size))


def test_missing_and_irregular_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig, match="cannot read"):
        stored_tensors(tmp_path / "none.safetensors")
    with pytest.raises(InvalidConfig, match="no safetensors file at"):
        stored_tensors(tmp_path)
    (tmp_path / "empty.safetensors").touch()
    with pytest.raises(InvalidConfig, match="it has no header"):
        stored_tensors(tmp_path)
    with pytest.raises(InvalidConfig, match="no regular file"):
        stored_tensors(Path("/dev/zero"))
    (tmp_path / "empty.safetensors").unlink()
    (tmp_path / "folder.safetensors").mkdir()
    with pytest.raises(InvalidConfig, match=r"folder.safetensors is a folder"):
        stored_tensors(tmp_path)


def test_unreadable_files_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> bytes:
        raise OSError(errno.EIO, "Input/output error")

    path = write_file(tmp_path / "w.safetensors", {"t": row()}, b"ab")
    monkeypatch.setattr(os, "pread", refuse)
    with pytest.raises(InvalidConfig, match=r"cannot read .*w.safetensors: Input/output error"):
        stored_tensors(path)


def test_file_truncated_after_its_header_was_read_is_refused_at_its_end(tmp_path: Path) -> None:
    path = tmp_path / "w.safetensors"
    save_file(TENSORS, path)
    entry = stored_tensors(path)["a"]
    with path.open("r+b") as file:
        file.truncate(entry.offset + 5)
    with pytest.raises(InvalidConfig, match=rf"ends at byte {entry.offset + 5}, inside a"):
        read_stored(entry, memoryview(bytearray(entry.size)))
    with path.open("r+b") as file:
        file.truncate(entry.offset)
    with pytest.raises(InvalidConfig, match=rf"ends at byte {entry.offset}, inside a"):
        read_stored(entry, memoryview(bytearray(entry.size)))
    path.unlink()
    with pytest.raises(InvalidConfig, match="cannot read"):
        read_stored(entry, memoryview(bytearray(entry.size)))


def read_or_none(reader: Callable[[Path], Any], path: Path) -> Any:
    try:
        return reader(path)
    except InvalidConfig:
        return None


@given(st.data())
def test_mutated_files_are_refused_or_read_within_bounds(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    path = tmp_path_factory.getbasetemp() / "fuzzed.safetensors"
    save_file(TENSORS, path)
    content = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(content[: data.draw(st.integers(0, len(content)))] if data.draw(st.booleans()) else content)
    stored = read_or_none(stored_tensors, path)
    for entry in (stored or {}).values():
        assert 8 <= entry.offset <= entry.offset + entry.size <= path.stat().st_size
