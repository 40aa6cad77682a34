"""Reads safetensors files (header: u64 length, JSON; then the data) without trusting them.

A file is accepted only if its tensors cover the data exactly: sorted by offset, each begins where the one before ends,
and the last ends with the file. So no two overlap, none lies outside, and no byte is left over.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tmmu.codec.files import is_special
from tmmu.codec.json_text import decode_json
from tmmu.errors import InvalidConfig, PlanCorrupt
from tmmu.ir.graph import DTYPE_BYTES

HEADER_MAX: Final = 100 << 20
"""Bytes of a header, as in the reference implementation."""
RANK_MAX: Final = 64
"""Axes of a tensor, as in torch."""
DTYPES: Final = {
    "BOOL": "bool",
    "U8": "uint8",
    "I8": "int8",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E5M2": "float8_e5m2",
    "F8_E5M2FNUZ": "float8_e5m2fnuz",
    "F8_E8M0": "float8_e8m0fnu",
    "U16": "uint16",
    "I16": "int16",
    "F16": "float16",
    "BF16": "bfloat16",
    "U32": "uint32",
    "I32": "int32",
    "F32": "float32",
    "U64": "uint64",
    "I64": "int64",
    "F64": "float64",
    "C64": "complex64",
}
"""Torch's name of each dtype of the format."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredTensor:
    """A tensor in a file: ``size`` bytes from byte ``offset`` of the file on, row-major. ``dtype`` is torch's name."""

    path: Path
    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    size: int


def stored_tensors(path: Path) -> dict[str, StoredTensor]:
    """The tensors of a file, or of every ``*.safetensors`` in a folder, by name.

    ``INVALID_CONFIG`` for a missing, truncated or oversized file, a malformed header, a size that is not shape times
    dtype, tensors that overlap or leave gaps, or one name in two files.
    """
    files = sorted(path.glob("*.safetensors")) if path.is_dir() else [path]
    if not files:
        raise InvalidConfig(f"no safetensors file at {path}", fix="name a file, or a folder that has some")
    tensors: dict[str, StoredTensor] = {}
    for file in files:
        for name, stored in _read_header(file).items():
            if name in tensors:
                raise _format_error(file, f"{name} is in {tensors[name].path.name} too")
            tensors[name] = stored
    return tensors


def read_stored(stored: StoredTensor, target: memoryview, skip: int = 0) -> None:
    """Fills ``target`` with the tensor's bytes from byte ``skip`` on; ``INVALID_CONFIG`` if the file was truncated."""
    handle = _open(stored.path)
    try:
        done = 0
        # A read may return less than was asked for: Linux caps each at 2 GiB.
        while done < len(target):
            count = os.preadv(handle, [target[done:]], stored.offset + skip + done)
            if not count:
                end = stored.offset + skip + done
                reason = f"it ends at byte {end}, inside {stored.name}; it was longer when it was opened"
                raise _format_error(stored.path, reason)
            done += count
    except OSError as error:
        raise _format_error(stored.path, f"{stored.name} cannot be read: {error.strerror}") from error
    finally:
        os.close(handle)


def _read_header(path: Path) -> dict[str, StoredTensor]:
    handle = _open(path)
    try:
        length = os.fstat(handle).st_size
        start, header = _decode_header(path, handle, length)
    except OSError as error:
        raise _unreadable(path, error) from error
    finally:
        os.close(handle)
    tensors = {name: _parse_row(path, name, row, start) for name, row in header.items() if name != "__metadata__"}
    end = start
    for tensor in sorted(tensors.values(), key=lambda stored: (stored.offset, stored.size, stored.name)):
        if tensor.offset != end:
            gap = f"{tensor.name} starts at byte {tensor.offset}, and what comes before ends at {end}"
            raise _format_error(path, gap)
        end += tensor.size
    if end != length:
        raise _format_error(path, f"its tensors end at byte {end}, and the file at {length}")
    return tensors


def _open(path: Path) -> int:
    if is_special(path):
        raise InvalidConfig(f"{path} is no regular file", fix="name a safetensors file")
    if path.is_dir():
        raise InvalidConfig(f"{path} is a folder", fix="name a safetensors file, or the folder that has such files")
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise _unreadable(path, error) from error


def _unreadable(path: Path, error: OSError) -> InvalidConfig:
    return InvalidConfig(
        f"cannot read {path}: {error.strerror}", fix="check the name, or fetch the file", path=str(path)
    )


def _decode_header(path: Path, handle: int, length: int) -> tuple[int, dict[str, object]]:
    """(byte at which the data begins, the header's JSON object)."""
    head = os.pread(handle, 8, 0)
    size = int.from_bytes(head, "little")
    if len(head) < 8 or size > min(HEADER_MAX, length - 8):
        raise _format_error(
            path, f"a header of {size} bytes in a file of {length}" if len(head) == 8 else "it has no header"
        )
    text = os.pread(handle, size, 8)
    try:
        header = decode_json(text, members=_unique_members)
    except PlanCorrupt as error:
        raise _format_error(path, f"its header is {error.what}") from error
    if not isinstance(header, dict):
        raise _format_error(path, "its header is no map")
    return 8 + size, header


def _unique_members(pairs: Sequence[tuple[str, object]]) -> dict[str, object]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise ValueError("a name is there twice")
    return members


def _parse_row(path: Path, name: str, row: object, start: int) -> StoredTensor:
    if not isinstance(row, dict) or set(row) != {"dtype", "shape", "data_offsets"}:
        raise _format_error(path, f"{name} is not described by dtype, shape and data_offsets")
    dtype, shape, offsets = row["dtype"], row["shape"], row["data_offsets"]
    if not isinstance(dtype, str) or dtype not in DTYPES:
        raise _format_error(path, f"{name} has dtype {dtype!r}, which is unknown")
    if not _is_size_list(shape) or len(shape) > RANK_MAX or not _is_size_list(offsets) or len(offsets) != 2:
        raise _format_error(path, f"{name} has shape {shape!r} and offsets {offsets!r}")
    size = DTYPE_BYTES[DTYPES[dtype]]
    for extent in shape:
        size *= extent
    if offsets[1] - offsets[0] != size:
        raise _format_error(path, f"{name} has {offsets[1] - offsets[0]} bytes, and its shape and dtype make {size}")
    offset = start + offsets[0]
    return StoredTensor(path=path, name=name, dtype=DTYPES[dtype], shape=tuple(shape), offset=offset, size=size)


def _is_size_list(value: object) -> bool:
    return isinstance(value, list) and all(type(item) is int and 0 <= item < 1 << 63 for item in value)


def _format_error(path: Path, reason: str) -> InvalidConfig:
    shortened = " ".join(reason.split())[:300]
    return InvalidConfig(f"{path} is no whole safetensors file: {shortened}", fix="fetch it again", path=str(path))
