"""Host memory that a GPU can read by itself: the image is registered where it lies, piece by piece, or not at all."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final, Protocol

SEGMENT: Final = 1 << 30
"""Bytes that are registered at once. A copy must lie in one segment, so it should be larger than most layers."""


class PinningRefused(RuntimeWarning):
    """Copies are right, but slow: the host's memory could not be registered, so each makes the host wait."""


class Registrar(Protocol):
    """Makes memory known to a GPU."""

    def register(self, address: int, size: int) -> str:
        """Why it was refused; empty if it was not."""

    def unregister(self, address: int) -> None:
        """The memory is ordinary again."""


class CudaRegistrar:
    """``cudaHostRegister``, by torch's own binding of the runtime.

    The runtime keeps the error of a refusal for whoever asks next, which would be some kernel: ``forget`` asks first.
    """

    def __init__(self, runtime: Any, forget: Callable[[], None]) -> None:
        self._runtime, self._forget = runtime, forget

    def register(self, address: int, size: int) -> str:
        """Why it was refused, in the runtime's words."""
        code = int(self._runtime.cudaHostRegister(address, size, 0))
        if code == 0:
            return ""
        self._forget()
        return f"cudaHostRegister returns {code}"

    def unregister(self, address: int) -> None:
        """The pages may move again."""
        self._runtime.cudaHostUnregister(address)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pinning:
    """``pinned`` of ``size`` bytes are registered: all, or none and ``why``."""

    size: int
    pinned_bytes: int
    segments: tuple[int, ...]
    refusal: str


def pin(address: int, cuts: Sequence[int], registrar: Registrar) -> Pinning:
    """Every segment between two cuts is registered, or after the first refusal none."""
    size, done = cuts[-1] - cuts[0], list[int]()
    for low, high in pairwise(cuts):
        why = registrar.register(address + low, high - low)
        if why:
            unpin(done, registrar)
            return Pinning(size=size, pinned_bytes=0, segments=(), refusal=why)
        done.append(address + low)
    return Pinning(size=size, pinned_bytes=size, segments=tuple(done), refusal="")


def unpin(segments: Sequence[int], registrar: Registrar) -> None:
    """None of the segments is registered any more."""
    for address in reversed(segments):
        registrar.unregister(address)
