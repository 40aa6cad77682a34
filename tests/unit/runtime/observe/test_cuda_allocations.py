"""The history of CUDA's allocator: in the format of its snapshots, with what real GPUs recorded. No GPU is needed."""

import inspect
from collections.abc import Mapping
from typing import Any

import pytest
import torch

from benchmarks.cuda_history import read_history, read_usage, segments_before
from tests.unit.eager.test_recordings import FOLDER
from tmmu.eager.observed import BEFORE, observed_memory
from tmmu.runtime.observe.cuda_allocations import CudaAllocationLog, CudaHistory, allocation_events


class Card:
    """An allocator's history as torch gives it: entries with the mark that stands when each is made."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.entries: list[dict[str, Any]] = []
        self.mark_text = "of another"

    @property
    def history(self) -> CudaHistory:
        return CudaHistory(start=self.start, stop=self.stop, mark=self.mark, snapshot=self.snapshot)

    def start(self, device: torch.device) -> None:
        self.log.append(f"start {device}")

    def stop(self, device: torch.device) -> None:
        self.log.append(f"stop {device}")

    def mark(self, text: str) -> None:
        self.mark_text = text

    def snapshot(self, device: torch.device) -> Mapping[str, Any]:
        self.log.append(f"snapshot {device}")
        return {"segments": [], "device_traces": [[], self.entries]}

    def note(self, action: str, address: int, size: int) -> None:
        marked = {"user_metadata": self.mark_text}
        self.entries.append({"action": action, "addr": address, "size": size, "stream": 0, "time_us": 1} | marked)


def test_entries_belong_to_the_call_whose_mark_they_have() -> None:
    card = Card()
    with CudaAllocationLog(torch.device("cuda", 1), card.history) as allocations:
        with allocations.in_call(BEFORE):
            card.note("segment_alloc", 4096, 2 << 20)
            card.note("alloc", 4096, 100)
        with allocations.in_call(0):
            card.note("alloc", 8192, 200)
        card.note("free_requested", 4096, 512)
        card.note("free_completed", 4096, 512)
        with allocations.in_call(1):
            card.note("alloc", 4096, 300)
    found = [(event.call, event.inside, event.bytes) for event in allocations.events]
    assert found == [(BEFORE, True, 100), (0, True, 200), (0, False, -100), (1, True, 300)]
    assert card.log == ["start cuda:1", "snapshot cuda:1", "stop cuda:1"]
    assert card.mark_text == ""


def test_entry_without_a_mark_belongs_where_the_one_before_does() -> None:
    """Where torch marks allocs alone."""
    entries = [
        {"action": "alloc", "addr": 1, "size": 8, "user_metadata": "tmmu call 0"},
        {"action": "free_requested", "addr": 1, "size": 8},
    ]
    assert [(event.call, event.bytes) for event in allocation_events(entries)] == [(0, 8), (0, -8)]


def test_names_of_torch_take_what_they_are_given() -> None:
    """No GPU is here: the signatures are all that can be seen."""
    memory = torch.cuda.memory
    device = torch.device("cuda", 0)
    history = inspect.signature(memory._record_memory_history_impl)
    history.bind("all", context=None, device=device, clear_history=True)
    history.bind(None, device=device)
    inspect.signature(memory._snapshot).bind(device)
    inspect.signature(memory._set_memory_metadata).bind("text")


def test_history_ends_with_a_run_that_fails() -> None:
    card = Card()
    with pytest.raises(KeyError), CudaAllocationLog(torch.device("cuda", 1), card.history):
        raise KeyError
    assert card.log == ["start cuda:1", "stop cuda:1"]


@pytest.mark.parametrize("name", sorted(FOLDER))
def test_live_bytes_of_recordings_are_those_of_the_card(name: str) -> None:
    """Each entry of a recording as a call of its own: the levels are what the card had live above its start."""
    history = read_history(FOLDER[name], name)
    rows = [row for row in history.rows if row["action"] in ("alloc", "free_requested")]
    before = [block for segment in segments_before(history) for block in segment.blocks]
    entries: list[dict[str, Any]] = [{"action": "alloc", "addr": b.address, "size": b.request} for b in before]
    entries += [
        {"action": row["action"], "addr": int(row["addr"]), "size": int(row["size"]), "user_metadata": f"tmmu call {i}"}
        for i, row in enumerate(rows)
    ]
    memory = observed_memory(allocation_events(entries), len(rows))
    recorded = read_usage(history, segments_before(history))
    levels = [live for event, live in zip(recorded.events, recorded.live, strict=True) if event.action != "empty_cache"]
    assert memory.before == sum(block.request for block in before)
    first = levels[0] - memory.called[0]
    assert [first + level for level in memory.called] == levels
