"""The caching allocator's model against recorded runs of real GPUs: every block where it lay, every byte reserved."""

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.cuda_history import HEADING, compare, largest_difference, names_of, read_history, segments_before, show
from tmmu.eager.allocator_config import parse_allocator_config

RECORDINGS = Path(__file__).parent / "recordings"
SHARED = Path(__file__).parents[3].parent / "shared/data/cuda_history"
"""All five recordings, where they lie beside the checkout."""
FOLDER = {name: folder for folder in (SHARED, RECORDINGS) for name in names_of(folder)}


@pytest.mark.parametrize("name", sorted(FOLDER))
def test_model_does_what_the_card_did(name: str) -> None:
    comparison = compare(read_history(FOLDER[name], name))
    recorded, model = comparison.recorded, comparison.model
    assert model.failure is None
    assert model.live == recorded.live
    assert model.reserved == recorded.reserved
    assert model.segment_allocs == len(recorded.segments)
    assert comparison.equal_addresses == len(recorded.addresses)
    assert comparison.is_end_equal
    assert comparison.is_right


def test_two_recordings_are_always_there() -> None:
    assert len(FOLDER) >= 2


def test_state_before_is_told_by_the_recording_alone() -> None:
    history = read_history(RECORDINGS, "lm12_b32_s256_fwd_bwd")
    before = segments_before(history)
    blocks = [block for segment in before for block in segment.blocks]
    assert len(before) == 216
    assert sum(segment.nbytes for segment in before) == 13524 << 20
    assert len(blocks) == 229, "227 that are there at the end, and 2 that are freed"
    assert sum(block.request for block in blocks) == round((312.50000381469727 + 997.771484375) * 2**20)


def test_comparison_fails_where_the_model_would_do_something_else() -> None:
    comparison = compare(read_history(RECORDINGS, "lm24_b4_s1024_inference"))
    recorded = comparison.recorded
    for wrong in (
        replace(recorded, live=(*recorded.live[:-1], recorded.live[-1] + 1)),
        replace(recorded, reserved=(*recorded.reserved[:-1], recorded.reserved[-1] * 103 // 100)),
        replace(recorded, segments=((0, 1),)),
    ):
        assert not replace(comparison, recorded=wrong).is_right
    assert not replace(comparison, is_end_equal=False).is_right
    nearly = (*recorded.reserved[:-1], recorded.reserved[-1] * 101 // 100)
    assert replace(comparison, recorded=replace(recorded, reserved=nearly)).is_right
    assert 0.009 < largest_difference(replace(comparison, recorded=replace(recorded, reserved=nearly))) < 0.011


def test_settings_other_than_those_of_the_run_lay_blocks_elsewhere() -> None:
    history = read_history(RECORDINGS, "lm12_b32_s256_fwd_bwd")
    comparison = compare(history, parse_allocator_config("roundup_power2_divisions:2"))
    assert comparison.model.live == comparison.recorded.live
    assert comparison.equal_addresses < len(comparison.recorded.addresses)
    assert not comparison.is_end_equal


def test_table_has_a_line_for_each_recording() -> None:
    line = show(compare(read_history(RECORDINGS, "lm24_b4_s1024_inference")))
    words = "lm24_b4_s1024_inference 2744.14 2744.14 2746.01 3056 3056 1.0000 0 0 1280/1280 yes"
    assert " ".join(line.split()) == words
    assert len(HEADING.rstrip()) == len(line)
