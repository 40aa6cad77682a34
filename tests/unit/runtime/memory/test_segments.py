"""Segments agree with models of their bytes, whatever is called in whatever order."""

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tmmu.errors import AlignmentViolation, DeviceMemory, InvalidConfig, SegmentFull, SessionUnknown
from tmmu.runtime.memory.data import DataSegment
from tmmu.runtime.memory.sizing import GIB, Sizing, device_memory, segment_sizes
from tmmu.runtime.memory.stack import StackSegment
from tmmu.runtime.memory.text import TextSegment

UNIT = 16
CAPACITY = 24 * UNIT
SIZES = st.sampled_from([0, 1, 15, 16, 17, 40, 64, 100, 128, 129])
NAMES = st.sampled_from("abcdef")


def units(size: int) -> int:
    return -(-size // UNIT)


class DataMachine(RuleBasedStateMachine):
    """The model: a string with a letter per unit, its owner's, or a dot where it is free."""

    def __init__(self) -> None:
        super().__init__()
        self.segment = DataSegment(CAPACITY, quota=8 * UNIT, alignment=UNIT)
        self.map = "." * (CAPACITY // UNIT)
        self.open: dict[str, tuple[int, int]] = {}
        self.used: dict[str, int] = {}
        self.peak = 0

    @rule(name=NAMES, size=SIZES)
    def reserve(self, name: str, size: int) -> None:
        want = units(size)
        spot = self.map.find("." * want)
        if name in self.open:
            with pytest.raises(InvalidConfig):
                self.segment.reserve(name, size)
        elif want > 8 or spot < 0:
            with pytest.raises(SegmentFull) as caught:
                self.segment.reserve(name, size)
            assert caught.value.fields["bytes"] == want * UNIT
        else:
            base = self.segment.reserve(name, size)
            if want:
                assert base == spot * UNIT
            self.map = self.map[:spot] + name * want + self.map[spot + want :]
            self.open[name], self.used[name] = (base, want * UNIT), 0
            self.peak = max(self.peak, CAPACITY - self.map.count(".") * UNIT)

    @rule(name=NAMES, size=st.integers(0, 3 * UNIT), alignment=st.sampled_from([1, 4, 32]))
    def bump(self, name: str, size: int, alignment: int) -> None:
        if name not in self.open:
            with pytest.raises(SessionUnknown):
                self.segment.bump(name, size)
            return
        base, room = self.open[name]
        start = base + self.used[name]
        start += -start % alignment
        if start + size > base + room:
            with pytest.raises(SegmentFull):
                self.segment.bump(name, size, alignment)
        else:
            assert self.segment.bump(name, size, alignment) == start
            self.used[name] = start + size - base
        assert self.segment.used_bytes(name) == self.used[name]

    @rule(name=NAMES)
    def reclaim(self, name: str) -> None:
        if name not in self.open:
            with pytest.raises(SessionUnknown):
                self.segment.reclaim(name)
        else:
            assert self.segment.reclaim(name) == self.open.pop(name)[1]
            self.map = self.map.replace(name, ".")

    @invariant()
    def usage_is_what_the_map_shows(self) -> None:
        usage = self.segment.usage
        free = self.map.count(".") * UNIT
        longest = max(map(len, self.map.replace(".", " ").translate({ord(c): "|" for c in "abcdef"}).split("|"))) * UNIT
        assert (usage.free, usage.largest_free, usage.peak) == (free, longest, self.peak)
        assert usage.fragmentation_ppm == ((free - longest) * 10**6 // free if free else 0)
        assert usage.utilization_ppm == (CAPACITY - free) * 10**6 // CAPACITY
        assert self.segment.sessions == tuple(sorted(self.open))


class TextMachine(RuleBasedStateMachine):
    """The model: a letter per unit, the reference counts, and who was released in what order."""

    def __init__(self) -> None:
        super().__init__()
        self.segment = TextSegment(CAPACITY, alignment=UNIT)
        self.map = "." * (CAPACITY // UNIT)
        self.references: dict[str, int] = {}
        self.released: list[str] = []
        self.size = dict(zip("abcdef", (0, 5, 40, 100, 128, 300), strict=True))

    def drop(self, name: str) -> None:
        self.map = self.map.replace(name, ".")
        del self.references[name]

    @rule(name=NAMES, fails=st.booleans())
    def load(self, name: str, fails: bool) -> None:
        key, size, calls = name.encode(), self.size[name], []

        def write(offset: int) -> None:
            calls.append(offset)
            if fails:
                raise OSError("disk")

        if name in self.references:
            self.segment.load(key, size, write)
            self.references[name] += 1
            self.released = [other for other in self.released if other != name]
            assert calls == []
            return
        row = "." * units(size)
        while row not in self.map and self.released:
            self.drop(self.released.pop(0))
        spot = self.map.find(row)
        if spot < 0:
            with pytest.raises(SegmentFull):
                self.segment.load(key, size, write)
            return
        if fails:
            with pytest.raises(OSError, match="disk"):
                self.segment.load(key, size, write)
            return
        assert calls == []
        base = self.segment.load(key, size, write)
        assert calls == [base]
        assert not row or base == spot * UNIT
        self.map = self.map[:spot] + name * len(row) + self.map[spot + len(row) :]
        self.references[name] = 1

    @rule(name=NAMES)
    def release(self, name: str) -> None:
        if not self.references.get(name):
            with pytest.raises(InvalidConfig):
                self.segment.release(name.encode())
            return
        self.references[name] -= 1
        if not self.references[name]:
            self.released.append(name)
        assert self.segment.release(name.encode()) == self.references[name]

    @invariant()
    def usage_is_what_the_map_shows(self) -> None:
        usage = self.segment.usage
        longest = max(map(len, "".join("." if unit == "." else "|" for unit in self.map).split("|"))) * UNIT
        assert (usage.free, usage.largest_free) == (self.map.count(".") * UNIT, longest)
        for name in "abcdef":
            assert self.segment.references(name.encode()) == self.references.get(name, 0)


class StackMachine(RuleBasedStateMachine):
    """The model: the tops between slabs, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.segment = StackSegment(CAPACITY, alignment=UNIT)
        self.tops = [0]
        self.peak = 0

    @rule(size=SIZES)
    def push(self, size: int) -> None:
        top = self.tops[-1]
        if top + units(size) * UNIT > CAPACITY:
            with pytest.raises(SegmentFull):
                self.segment.push(size)
            return
        assert self.segment.mark() == top
        assert self.segment.push(size) == top
        self.tops.append(top + units(size) * UNIT)
        self.peak = max(self.peak, self.tops[-1])

    @precondition(lambda self: len(self.tops) > 1)
    @rule(data=st.data())
    def reset(self, data: st.DataObject) -> None:
        keep = data.draw(st.integers(1, len(self.tops)))
        self.tops = self.tops[:keep]
        self.segment.reset(self.tops[-1])

    @invariant()
    def a_mark_above_the_top_is_refused(self) -> None:
        with pytest.raises(InvalidConfig):
            self.segment.reset(self.tops[-1] + 1)
        assert (self.segment.usage.used, self.segment.usage.peak) == (self.tops[-1], self.peak)


RUNS = settings(derandomize=True, max_examples=100, stateful_step_count=40, deadline=None)
TestData = DataMachine.TestCase
TestText = TextMachine.TestCase
TestStack = StackMachine.TestCase
TestData.settings = TestText.settings = TestStack.settings = RUNS


def test_data_gaps_between_sessions_are_reused_and_merge() -> None:
    segment = DataSegment(4 * UNIT, alignment=UNIT)
    for name in "abcd":
        segment.reserve(name, UNIT)
    segment.reclaim("b")
    segment.reclaim("c")
    assert segment.usage.largest_free == 2 * UNIT
    assert segment.reserve("e", 2 * UNIT) == UNIT


def test_data_arenas_without_bytes_split_no_gap() -> None:
    segment = DataSegment(4 * UNIT, alignment=UNIT)
    segment.reserve("a", UNIT)
    segment.reserve("b", 0)
    segment.reclaim("a")
    assert segment.usage.largest_free == 4 * UNIT
    assert segment.reclaim("b") == 0


def test_text_contents_of_one_key_have_one_size() -> None:
    segment = TextSegment(CAPACITY)
    with pytest.raises(SegmentFull, match="text"):
        segment.load(b"k", CAPACITY + 1, print)
    segment = TextSegment(CAPACITY, alignment=UNIT)
    segment.load(b"k", 20, lambda _: None)
    with pytest.raises(InvalidConfig, match="20 bytes here, not 21"):
        segment.load(b"k", 21, lambda _: None)


@pytest.mark.parametrize("make", [TextSegment, DataSegment, StackSegment])
def test_segments_refuse_bad_capacities_and_alignments(make: type) -> None:
    with pytest.raises(InvalidConfig):
        make(-1)
    with pytest.raises(AlignmentViolation):
        make(64, alignment=48)


def test_segment_sizes_are_shares_of_free_memory_less_reserve_and_margin() -> None:
    sizes = segment_sizes(free=43 * GIB, total=48 * GIB)
    assert (sizes.text, sizes.data, sizes.stack) == (20 * GIB, 14 * GIB, 6 * GIB)


def test_segment_sizes_never_share_out_the_reserve() -> None:
    rules = Sizing(margin=0, minimum=0, text_ppm=10**6, data_ppm=0, stack_ppm=0)
    assert segment_sizes(free=50 * GIB, total=40 * GIB, sizing=rules).text == 38 * GIB


def test_segment_sizes_meet_the_minimum_exactly_or_are_refused_with_the_numbers() -> None:
    segment_sizes(free=11 * GIB, total=80 * GIB)
    with pytest.raises(DeviceMemory) as caught:
        segment_sizes(free=11 * GIB - 1, total=80 * GIB)
    fields = caught.value.fields
    assert (fields["free"], fields["usable"], fields["minimum"]) == (11 * GIB - 1, 8 * GIB - 1, 8 * GIB)


def test_segment_shares_above_the_whole_are_refused() -> None:
    with pytest.raises(InvalidConfig):
        segment_sizes(20 * GIB, 20 * GIB, Sizing(text_ppm=600_000, data_ppm=350_000))
    with pytest.raises(InvalidConfig):
        segment_sizes(20 * GIB, 20 * GIB, Sizing(margin=-1))


def test_device_memory_is_known_of_the_host_and_refused_of_other_devices() -> None:
    free, total = device_memory(torch.device("cpu"))
    assert 0 < free <= total
    with pytest.raises(InvalidConfig, match="meta"):
        device_memory(torch.device("meta"))
