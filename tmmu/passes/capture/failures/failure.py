"""A failure as facts: what was raised, in which activity, at which line of the model, inside which operator."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from traceback import walk_tb
from types import FrameType
from typing import Any, Final

import torch

from tmmu.passes.capture.activities import Activity
from tmmu.passes.capture.record.graph_builder import flatten
from tmmu.passes.capture.record.unknown_numbers import UnknownNumber
from tmmu.passes.capture.record.unseen_tensors import is_subclass
from tmmu.torch_private import OpOverload

_CAPTURE: Final = Path(__file__).parents[1]
_RECORDER: Final = str(_CAPTURE / "record" / "recorder.py")
_OURS: Final = str(_CAPTURE.parents[1])
_TORCH: Final = Path(torch.__file__).parent
_MODULE_CALL: Final = frozenset({"_call_impl", "_wrapped_call_impl"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """An exception of the user's code; ``source`` is the model's line, empty where it raises in no line of the user's.

    ``frames`` are those of the traceback, outermost first.
    """

    error: BaseException
    activity: Activity
    source: str
    message: str
    frames: tuple[FrameType, ...]

    @property
    def kind(self) -> str:
        """The name of the exception's class."""
        return type(self.error).__name__

    @property
    def operator(self) -> OpOverload | None:
        """The operator that was called when it was raised."""
        call = self._recorded_call()
        return None if call is None else call["func"]

    @property
    def tensor_subclass(self) -> type | None:
        """A class of tensors with a dispatch of its own: that of a frame, or of an argument of the operator."""
        for frame in reversed(self.frames):
            if frame.f_code.co_name in ("__torch_dispatch__", "__torch_function__"):
                owner = frame.f_locals.get(frame.f_code.co_varnames[0])
                if isinstance(owner, type) and is_subclass(owner):
                    return owner
        call = self._recorded_call() or {}
        leaves = flatten([*call.get("args", ()), *(call.get("kwargs") or {}).values()])
        return next((type(leaf) for leaf in leaves if is_subclass(type(leaf))), None)

    @property
    def is_our_call(self) -> bool:
        """Whether it was raised by the call itself that begins the user's code: the arguments do not fit."""
        last = self.frames[-1].f_code if self.frames else None
        return last is not None and (last.co_filename.startswith(_OURS) or last.co_name in _MODULE_CALL)

    @property
    def takes_unknown_number(self) -> bool:
        """Whether a number that only a run knows is named, or is an argument of what raised it."""
        code, values = (self.frames[-1].f_code, self.frames[-1].f_locals) if self.frames else (None, {})
        names = code.co_varnames[: code.co_argcount] if code is not None else ()
        is_argument = any(type(values.get(name)) is UnknownNumber for name in names)
        return UnknownNumber.__name__ in self.message or is_argument

    def passes(self, *places: str) -> bool:
        """Whether a frame is of one of these files or folders of torch."""
        roots = tuple(str(_TORCH / place) for place in places)
        return any(frame.f_code.co_filename.startswith(roots) for frame in self.frames)

    def _recorded_call(self) -> dict[str, Any] | None:
        """The variables of the innermost call that the recorder was making."""
        calls = (f.f_locals for f in reversed(self.frames) if f.f_code.co_filename == _RECORDER)
        return next((call for call in calls if isinstance(call.get("func"), OpOverload)), None)


def frames_of(error: BaseException) -> tuple[FrameType, ...]:
    """The frames of an exception's traceback, outermost first."""
    return tuple(_walk(error))


def _walk(error: BaseException) -> Iterator[FrameType]:
    for frame, _ in walk_tb(error.__traceback__):
        yield frame
