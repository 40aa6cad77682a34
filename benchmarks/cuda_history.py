"""Recorded histories of CUDA's caching allocator against its model: ``python -m benchmarks.cuda_history [--data DIR]``.

A recording begins in the middle of a process. What was there before follows from the recording alone, without a guess:

- segments: those at the end that were not made in it, and those given back in it that were not made in it;
- allocated blocks: those freed in it without an alloc before, and those at the end without an alloc;
- their sizes: at the end they are told; a block that is freed later is as large as its request, rounded up to 512,
  and in the large pool takes a gap of at most 1 MiB behind it too (such a gap is never a block there);
- all else in those segments was free, and free neighbours are one block.

The events are then allocs, frees (``free_requested``) and, for a row of ``segment_free``, one ``empty_cache``; what
the model reserves, splits and makes is its own. Two replays: with addresses of the model's own, and with new segments
at the addresses that the driver gave, where each block must lie where it lay on the card. Exits 1 unless live bytes
are equal after each event, and reserved bytes and segments made are within 2 %.
"""

import argparse
import csv
import gzip
import sys
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias

from tmmu.eager.allocator import DEFAULT_CONFIG, CachingAllocator
from tmmu.eager.allocator_blocks import BlockState, SegmentState
from tmmu.eager.allocator_config import AllocatorConfig, parse_allocator_config
from tmmu.eager.caching_allocator import AllocatorEvent, AllocatorUsage, replay

LARGE_TAIL: Final = 1 << 20
ROUNDED_TO: Final = 512
TOLERANCE: Final = 0.02
MIB: Final = 1 << 20
HEADING: Final = (
    f"{'':23} {'live':>8} {'model':>8} {'blocks':>8} {'reserved':>8} {'model':>6} {'ratio':>6} "
    f"{'made':>5} {'model':>5} {'in place':>10} {'end':>3}"
)

Row: TypeAlias = dict[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """The rows of a recording, in order, and the blocks of all segments at its end."""

    name: str
    rows: tuple[Row, ...]
    blocks_at_end: tuple[Row, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedUsage:
    """What the card did: bytes after each event of ``events``, and the address of each alloc."""

    events: tuple[AllocatorEvent, ...]
    addresses: tuple[int, ...]
    """Of the block of each alloc."""
    segments: tuple[tuple[int, int], ...]
    """Address and bytes of each segment made, in order."""
    live: tuple[int, ...]
    reserved: tuple[int, ...]
    storages_at_end: Mapping[int, int]
    """Of each address that is allocated then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """A recording beside the replays of the model from the same state before."""

    name: str
    recorded: RecordedUsage
    model: AllocatorUsage
    equal_addresses: int
    """Allocs that lie where they lay on the card, where new segments do."""
    is_end_equal: bool
    """Segments and allocated blocks at the end are those of the card, where new segments lie where they did."""

    @property
    def is_right(self) -> bool:
        """Live bytes to the byte after each event; reserved bytes after each, and segments made, within 2 %."""
        pairs = zip(self.recorded.reserved, self.model.reserved, strict=True)
        return (
            self.recorded.live == self.model.live
            and self.is_end_equal
            and all(_is_near(model, recorded) for recorded, model in pairs)
            and _is_near(self.model.segment_allocs, len(self.recorded.segments))
        )


def _is_near(model: int, recorded: int) -> bool:
    return abs(model - recorded) <= TOLERANCE * recorded


def read_history(folder: Path, name: str) -> History:
    return History(
        name=name,
        rows=tuple(_rows(folder / f"{name}.events.csv.gz")),
        blocks_at_end=tuple(_rows(folder / f"{name}.blocks_at_end.csv.gz")),
    )


def _rows(path: Path) -> Iterator[Row]:
    with gzip.open(path, "rt", newline="") as lines:
        yield from csv.DictReader(lines)


def names_of(folder: Path) -> list[str]:
    return sorted(path.name.removesuffix(".events.csv.gz") for path in folder.glob("*.events.csv.gz"))


def segments_before(history: History) -> tuple[SegmentState, ...]:
    """The segments and allocated blocks that were there before the first event; storages are negative numbers."""
    blocks = _blocks_before(history)
    starts = sorted(blocks)
    states = []
    for address, (nbytes, is_small, stream) in sorted(_extents_before(history).items()):
        first, last = bisect_left(starts, address), bisect_left(starts, address + nbytes)
        inside = []
        for index in range(first, last):
            start = starts[index]
            request, size = blocks[start]
            end = starts[index + 1] if index + 1 < last else address + nbytes
            size = size or _size_in_gap(request, end - start, is_small=is_small)
            inside.append(BlockState(storage=-1 - index, address=start, nbytes=size, request=request))
        states.append(
            SegmentState(address=address, nbytes=nbytes, is_small=is_small, stream=stream, blocks=tuple(inside))
        )
    return tuple(states)


def _extents_before(history: History) -> dict[int, tuple[int, bool, int]]:
    """Bytes, pool and stream of each segment by its address."""
    extents: dict[int, tuple[int, bool, int]] = {}
    made: dict[int, int] = {}
    for row in history.rows:
        address, nbytes = int(row["addr"]), int(row["size"])
        if row["action"] == "segment_alloc":
            made[address] = nbytes
        elif row["action"] == "segment_free" and made.pop(address, None) is None:
            extents[address] = (nbytes, nbytes == 2 << 20, int(row["stream"]))
    for row in history.blocks_at_end:
        if int(row["segment"]) not in made:
            small = row["segment_type"] == "small"
            extents[int(row["segment"])] = (int(row["segment_size"]), small, int(row["stream"]))
    return extents


def _blocks_before(history: History) -> dict[int, tuple[int, int]]:
    """Request and bytes (0: not told) of each block by its address."""
    blocks: dict[int, tuple[int, int]] = {}
    live: set[int] = set()
    for row in history.rows:
        address = int(row["addr"])
        if row["action"] == "alloc":
            live.add(address)
        elif row["action"] == "free_requested":
            if address not in live:
                blocks[address] = (int(row["size"]), 0)
            live.discard(address)
    for row in history.blocks_at_end:
        if row["state"] == "active_allocated" and int(row["addr"]) not in live:
            blocks[int(row["addr"])] = (int(row["requested_size"]), int(row["size"]))
    return blocks


def _size_in_gap(request: int, gap: int, *, is_small: bool) -> int:
    rounded = -(-request // ROUNDED_TO) * ROUNDED_TO
    return gap if not is_small and gap - rounded <= LARGE_TAIL else rounded


def read_usage(history: History, before: tuple[SegmentState, ...]) -> RecordedUsage:
    """The recording as events, and what it says about each; the storages of ``before`` are live at its beginning."""
    storages = {block.address: block.storage for segment in before for block in segment.blocks}
    live = sum(block.request for segment in before for block in segment.blocks)
    reserved = sum(segment.nbytes for segment in before)
    columns: dict[str, list[int]] = defaultdict(list)
    events: list[AllocatorEvent] = []
    segments = []
    previous = ""
    for number, row in enumerate(history.rows):
        action, address, nbytes = row["action"], int(row["addr"]), int(row["size"])
        reserved += nbytes * ((action == "segment_alloc") - (action == "segment_free"))
        live += nbytes * ((action == "alloc") - (action == "free_requested"))
        if action == "segment_alloc":
            segments.append((address, nbytes))
        elif action == "segment_free" and previous == action:
            columns["reserved"][-1] = reserved
        elif action != "free_completed":
            if action == "alloc":
                storages[address] = number
                columns["addresses"].append(address)
            events.append(_event(row, storages))
            columns["live"].append(live)
            columns["reserved"].append(reserved)
        previous = action
    return RecordedUsage(
        events=tuple(events),
        segments=tuple(segments),
        addresses=tuple(columns["addresses"]),
        live=tuple(columns["live"]),
        reserved=tuple(columns["reserved"]),
        storages_at_end=storages,
    )


def _event(row: Row, storages: dict[int, int]) -> AllocatorEvent:
    stream = int(row["stream"])
    match row["action"]:
        case "alloc":
            storage = storages[int(row["addr"])]
            return AllocatorEvent(action="alloc", storage=storage, nbytes=int(row["size"]), stream=stream)
        case "free_requested":
            return AllocatorEvent(action="free", storage=storages.pop(int(row["addr"])))
        case "segment_free":
            return AllocatorEvent(action="empty_cache")
    raise ValueError(f"unknown action {row['action']}")


def compare(history: History, config: AllocatorConfig = DEFAULT_CONFIG) -> Comparison:
    before = segments_before(history)
    recorded = read_usage(history, before)
    model = replay(recorded.events, CachingAllocator(config, segments=before))
    at_recorded = CachingAllocator(config, segments=before, addresses=DriverAddresses(recorded.segments))
    placed = replay(recorded.events, at_recorded).addresses
    return Comparison(
        name=history.name,
        recorded=recorded,
        model=model,
        equal_addresses=sum(ours == theirs for ours, theirs in zip(placed, recorded.addresses, strict=True)),
        is_end_equal=at_recorded.segment_states() == _segments_at_end(history, recorded.storages_at_end),
    )


def _segments_at_end(history: History, storages: Mapping[int, int]) -> tuple[SegmentState, ...]:
    """As the snapshot tells them; what lies between allocated blocks is free."""
    blocks: dict[int, list[BlockState]] = defaultdict(list)
    segments: dict[int, Row] = {}
    for row in history.blocks_at_end:
        segments[int(row["segment"])] = row
        if row["state"] == "active_allocated":
            address, nbytes, request = int(row["addr"]), int(row["size"]), int(row["requested_size"])
            state = BlockState(storage=storages[address], address=address, nbytes=nbytes, request=request)
            blocks[int(row["segment"])].append(state)
    return tuple(
        SegmentState(
            address=address,
            nbytes=int(row["segment_size"]),
            is_small=row["segment_type"] == "small",
            stream=int(row["stream"]),
            blocks=tuple(blocks[address]),
        )
        for address, row in sorted(segments.items())
    )


class DriverAddresses:
    """Where the driver put each segment of a recording, in order; above all of them where the sizes differ."""

    def __init__(self, segments: tuple[tuple[int, int], ...]) -> None:
        self._segments = iter(segments)
        self._above = 1 << 60

    def __call__(self, nbytes: int) -> int:
        address, recorded = next(self._segments, (0, 0))
        if nbytes == recorded:
            return address
        self._above += nbytes
        return self._above


def show(comparison: Comparison) -> str:
    """A line of the table: peaks in MiB, segments made, allocs that lie where they lay, whether all do at the end."""
    recorded, model = comparison.recorded, comparison.model
    live, allocated, reserved = model.peaks
    end = "yes" if comparison.is_end_equal else "NO"
    in_place = f"{comparison.equal_addresses}/{len(recorded.addresses)}"
    return (
        f"{comparison.name:23} {max(recorded.live) / MIB:8.2f} {live / MIB:8.2f} {allocated / MIB:8.2f} "
        f"{max(recorded.reserved) / MIB:8.0f} {reserved / MIB:6.0f} {reserved / max(recorded.reserved):6.4f} "
        f"{len(recorded.segments):5} {model.segment_allocs:5} {in_place:>10} {end:>3}"
    )


def summary(comparisons: list[Comparison]) -> str:
    """What holds after each event, over all recordings."""
    live = sum(comparison.recorded.live == comparison.model.live for comparison in comparisons)
    worst = max(map(largest_difference, comparisons))
    return (
        f"live bytes equal after each event: {live} of {len(comparisons)}; "
        f"reserved bytes differ after any by at most {100 * worst:.2f} %"
    )


def largest_difference(comparison: Comparison) -> float:
    """Of reserved bytes after any event, relative to what was recorded."""
    pairs = zip(comparison.recorded.reserved, comparison.model.reserved, strict=True)
    return max(abs(model - recorded) / recorded for recorded, model in pairs)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("../shared/data/cuda_history"))
    parser.add_argument("--settings", default="", help="PYTORCH_ALLOC_CONF of the recorded processes")
    options = parser.parse_args()
    config = parse_allocator_config(options.settings)
    names = names_of(options.data)
    if not names:
        print(f"no recording under {options.data}", file=sys.stderr)
        return 2
    print(HEADING)
    comparisons = [compare(read_history(options.data, name), config) for name in names]
    print(*map(show, comparisons), summary(comparisons), sep="\n")
    return 0 if all(comparison.is_right for comparison in comparisons) else 1


if __name__ == "__main__":
    sys.exit(main())
