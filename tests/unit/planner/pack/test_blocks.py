"""Blocks of items that join exactly: by hand, and on tilings whose optimum is known."""

import pytest

from benchmarks.tilings import HEIGHT, tiling
from tests.unit.planner.pack.test_stages import Row, problem
from tmmu.judge.packing import packing_faults, require_sound_packing
from tmmu.planner.pack.blocks import ItemBlock, join_items, offsets_of_members, problem_of_blocks
from tmmu.planner.pack.solve import pack
from tmmu.planner.pack.stages import HEURISTICS, PackingState, pack_blocks, run_stages


def test_item_born_where_one_of_its_size_dies_joins_it() -> None:
    blocks = join_items(problem([(0, 2, 5), (2, 6, 5), (6, 7, 5)]), loosely=False)
    assert blocks == (ItemBlock(0, 7, 5, ((0, 0), (1, 0), (2, 0))),)


def test_chain_with_a_third_item_of_its_size_is_left_open() -> None:
    assert len(join_items(problem([(0, 2, 5), (2, 6, 5), (2, 7, 5)]), loosely=True)) == 3


def test_items_of_one_span_stack_where_an_item_of_their_size_touches_them() -> None:
    rows: list[Row] = [(0, 4, 9), (4, 6, 3), (4, 6, 6)]
    (block,) = join_items(problem(rows), loosely=False)
    assert (block.birth, block.death, block.size) == (0, 6, 9)
    assert offsets_of_members((block,), (10,)) == (10, 10, 13)


def test_stack_without_a_touching_item_of_its_size_is_made_loosely_alone() -> None:
    rows: list[Row] = [(0, 4, 9), (4, 6, 3), (4, 6, 5)]
    assert len(join_items(problem(rows), loosely=False)) == 3
    assert len(join_items(problem(rows), loosely=True)) == 2


@pytest.mark.parametrize("loosely", [False, True])
@pytest.mark.parametrize("seed", [0, 2, 3])
def test_packing_of_blocks_is_sound_for_their_items(seed: int, loosely: bool) -> None:
    tiles = tiling(200, seed)[1]
    blocks = join_items(tiles, loosely=loosely)
    packed = pack(problem_of_blocks(blocks, 1), search_nodes=0)
    offset = offsets_of_members(blocks, packed.offset)
    assert sorted(item for block in blocks for item, _ in block.member) == list(range(200))
    assert list(packing_faults(tiles, offset, peak=packed.peak, bound=packed.bound)) == []


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_guillotine_of_three_hundred_items_is_packed_in_blocks_without_waste(seed: int) -> None:
    tiles = tiling(300, seed)[1]
    packed = pack(tiles, search_nodes=60_000)
    require_sound_packing(tiles, packed.offset, peak=packed.peak, bound=packed.bound)
    assert packed.peak == HEIGHT


@pytest.mark.parametrize("row", [(0, 2, 5, 4), (0, 2, 5, 1, 7)])
def test_blocks_are_skipped_where_offsets_are_fixed_or_sizes_are_unaligned(row: Row) -> None:
    rows: list[Row] = [row, *((time, time + 1, 4, 4) for time in range(2, 9))]
    start = run_stages(PackingState(problem=problem(rows), target=0, search_nodes=1_000), HEURISTICS[:1])
    assert pack_blocks(start) is start
