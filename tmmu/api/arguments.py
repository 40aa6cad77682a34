"""What the functions of the Python interface take: each argument is looked at first, and refused by name."""

import os
from collections.abc import Sequence
from pathlib import Path

from tmmu.errors import InvalidConfig
from tmmu.ir.fault import U64_MAX
from tmmu.planner.arenas import parse_size


def path_of(value: object, what: str) -> Path:
    """The path that a text or a path object names; ``INVALID_CONFIG`` for anything else, and for no name at all."""
    text = value if isinstance(value, str) else os.fspath(value) if isinstance(value, os.PathLike) else None
    if not isinstance(text, str) or not text or "\0" in text:
        raise InvalidConfig(f"{_shown(value)} is no path", fix=f"give {what} as a text or a pathlib.Path")
    try:
        Path(text).is_dir()
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise InvalidConfig(f"{_shown(value)} is no path: {reason}", fix=f"choose another name for {what}") from error
    return Path(text)


def count_of(value: object) -> int:
    """A whole number of at least 0; ``INVALID_CONFIG`` for anything else."""
    if type(value) is not int or value < 0:
        raise InvalidConfig(f"{_shown(value)} is no count", fix="write a whole number of at least 0")
    return value


def bytes_of(size: object) -> int:
    """Bytes of a text such as ``"24GB"``, or as a number; ``INVALID_CONFIG`` for anything else or past 64 bits."""
    if isinstance(size, str):
        return parse_size(size)
    if type(size) is not int or not 0 <= size <= U64_MAX:
        raise InvalidConfig(f"{_shown(size)} is not a size", fix='write bytes, or a text such as "24GB"')
    return size


def texts_of(value: object, what: str) -> tuple[str, ...]:
    """Texts in a list or tuple; ``INVALID_CONFIG`` for anything else, one text by itself too."""
    is_list = isinstance(value, Sequence) and not isinstance(value, (str, bytes))
    if not is_list or not all(isinstance(text, str) for text in value):  # type: ignore[attr-defined]
        raise InvalidConfig(f"{_shown(value)} is no list of texts", fix=f"give {what} as a tuple of texts")
    return tuple(value)  # type: ignore[arg-type]


def require_kind(value: object, kind: type, what: str) -> None:
    """``INVALID_CONFIG`` for a value of another class; ``what`` says where the right one comes from."""
    if not isinstance(value, kind):
        raise InvalidConfig(f"{_shown(value)} is no {kind.__name__}", fix=f"give {what}")


def _shown(value: object) -> str:
    """A short look at it; of what is large or cannot be shown, its class."""
    if value is None or isinstance(value, (str, bytes, int, float)):
        return f"{value!r:.80}"
    return f"a {type(value).__name__}"
