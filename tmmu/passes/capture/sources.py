"""Where in the user's code an operator call comes from, as ``file:line`` that is the same on every machine."""

import contextlib
import dis
import os
import sys
from functools import cache
from pathlib import Path
from types import FrameType, TracebackType
from typing import NamedTuple

import torch

import tmmu

_TORCH = str(Path(torch.__file__).parent) + os.sep  # with the separator: torchvision is not torch
_OURS = str(Path(tmmu.__file__).parent) + os.sep
_SKIP = (_TORCH, _OURS, contextlib.__file__, "<")
_OPTIMIZERS = str(Path(torch.__file__).parent / "optim") + os.sep
_SITES = frozenset({"site-packages", "dist-packages"})
_ENTRIES = frozenset(
    str(Path(__file__).parent / name) for name in ("trace.py", "training/model_step.py", "training/own_step.py")
)
"""Where the program is called from: frames outside of these belong to whoever runs tmmu, not to the model."""


@cache
def is_library(filename: str) -> bool:
    """Whether a file is of torch, of ours, or none; or Python's own between a ``with`` and the block of another."""
    return filename.startswith(_SKIP)


@cache
def display_name(filename: str, folder: str) -> str:
    """The path relative to the model's folder or to the package that holds the file; never absolute."""
    path = Path(filename)
    if _is_own(path, folder):
        return path.relative_to(folder).as_posix()
    top = path.parent
    if not (top / "__init__.py").is_file():
        return path.name
    while (top / "__init__.py").is_file() and top.parent != top:
        top = top.parent
    return path.relative_to(top).as_posix()


def _is_own(path: Path, folder: str) -> bool:
    """Whether the file lies in the model's folder, and in no environment inside it."""
    return bool(folder) and path.is_relative_to(folder) and not _SITES & set(path.relative_to(folder).parts)


def calling_source(folder: str) -> str:
    """``file:line`` of the innermost frame that is neither torch's nor ours; empty if there is none."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        filename = frame.f_code.co_filename
        if filename in _ENTRIES:
            return ""
        if not is_library(filename):
            return f"{display_name(filename, folder)}:{frame.f_lineno}"
        frame = frame.f_back
    return ""


class UserFrame(NamedTuple):
    """A running function of the user's, or of a library's, and the line that it is at.

    By where it is defined: its code object would keep what was compiled for it.
    """

    file: str
    name: str
    first_line: int
    line: int

    def is_of(self, other: "UserFrame") -> bool:
        """Whether they run one function."""
        return self[:3] == other[:3]


def user_frames() -> tuple[UserFrame, ...]:
    """The frames between here and the program's entry that are neither torch's nor ours, innermost first."""
    frames = []
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:  # a loop and no generator: it runs for each call of a trace
        filename = frame.f_code.co_filename
        if filename in _ENTRIES:
            break
        if not is_library(filename):
            frames.append(_user_frame(frame))
        frame = frame.f_back
    return tuple(frames)


def user_instruction() -> tuple[UserFrame | None, bool]:
    """The innermost of these frames, and whether its present instruction is a call."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename not in _ENTRIES:
        if not is_library(frame.f_code.co_filename):
            return _user_frame(frame), _is_call(frame)
        frame = frame.f_back
    return None, False


def _user_frame(frame: FrameType) -> UserFrame:
    code = frame.f_code
    return UserFrame(code.co_filename, code.co_name, code.co_firstlineno, frame.f_lineno)


def _is_call(frame: FrameType) -> bool:
    """A frame that called Python code in its own loop stands at the inline cache behind the call."""
    code, at = frame.f_code.co_code, frame.f_lasti
    while at > 0 and dis.opname[code[at]] == "CACHE":
        at -= 2
    return "CALL" in dis.opname[code[at]]


def failing_source(traceback: TracebackType | None, folder: str) -> str:
    """``file:line`` of the innermost frame of a failure in the model's folder, else outside torch and tmmu.

    Where the model's line called a library that failed, the library's line follows: ``net.py:6 (timm/layers/x.py:80)``.
    """
    own, outer = "", ""
    while traceback is not None:
        filename = traceback.tb_frame.f_code.co_filename
        location = f"{display_name(filename, folder)}:{traceback.tb_lineno}"
        if not is_library(filename) and _is_own(Path(filename), folder):
            own, outer = location, ""
        elif not is_library(filename):
            outer = location
        traceback = traceback.tb_next
    return f"{own} ({outer})" if own and outer else own or outer


def optimizer_source(traceback: TracebackType | None) -> str:
    """``file:line`` of the innermost frame of a failure in the optimizers of torch; empty if there is none."""
    source = ""
    while traceback is not None:
        filename = traceback.tb_frame.f_code.co_filename
        if filename.startswith(_OPTIMIZERS):
            source = f"{display_name(filename, '')}:{traceback.tb_lineno}"
        traceback = traceback.tb_next
    return source
