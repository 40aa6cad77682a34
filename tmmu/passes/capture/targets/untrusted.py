"""What in an exported program could run code of the file, refused unless the user trusts it.

Nothing is unpickled: sample inputs stay unread, since the graph has their shapes, and weights and constants come from
raw bytes. Archives with other objects, pickled tensors, compiled libraries, or expressions of sizes that are more than
arithmetic (the reader evaluates them as Python) are refused before anything is read.
"""

import re
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, NoReturn

import torch

from tmmu.codec.json_text import decode_json
from tmmu.errors import InvalidConfig, PlanCorrupt
from tmmu.passes.capture.replace import replace_attribute
from tmmu.torch_private import ARCHIVE_UNPICKLER, archive_package, archive_schema

FIX: Final = "add --trust if you trust who made it: its code runs then"
RECORD_MAX: Final = 1 << 29
"""Bytes of a JSON record, unpacked."""
_LEGACY_PICKLE: Final = "serialized_state_dict"
"""How the record of weights begins in the form before torch 2.8, which has them as one pickle."""
_ARITHMETIC: Final = re.compile(
    r"(?:[A-Z]\w*+\(|(?:ceiling|floor|sqrt|log)\(|[A-Za-z]\w*+(?!\s*\()|\d++(?:\.\d++)?|[-+*/%(),<>=!&|~ ])*+"
)
"""Names, calls of sympy's functions, which begin with a capital, numbers and operators; no attribute and no quote."""

_SYMBOL: Final = re.compile(r"Symbol\('\w+'(?:, \w+=(?:True|False))*\)", re.ASCII)
"""A size that is known when the program is called."""


def require_harmless(path: Path) -> None:
    """Returns for an archive without compiled code, foreign objects or expressions that are no arithmetic."""
    with zipfile.ZipFile(path) as archive:
        _require_plain_records(path, archive.infolist())
        for record in archive.infolist():
            name = record.filename.partition("/")[2]
            if record.filename.startswith(_LEGACY_PICKLE):
                _refuse(path, f"its weights exist only as a pickle, {record.filename}")
            if name.startswith("data/aotinductor/"):
                _refuse(path, f"{name} is compiled code")
            is_object = name.startswith("data/constants/") and not name.endswith(".json")
            if is_object and not name.startswith("data/constants/tensor_"):
                _refuse(path, f"{name} is a pickled object")
            if name.endswith(".json"):
                _require_arithmetic(path, name, _json_of(archive, record, path))


def _require_plain_records(path: Path, records: Sequence[zipfile.ZipInfo]) -> None:
    """Records are stored as they are, each in its own bytes: so reading asks for no more memory than the file has."""
    packed = next((record for record in records if record.compress_type != zipfile.ZIP_STORED), None)
    if packed is not None:
        raise InvalidConfig(f"{str(path)!r}: {packed.filename} is compressed", fix="save it with torch.export.save")
    if sum(record.file_size for record in records) > path.stat().st_size:
        raise InvalidConfig(f"{str(path)!r}: its records are larger than the file", fix="export it again")


def _json_of(archive: zipfile.ZipFile, record: zipfile.ZipInfo, path: Path) -> object:
    try:
        if record.file_size > RECORD_MAX:
            raise PlanCorrupt(f"{record.file_size} bytes of JSON")
        return decode_json(archive.read(record))
    except PlanCorrupt as error:
        raise InvalidConfig(f"{str(path)!r}: {record.filename}: {error.what}", fix="export it again") from error


def _require_arithmetic(path: Path, name: str, value: object) -> None:
    """No text under a key of expressions is more than arithmetic."""
    pending = [value]
    while pending:
        item = pending.pop()
        if isinstance(item, dict):
            expression = item.get("expr_str", "")
            if isinstance(expression, str) and _SYMBOL.fullmatch(expression):
                raise InvalidConfig(f"{str(path)!r} has a dynamic shape", fix="export it with static shapes")
            if not isinstance(expression, str) or "__" in expression or not _ARITHMETIC.fullmatch(expression):
                _refuse(path, f"{name} has the expression {str(expression)[:60]!r}")
            pending.extend(item.values())
        elif isinstance(item, list):
            pending.extend(item)


@contextmanager
def without_pickles(path: Path) -> Iterator[None]:
    """Block in which an archive is read without its sample inputs, and a tensor that is a pickle is refused."""

    def leave(serialized: Any) -> Any:
        return None if isinstance(serialized, bytes) else serialized

    def refuse(*_: object, **__: object) -> NoReturn:
        _refuse(path, "a weight or constant exists only as a pickle")

    with ExitStack() as stack:
        stack.enter_context(replace_attribute(archive_schema, ARCHIVE_UNPICKLER, leave))
        stack.enter_context(replace_attribute(torch, "load", refuse))
        if hasattr(archive_package, "pickle"):
            stack.enter_context(replace_attribute(archive_package, "pickle", SimpleNamespace(loads=refuse)))
        yield


def _refuse(path: Path, reason: str) -> NoReturn:
    raise InvalidConfig(f"{str(path)!r} could run code: {reason}", fix=FIX)
