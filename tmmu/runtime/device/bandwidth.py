"""What copies cost on this machine: the rate of large ones, the fixed cost of small ones, and the width of the link.

The best of several tries, not the mean: whatever else the machine does can only make a copy slower.
"""

from collections.abc import Callable
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
"""Bytes of a copy whose cost is its launch."""
MANY: Final = 256
"""Small copies that are timed together: one alone is shorter than the clock's own cost."""
NS_PER_SECOND: Final = 10**9
PCI: Final = Path("/sys/bus/pci/devices")


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyRate:
    """One direction of copies: the best ns of one copy of ``bytes``, and of one of many copies of 4 KiB."""

    source: str
    target: str
    bytes: int
    best_ns: int
    small_ns: int

    @property
    def bytes_per_second(self) -> int:
        """Of the large copy."""
        return self.bytes * NS_PER_SECOND // max(self.best_ns, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class PciLink:
    """A device's PCI link, now and at most, in the system's own words: transfers per second, lanes."""

    address: str
    speed: str
    width: str
    max_speed: str
    max_width: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Bandwidth:
    """All that was measured on a device. ``unpinned`` says why host memory could not be pinned; empty if it was."""

    device: str
    name: str
    rates: tuple[CopyRate, ...]
    link: PciLink | None
    unpinned: str


def measure_bandwidth(device: str | None, size: int, tries: int) -> Bandwidth:
    """Copies of ``size`` bytes between host and GPU, both ways, pinned and pageable; for ``cpu`` within the host.

    ``device=None`` is the first GPU, or the CPU where there is none. Errors: ``DEVICE_MISSING``, ``INVALID_CONFIG``,
    ``DEVICE_MEMORY`` where host or device cannot hold ``size`` bytes.
    """
    if size < SMALL or tries < 1:
        raise InvalidConfig(f"{tries} copies of {size} bytes measure nothing", fix=f"copy at least {SMALL} bytes once")
    torch_device = _torch_device(device)
    require_free(2 * size, torch.device("cpu"))
    if torch_device.type == "cpu":
        return _measure_host(size, tries)
    gpu = CudaDevice(torch_device.index or 0)
    require_free(size, gpu.device)
    try:
        return measure_gpu(gpu, size, tries, torch.cuda)
    finally:
        gpu.close()


def _torch_device(text: str | None) -> torch.device:
    try:
        device = torch.device(text or ("cuda" if torch.cuda.is_available() else "cpu"))
    except RuntimeError as error:
        raise InvalidConfig(f"{text!r} is no device", fix="name cpu, cuda or cuda:1", device=text) from error
    if device.type not in ("cpu", "cuda"):
        raise DeviceMissing(f"nothing is known of copies to {text}", fix="name cpu, cuda or cuda:1", device=text)
    return device


def _measure_host(size: int, tries: int) -> Bandwidth:
    """With one thread, as a copy stream has, and with all threads, as an operator has."""
    source, target = (torch.ones(size, dtype=torch.uint8) for _ in range(2))
    threads = torch.get_num_threads()
    rates = [_copy_rate("host", "host, 1 thread", size, tries, partial(_copy_numpy, target.numpy(), source.numpy()))]
    if threads > 1:
        copy = partial(_copy_torch, target, source)
        rates.append(_copy_rate("host", f"host, {threads} threads", size, tries, copy))
    return Bandwidth(device="cpu", name="the host's memory", rates=tuple(rates), link=None, unpinned="no GPU")


def measure_gpu(gpu: CudaDevice, size: int, tries: int, cuda: Any) -> Bandwidth:
    """Both ways, pinned and pageable. Pinned memory is registered where it lies, as that of a host image is."""
    on_device = gpu.memory(gpu.allocate(size)).bytes(0, size)
    pageable, pinned = (torch.ones(size, dtype=torch.uint8) for _ in range(2))
    refusal = gpu.registrar.register(pinned.data_ptr(), size) if gpu.registrar else "nobody can register it"
    kinds = [("pageable", pageable)] if refusal else [("pinned", pinned), ("pageable", pageable)]
    properties = cuda.get_device_properties(gpu.device)
    try:
        rates = [
            _copy_rate(source, target, size, tries, partial(_copy_torch, into, out, wait=gpu.synchronize))
            for kind, on_host in kinds
            for source, target, into, out in (
                (kind, "device", on_device, on_host),
                ("device", kind, on_host, on_device),
            )
        ]
    finally:
        if gpu.registrar and not refusal:
            gpu.registrar.unregister(pinned.data_ptr())
    address = pci_address(properties)
    return Bandwidth(
        device=str(gpu.device), name=properties.name, rates=tuple(rates), link=pci_link(address), unpinned=refusal
    )


def _copy_rate(source: str, target: str, size: int, tries: int, copy: Callable[[int, int], None]) -> CopyRate:
    """``copy(size, times)`` returns when that many copies of that many bytes are done."""
    best = best_time(partial(copy, size, 1), tries)
    small = best_time(partial(copy, SMALL, MANY), tries) // MANY
    return CopyRate(source=source, target=target, bytes=size, best_ns=best, small_ns=small)


def best_time(run: Callable[[], None], tries: int, clock: Callable[[], int] = perf_counter_ns) -> int:
    """The least ns of ``tries`` runs, after a warm-up run that is not counted."""
    run()
    times = []
    for _ in range(tries):
        start = clock()
        run()
        times.append(clock() - start)
    return min(times)


def _copy_numpy(target: Any, source: Any, size: int, times: int) -> None:
    into, out = target[:size], source[:size]
    for _ in range(times):
        into[:] = out


def _copy_torch(
    target: torch.Tensor, source: torch.Tensor, size: int, times: int, *, wait: Callable[[], None] | None = None
) -> None:
    into, out = target[:size], source[:size]
    asynchronous = wait is not None and (target.is_pinned() or source.is_pinned())
    for _ in range(times):
        into.copy_(out, non_blocking=asynchronous)
    if wait is not None:
        wait()


def pci_link(address: str, root: Path = PCI) -> PciLink | None:
    """What the system says of the link of the device at a PCI address; nothing where it says nothing."""
    names = ("current_link_speed", "current_link_width", "max_link_speed", "max_link_width")
    try:
        speed, width, max_speed, max_width = ((root / address / name).read_text().strip() for name in names)
    except (OSError, ValueError):
        return None
    return PciLink(address=address, speed=speed, width=width, max_speed=max_speed, max_width=max_width)
