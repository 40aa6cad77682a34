"""What copies cost on this machine, a large one and one of many small ones, and how wide the link is.

The best and not the mean: what else the machine does can only make a copy slower.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import perf_counter_ns
from typing import Any, Final

import torch

from tmmu.errors import DeviceMissing, InvalidConfig
from tmmu.runtime.device.cuda import CudaDevice, pci_address
from tmmu.runtime.memory.sizing import require_free

SMALL: Final = 4096
"""Bytes of the copies whose count is what costs."""
MANY: Final = 256
"""How many of them are timed at once."""
SECOND: Final = 10**9
PCI: Final = Path("/sys/bus/pci/devices")


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyRate:
    """One kind of copy: the best time of ``bytes``, and of one of many copies of 4 KiB, in ns."""

    source: str
    target: str
    bytes: int
    best_ns: int
    small_ns: int

    @property
    def bytes_per_second(self) -> int:
        """Of the large copy."""
        return self.bytes * SECOND // max(self.best_ns, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class PciLink:
    """A device's place on the bus: transfers per second and lanes, now and at most, in the system's words."""

    address: str
    speed: str
    width: str
    max_speed: str
    max_width: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Bandwidth:
    """All that was measured on a device. ``unpinned`` says why pinned memory could not be had, if it could not."""

    device: str
    name: str
    rates: tuple[CopyRate, ...]
    link: PciLink | None
    unpinned: str


def measure_bandwidth(device: str | None, size: int, tries: int) -> Bandwidth:
    """Copies between the host and a GPU, both ways, from pinned and from pageable memory; of ``cpu`` within the host.

    Without a device, of the first GPU where there is one.

    ``DEVICE_MISSING`` where it is not there, ``DEVICE_MEMORY`` where the host or the device cannot hold ``size`` bytes.
    """
    if size < SMALL or tries < 1:
        raise InvalidConfig(f"{tries} copies of {size} bytes measure nothing", fix=f"copy at least {SMALL} bytes once")
    where = _device(device)
    require_free(2 * size, torch.device("cpu"))
    if where.type == "cpu":
        return _of_host(size, tries)
    gpu = CudaDevice(where.index or 0)
    require_free(size, gpu.device)
    try:
        return measure_gpu(gpu, size, tries, torch.cuda)
    finally:
        gpu.close()


def _device(text: str | None) -> torch.device:
    try:
        found = torch.device(text or ("cuda" if torch.cuda.is_available() else "cpu"))
    except RuntimeError as error:
        raise InvalidConfig(f"{text!r} is no device", fix="name cpu, cuda or cuda:1", device=text) from error
    if found.type not in ("cpu", "cuda"):
        raise DeviceMissing(f"nothing is known of copies to {text}", fix="name cpu, cuda or cuda:1", device=text)
    return found


def _of_host(size: int, tries: int) -> Bandwidth:
    """With one thread as a copy thread has, and with all as an operator has."""
    source, target = (torch.ones(size, dtype=torch.uint8) for _ in range(2))
    threads = torch.get_num_threads()
    one = partial(_copied, target.numpy(), source.numpy())
    every = partial(_copied_by_torch, target, source)
    rates = [_rate("host", "host, 1 thread", size, tries, one)]
    if threads > 1:
        rates.append(_rate("host", f"host, {threads} threads", size, tries, every))
    return Bandwidth(device="cpu", name="the host's memory", rates=tuple(rates), link=None, unpinned="no GPU")


def measure_gpu(gpu: CudaDevice, size: int, tries: int, cuda: Any) -> Bandwidth:
    """Both ways, pinned and pageable. Pinned memory is registered where it lies, as a host image is."""
    there = gpu.memory(gpu.allocate(size)).bytes(0, size)
    pageable = torch.ones(size, dtype=torch.uint8)
    pinned = torch.ones(size, dtype=torch.uint8)
    why = gpu.registrar.register(pinned.data_ptr(), size) if gpu.registrar else "nobody can register it"
    kinds = [("pageable", pageable)] if why else [("pinned", pinned), ("pageable", pageable)]
    properties = cuda.get_device_properties(gpu.device)
    try:
        rates = [
            _rate(source, target, size, tries, partial(_copied_by_torch, into, out, wait=gpu.synchronize))
            for kind, here in kinds
            for source, target, into, out in ((kind, "device", there, here), ("device", kind, here, there))
        ]
    finally:
        if gpu.registrar and not why:
            gpu.registrar.unregister(pinned.data_ptr())
    address = pci_address(properties)
    return Bandwidth(
        device=str(gpu.device), name=properties.name, rates=tuple(rates), link=pci_link(address), unpinned=why
    )


def _rate(source: str, target: str, size: int, tries: int, copy: Callable[[int, int], None]) -> CopyRate:
    """``copy(size, times)`` returns when that many copies of so many bytes are done."""
    best = best_time(partial(copy, size, 1), tries)
    small = best_time(partial(copy, SMALL, MANY), tries) // MANY
    return CopyRate(source=source, target=target, bytes=size, best_ns=best, small_ns=small)


def best_time(run: Callable[[], None], tries: int, clock: Callable[[], int] = perf_counter_ns) -> int:
    """The least ns of so many runs, after one that is not counted."""
    run()
    return min(_timed(run, tries, clock))


def _timed(run: Callable[[], None], tries: int, clock: Callable[[], int]) -> Iterator[int]:
    for _ in range(tries):
        start = clock()
        run()
        yield clock() - start


def _copied(target: Any, source: Any, size: int, times: int) -> None:
    into, out = target[:size], source[:size]
    for _ in range(times):
        into[:] = out


def _copied_by_torch(
    target: torch.Tensor, source: torch.Tensor, size: int, times: int, *, wait: Callable[[], None] | None = None
) -> None:
    into, out = target[:size], source[:size]
    asynchronous = wait is not None and (target.is_pinned() or source.is_pinned())
    for _ in range(times):
        into.copy_(out, non_blocking=asynchronous)
    if wait is not None:
        wait()


def pci_link(address: str, root: Path = PCI) -> PciLink | None:
    """What the system says of a device's link; nothing where it says nothing."""
    names = ("current_link_speed", "current_link_width", "max_link_speed", "max_link_width")
    try:
        speed, width, max_speed, max_width = ((root / address / name).read_text().strip() for name in names)
    except (OSError, ValueError):
        return None
    return PciLink(address=address, speed=speed, width=width, max_speed=max_speed, max_width=max_width)
