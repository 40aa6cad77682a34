"""Pinned (page-locked) host memory: registered with the GPU where it lies, in segments, all of it or none."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final, Protocol

SEGMENT: Final = 1 << 30
"""Bytes that are registered at once. A copy must not span two segments, so this should exceed most layers."""


class PinningRefused(RuntimeWarning):
    """Host memory could not be pinned: copies are right, but each makes the host wait."""


class Registrar(Protocol):
    """Pins host memory for a GPU."""

    def register(self, address: int, size: int) -> str:
        """Pins it; returns why that was refused, empty if it was not."""

    def unregister(self, address: int) -> None:
        """The memory is pageable again."""


class CudaRegistrar:
    """``cudaHostRegister`` through torch's binding of the CUDA runtime.

    The runtime keeps the error of a refusal and reports it to the next caller, some unrelated kernel launch:
    ``clear_error`` takes it first.
    """

    def __init__(self, runtime: Any, clear_error: Callable[[], None]) -> None:
        self._runtime, self._clear_error = runtime, clear_error

    def register(self, address: int, size: int) -> str:
        """Pins it; returns the runtime's error code as text, empty for success."""
        code = int(self._runtime.cudaHostRegister(address, size, 0))
        if code == 0:
            return ""
        self._clear_error()
        return f"cudaHostRegister returns {code}"

    def unregister(self, address: int) -> None:
        """The memory is pageable again."""
        self._runtime.cudaHostUnregister(address)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pinning:
    """``pinned_bytes`` of ``size`` bytes are pinned: all, or none and the ``refusal`` says why.

    ``segments`` are the addresses to unregister.
    """

    size: int
    pinned_bytes: int
    segments: tuple[int, ...]
    refusal: str


def pin(address: int, bounds: Sequence[int], registrar: Registrar) -> Pinning:
    """Registers every segment between two neighbouring ``bounds`` (bytes from ``address``); after a refusal none."""
    size, registered = bounds[-1] - bounds[0], list[int]()
    for low, high in pairwise(bounds):
        refusal = registrar.register(address + low, high - low)
        if refusal:
            unpin(registered, registrar)
            return Pinning(size=size, pinned_bytes=0, segments=(), refusal=refusal)
        registered.append(address + low)
    return Pinning(size=size, pinned_bytes=size, segments=tuple(registered), refusal="")


def unpin(segments: Sequence[int], registrar: Registrar) -> None:
    """Unregisters all segments."""
    for address in reversed(segments):
        registrar.unregister(address)
