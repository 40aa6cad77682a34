"""What only garbage holds is not there when a step runs, and to see that costs what the step's own file has made."""

import gc
import weakref
from collections.abc import Iterator
from pathlib import Path
from threading import Event

import pytest
import torch

from tmmu.passes.capture import collection
from tmmu.passes.capture.collection import garbage_collected_after, keep_what_is_there
from tmmu.passes.capture.program import CapturedProgram
from tmmu.passes.capture.request import CaptureRequest
from tmmu.passes.capture.trace import capture

STEP = """
import torch
model = torch.nn.Linear(4, 4)
def inputs():
    return torch.zeros(2, 4)
def step(x):
    model.zero_grad()
    model(x).sum().backward()
"""
GARBAGE = "cycle = [torch.zeros(100_000)]\ncycle.append(cycle)\ndel cycle\n"


def captured(folder: Path, text: str) -> CapturedProgram:
    (folder / "train.py").write_text(text)
    return capture(CaptureRequest(model=f"{folder / 'train.py'}:step", mode="step", device="cpu"))


@pytest.fixture(autouse=True)
def nothing_kept(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A process that keeps nothing so far, whatever this one has frozen."""
    monkeypatch.setattr(collection, "_KEPT", Event())
    were_frozen = gc.get_freeze_count()
    gc.unfreeze()
    yield
    gc.unfreeze()
    if were_frozen:
        gc.freeze()


@pytest.fixture
def collections() -> Iterator[list[int]]:
    """How many objects each whole collection looked through, the frozen ones left out."""
    seen: list[int] = []

    def note(phase: str, details: dict[str, int]) -> None:
        if phase == "start" and details["generation"] == 2:
            seen.append(len(gc.get_objects()))

    gc.callbacks.append(note)
    yield seen
    gc.callbacks.remove(note)


@pytest.fixture
def no_collections() -> Iterator[None]:
    """No garbage goes by itself."""
    gc.disable()
    yield
    gc.enable()


def test_garbage_of_the_file_is_nothing_that_a_step_finds(tmp_path: Path, no_collections: None) -> None:
    plain, with_garbage = (captured(tmp_path, text).eager for text in (STEP, STEP + GARBAGE))
    assert plain is not None
    assert with_garbage is not None
    assert with_garbage.persistent_bytes == plain.persistent_bytes


def test_garbage_is_looked_for_among_what_the_capture_has_made(tmp_path: Path, collections: list[int]) -> None:
    there = len(gc.get_objects())
    assert captured(tmp_path, STEP).eager is not None
    assert len(collections) == 4, "after the file, and after each of three runs"
    assert max(collections) < there / 10
    assert gc.get_freeze_count() == 0


def test_garbage_of_the_block_alone_is_gone_at_its_end(no_collections: None) -> None:
    ends: list[str] = []
    leave_cycle("earlier", ends)
    with garbage_collected_after():
        leave_cycle("of the block", ends)
        assert ends == []
    assert ends == ["of the block"]
    gc.collect()
    assert ends == ["of the block", "earlier"]


def test_what_a_process_keeps_is_never_counted_and_stays_frozen(
    tmp_path: Path, collections: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    there = len(gc.get_objects())
    keep_what_is_there()
    frozen, counts = gc.get_freeze_count(), 0

    def count() -> int:
        nonlocal counts
        counts += 1
        return frozen

    collections.clear()
    with monkeypatch.context() as patch:
        patch.setattr(gc, "get_freeze_count", count)
        assert captured(tmp_path, STEP).eager is not None
    assert (len(collections), counts) == (4, 0)
    assert max(collections) < there / 10
    assert gc.get_freeze_count() > 0.9 * frozen


def leave_cycle(name: str, ends: list[str]) -> None:
    node = torch.nn.Module()
    node.__dict__["itself"] = node
    weakref.finalize(node, ends.append, name)
