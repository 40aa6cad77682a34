"""Settings of torch's caching allocator, and the sizes that follow from them (docs/spec/caching-allocator.md)."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from tmmu.errors import InvalidConfig

MIB: Final = 1 << 20
BLOCK_BYTES: Final = 512
"""Every block is a multiple of it."""
SMALL_BYTES: Final = MIB
"""The largest rounded request of the small pool."""
SMALL_SEGMENT_BYTES: Final = 2 * MIB
LARGE_SEGMENT_BYTES: Final = 20 * MIB
OWN_SEGMENT_BYTES: Final = 10 * MIB
"""Requests from here on are rounded to ``SEGMENT_STEP_BYTES`` and get a segment of their own size."""
SEGMENT_STEP_BYTES: Final = 2 * MIB
INTERVALS: Final = 16
"""Powers of two from 1 MiB on that ``roundup_power2_divisions`` tells apart; the last one holds all above."""
_MOST_MIB: Final = (2**64 - 1) // MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocatorConfig:
    """Settings that decide what is reserved; the defaults are torch's. Sizes are in bytes."""

    large_segment_bytes: int = LARGE_SEGMENT_BYTES
    max_split_bytes: int | None = None
    """Blocks of so many bytes or more are never split, nor used for requests below; ``None`` is no limit."""
    max_non_split_rounding_bytes: int = LARGE_SEGMENT_BYTES
    roundup_power2_divisions: tuple[int, ...] = (0,) * INTERVALS
    """One for each power of two of MiB; 0 and 1 round to ``BLOCK_BYTES`` alone."""
    garbage_collection_threshold: float = 0.0
    """Share of what is allowed above which old segments are released before new ones; 0 is never."""
    expandable_segments: bool = False
    per_process_memory_fraction: float = 1.0
    """Share of the capacity that is allowed; 1 leaves the refusal to the device."""


def round_request(nbytes: int, config: AllocatorConfig) -> int:
    """The bytes of the block that a request of ``nbytes`` above 0 is looked up with."""
    if nbytes < BLOCK_BYTES:
        return BLOCK_BYTES
    interval = min(max(nbytes.bit_length() - MIB.bit_length(), 0), INTERVALS - 1)
    divisions = config.roundup_power2_divisions[interval]
    if divisions > 1 and nbytes > BLOCK_BYTES * divisions:
        floor = 1 << nbytes.bit_length() - 1
        return _round_up(nbytes, max(floor // divisions, 1))
    return _round_up(nbytes, BLOCK_BYTES)


def segment_bytes(block_bytes: int, config: AllocatorConfig) -> int:
    """The size of the segment that is made when no free block holds ``block_bytes``."""
    if block_bytes <= SMALL_BYTES:
        return SMALL_SEGMENT_BYTES
    if block_bytes < OWN_SEGMENT_BYTES:
        return config.large_segment_bytes
    return _round_up(block_bytes, SEGMENT_STEP_BYTES)


def _round_up(nbytes: int, step: int) -> int:
    return -(-nbytes // step) * step


def parse_allocator_config(text: str) -> AllocatorConfig:
    """The settings that the text of ``PYTORCH_ALLOC_CONF`` or ``PYTORCH_CUDA_ALLOC_CONF`` says.

    ``key:value`` pairs between commas; white space counts nowhere; of a key that is there twice, the last one.
    Settings of pinned memory and of locks are accepted and change nothing here. Raises ``InvalidConfig``.
    """
    config = AllocatorConfig()
    compact = re.sub(r"\s", "", text)
    for pair in re.split(r",(?![^\[]*\])", compact.removesuffix(",")) if compact else ():
        key, colon, value = pair.partition(":")
        if not colon or not value:
            raise _invalid(f"{pair!r} is no key:value pair", "write key:value pairs between commas")
        config = _with_setting(config, key, value)
    return config


_UNRELATED: Final = (
    "release_lock_on_cudamalloc", "release_lock_on_hipmalloc", "pinned_use_cuda_host_register",
    "pinned_use_hip_host_register", "pinned_num_register_threads", "pinned_reserve_segment_size_mb",
    "pinned_use_background_threads", "pinned_free_catch_all", "pinned_max_round_threshold_mb",
    "pinned_max_cached_size_mb", "graph_capture_record_stream_reuse", "throw_on_cudamalloc_oom",
)  # fmt: skip
"""Settings of pinned memory, locks, graphs and the moment of refusal: none changes what is reserved."""


def _with_setting(config: AllocatorConfig, key: str, value: str) -> AllocatorConfig:
    """``config`` with one pair of the text; lower limits are those of torch, in the order of the text."""
    if key in _SETTINGS:
        return _SETTINGS[key](config, value)
    if key not in _UNRELATED:
        raise _invalid(f"unknown setting {key!r}", "names are those of torch's PYTORCH_ALLOC_CONF")
    return config


def _with_large_segment(config: AllocatorConfig, value: str) -> AllocatorConfig:
    least = OWN_SEGMENT_BYTES // MIB + 1
    return replace(config, large_segment_bytes=_mib("large_segment_size_mb", value, least=least))


def _with_max_split(config: AllocatorConfig, value: str) -> AllocatorConfig:
    least = config.large_segment_bytes // MIB
    return replace(config, max_split_bytes=_mib("max_split_size_mb", value, least=least))


def _with_rounding(config: AllocatorConfig, value: str) -> AllocatorConfig:
    least = config.large_segment_bytes // MIB
    return replace(config, max_non_split_rounding_bytes=_mib("max_non_split_rounding_mb", value, least=least))


def _with_threshold(config: AllocatorConfig, value: str) -> AllocatorConfig:
    share = _number(value)
    if share is None or not 0 < share < 1:
        raise _invalid(f"garbage_collection_threshold:{value} is out of range", "a number above 0 and below 1")
    return replace(config, garbage_collection_threshold=share)


def _with_fraction(config: AllocatorConfig, value: str) -> AllocatorConfig:
    share = _number(value)
    if share is None or not 0 <= share <= 1:
        raise _invalid(f"per_process_memory_fraction:{value} is out of range", "a number from 0 to 1")
    return replace(config, per_process_memory_fraction=share)


def _with_expandable(config: AllocatorConfig, value: str) -> AllocatorConfig:
    if value not in {"True", "False"}:
        raise _invalid(f"expandable_segments:{value} is neither True nor False", "write True or False")
    return replace(config, expandable_segments=value == "True")


def _with_divisions(config: AllocatorConfig, value: str) -> AllocatorConfig:
    return replace(config, roundup_power2_divisions=_divisions(value))


def _with_backend(config: AllocatorConfig, value: str) -> AllocatorConfig:
    if value != "native":
        raise _invalid(f"backend:{value} is not modelled", "only backend:native is")
    return config


_SETTINGS: Final[Mapping[str, Callable[[AllocatorConfig, str], AllocatorConfig]]] = {
    "large_segment_size_mb": _with_large_segment,
    "max_split_size_mb": _with_max_split,
    "max_non_split_rounding_mb": _with_rounding,
    "garbage_collection_threshold": _with_threshold,
    "per_process_memory_fraction": _with_fraction,
    "expandable_segments": _with_expandable,
    "roundup_power2_divisions": _with_divisions,
    "backend": _with_backend,
}


def _mib(key: str, value: str, *, least: int) -> int:
    count = _whole(key, value)
    if count < least:
        raise _invalid(f"{key}:{value} is too small", f"at least {least}")
    return min(count, _MOST_MIB) * MIB


def _whole(key: str, value: str) -> int:
    if not re.fullmatch(r"[0-9]{1,20}", value):
        raise _invalid(f"{key}:{value} is no whole number", "write decimal digits")
    return int(value)


def _number(value: str) -> float | None:
    return float(value) if re.fullmatch(r"[0-9]+(\.[0-9]*)?|\.[0-9]+", value) else None


def _divisions(value: str) -> tuple[int, ...]:
    """One power of two for all sizes, or ``[64:8,256:4,>:1]``: MiB and divisions, ``>`` for all above the last.

    The first boundary speaks for all sizes below it too; a size between two boundaries has the default, 0.
    """
    if not value.startswith("["):
        return (_power_of_two(value),) * INTERVALS
    if not value.endswith("]"):
        raise _invalid(f"roundup_power2_divisions:{value} has no closing ]", "write for example [64:8,256:4,>:1]")
    divisions, last, is_first = [0] * INTERVALS, 0, True
    for pair in filter(None, value[1:-1].split(",")):
        boundary, colon, count = pair.partition(":")
        if not colon:
            raise _invalid(f"roundup_power2_divisions: {pair!r} is no MiB:divisions pair", "write for example [64:8]")
        amount = 0 if count == "0" else _power_of_two(count)
        if boundary == ">":
            divisions[last + 1 :] = [amount] * (INTERVALS - last - 1)
            continue
        last = min(_power_of_two(boundary).bit_length() - 1, INTERVALS - 1)
        start = 0 if is_first else last
        divisions[start : last + 1], is_first = [amount] * (last + 1 - start), False
    return tuple(divisions)


def _power_of_two(value: str) -> int:
    count = _whole("roundup_power2_divisions", value)
    if count < 1 or count & count - 1:
        raise _invalid(f"roundup_power2_divisions: {value} is no power of two", "write 1, 2, 4, 8, ...")
    return count


def _invalid(what: str, fix: str) -> InvalidConfig:
    return InvalidConfig(f"allocator settings: {what}", fix=fix)
