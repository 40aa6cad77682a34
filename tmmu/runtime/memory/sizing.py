"""Sizes of the segments, decided once from the free memory of a device, before anything is allocated."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch

from tmmu.errors import DeviceMemory, DeviceMissing, InvalidConfig
from tmmu.runtime.memory.usage import DEFAULT_ALIGNMENT, PPM

GIB: Final = 2**30
_MEMINFO: Final = Path("/proc/meminfo")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizing:
    """Bytes left to others, the least usable bytes to start with, and each segment's share in parts per million."""

    os_reserve: int = 2 * GIB
    margin: int = GIB
    minimum: int = 8 * GIB
    text_ppm: int = 500_000
    data_ppm: int = 350_000
    stack_ppm: int = 150_000


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentSizes:
    """Bytes of each segment, multiples of 256."""

    text: int
    data: int
    stack: int


def segment_sizes(free: int, total: int, sizing: Sizing | None = None) -> SegmentSizes:
    """Shares of ``min(free - os_reserve - margin, total - os_reserve)`` bytes, each rounded down to 256.

    ``DEVICE_MEMORY`` where that is less than the minimum, ``INVALID_CONFIG`` for shares that exceed the whole.
    """
    rules = _require_valid(sizing or Sizing())
    usable = min(free - rules.os_reserve - rules.margin, total - rules.os_reserve)
    if usable < rules.minimum:
        raise DeviceMemory(
            f"the device has {free} of {total} bytes free: {usable} after a reserve of {rules.os_reserve} "
            f"and a margin of {rules.margin}, and {rules.minimum} are the least to start with",
            fix="free memory on the device, or lower reserve, margin or minimum",
            free=free,
            total=total,
            usable=usable,
            os_reserve=rules.os_reserve,
            margin=rules.margin,
            minimum=rules.minimum,
        )
    return SegmentSizes(
        text=_share(usable, rules.text_ppm), data=_share(usable, rules.data_ppm), stack=_share(usable, rules.stack_ppm)
    )


def _share(usable: int, ppm: int) -> int:
    return usable * ppm // PPM // DEFAULT_ALIGNMENT * DEFAULT_ALIGNMENT


def _require_valid(rules: Sizing) -> Sizing:
    shares = (rules.text_ppm, rules.data_ppm, rules.stack_ppm)
    if min(shares) < 0 or sum(shares) > PPM:
        raise InvalidConfig(
            f"the shares of text, data and stack are {shares} parts per million",
            fix=f"make them add up to {PPM} or less",
            shares=list(shares),
        )
    for name in ("os_reserve", "margin", "minimum"):
        if getattr(rules, name) < 0:
            raise InvalidConfig(f"{name} is {getattr(rules, name)} bytes", fix="give a size of 0 or more")
    return rules


def require_free(size: int, device: torch.device) -> None:
    """``DEVICE_MEMORY`` where the device has less than ``size`` bytes free.

    Checked up front: Linux grants more than it has, and kills the process when the bytes are touched.
    """
    free, total = device_memory(device)
    if size > free:
        raise DeviceMemory(
            f"the plan needs {size} bytes, and {device} has {free} of {total} free",
            fix="free memory on the device, or plan a smaller model, batch or sequence",
            bytes=size,
            free=free,
            total=total,
            device=str(device),
        )


def device_of(spec: torch.device | str) -> torch.device:
    """The device that ``spec`` names, ``cpu`` without an index; ``INVALID_CONFIG`` for any that is not cpu or cuda."""
    try:
        device = torch.device(spec)
    except (RuntimeError, TypeError) as error:
        shown = repr(spec) if isinstance(spec, str) else f"a {type(spec).__name__}"
        raise InvalidConfig(f"{shown} is no device", fix="use cpu, cuda or cuda:N") from error
    if device.type not in ("cpu", "cuda"):
        raise InvalidConfig(f"nothing runs on device {device}", fix="use cpu, cuda or cuda:N", device=str(device))
    if device.type == "cpu" and device.index not in (None, 0):
        raise InvalidConfig(f"there is no {device}: all cores are one device", fix="use cpu", device=str(device))
    return torch.device("cpu") if device.type == "cpu" else device


def require_device(spec: torch.device | str, cuda: Any = torch.cuda) -> None:
    """``DEVICE_MISSING`` where this machine has no such GPU."""
    device = torch.device(spec)
    if device.type != "cuda" or (cuda.is_available() and (device.index or 0) < cuda.device_count()):
        return
    gpu_count = cuda.device_count() if cuda.is_available() else 0
    raise DeviceMissing(
        f"there is no {device}: torch {torch.__version__} sees {gpu_count} GPUs",
        fix="use --device cpu, or a build of torch for CUDA on a machine with a GPU",
        device=str(device),
    )


def device_memory(device: torch.device) -> tuple[int, int]:
    """(free, total) bytes of the device now; on the host, free is what can be had without swapping."""
    if device.type == "cuda":
        require_device(device)
        return torch.cuda.mem_get_info(device)
    if device.type != "cpu":
        raise InvalidConfig(f"no memory is known of device {device}", fix="use cpu or cuda", device=str(device))
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return _available_bytes(), total


def _available_bytes() -> int:
    """Linux's ``MemAvailable``; elsewhere free pages, which leave out what caches could give back."""
    if _MEMINFO.exists():
        for line in _MEMINFO.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")
