"""Free blocks in order: the same as a sorted list, whatever is added and removed."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tmmu.eager import allocator_blocks
from tmmu.eager.allocator_blocks import AllocatorBlock, BlockOrder, BlockPool


@pytest.fixture(autouse=True)
def _short_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(allocator_blocks, "_RUN", 2)


sizes = st.lists(st.integers(1, 8), max_size=40)


@given(sizes=sizes, removals=st.lists(st.integers(0, 99), max_size=40), probe=st.integers(0, 9), by_size=st.booleans())
def test_order_of_blocks_is_that_of_a_sorted_list(
    sizes: list[int], removals: list[int], probe: int, *, by_size: bool
) -> None:
    order, pool, expected = BlockOrder(by_size=by_size), BlockPool(0, is_small=True), []
    for number, size in enumerate(sizes):
        block = AllocatorBlock(address=number * 7919 % 101, size=size, pool=pool)
        order.add(block)
        expected.append(block)
        if number < len(removals) and removals[number] % 3 == 0:
            removed = expected.pop(removals[number] % len(expected))
            order.remove(removed)
        expected.sort(key=lambda block: (block.size if by_size else 0, block.address))
        assert list(order) == expected
        assert len(order) == len(expected)
    if by_size:
        assert list(order.from_size(probe)) == [block for block in expected if block.size >= probe]


def test_runs_stay_short() -> None:
    order, pool = BlockOrder(by_size=True), BlockPool(0, is_small=True)
    for number in range(100):
        order.add(AllocatorBlock(address=number, size=5, pool=pool))
    assert max(map(len, order._runs)) <= 4
