from tmmu.wire.payloads.receive_pool import LEAST_BYTES, ReceivePool


def address(block: object) -> int:
    return int(block.ctypes.data)  # type: ignore[attr-defined]


def test_a_block_is_used_again_when_its_last_view_is_gone() -> None:
    pool = ReceivePool()
    block = pool.take(1 << 20)
    first, part = address(block), block.data[100:200]
    assert pool.free_bytes == 0
    del block
    assert pool.free_bytes == 0  # a part of it is in use
    other = pool.take(1 << 20)
    assert address(other) != first
    del part
    assert pool.free_bytes == 1 << 20
    assert address(pool.take(600 << 10)) == first
    assert pool.take(600 << 10).nbytes == 600 << 10
    del other


def test_blocks_that_are_too_large_or_too_many_are_not_used_again() -> None:
    pool = ReceivePool(3 << 20)
    blocks = [pool.take(1 << 20) for _ in range(5)]
    blocks.clear()
    assert pool.free_bytes == 3 << 20
    small = pool.take(LEAST_BYTES)
    assert small.nbytes == LEAST_BYTES
    assert pool.free_bytes == 3 << 20
    del small
    assert pool.take(100).nbytes == 100
    big = pool.take(8 << 20)
    del big
    assert pool.free_bytes <= 3 << 20
