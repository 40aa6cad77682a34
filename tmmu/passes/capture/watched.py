"""Whether the user's code is being watched: by a profile function, which rests where no code of the user's can run."""

import sys
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any, Final, TypeAlias

Profile: TypeAlias = Callable[[FrameType, str, Any], object]

WATCHES: Final[list[Profile]] = []
"""The profile functions that may rest: nobody else's."""


class Unwatched:
    """While inside, this thread's watch rests. Only torch's code and ours may run inside."""

    __slots__ = ("_rests",)

    def __enter__(self) -> None:
        profile = sys.getprofile() if WATCHES else None
        self._rests = profile if profile in WATCHES else None
        if self._rests is not None:
            sys.setprofile(None)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._rests is not None:
            sys.setprofile(self._rests)
