"""Which results an elementwise op could compute in the very bytes of an argument."""

from collections.abc import Callable, Set

from tmmu.ir.graph import DTYPE_BYTES, Pair
from tmmu.passes.capture.program import Window


def overwrite_pairs(
    writes: list[int],
    reads: list[int],
    windows: list[Window],
    bytes_of: Callable[[int], int],
    persistent: Set[int],
) -> tuple[Pair, ...]:
    """(written, read) pairs of one elementwise op: same dtype, shape and stride, dense, each spanning its buffer.

    An argument that lies on a persistent storage is never overwritten, nor one whose storage the op reads
    through another window too.
    """
    pairs: list[Pair] = []
    for written in writes:
        result = windows[written]
        if not spans_storage(result, bytes_of(result.storage)):
            continue
        for read in reads:
            argument = windows[read]
            if (
                argument[2:] == result[2:]
                and argument.storage not in persistent
                and argument.storage != result.storage
                and spans_storage(argument, bytes_of(argument.storage))
                and all(windows[other] == argument for other in reads if windows[other].storage == argument.storage)
            ):
                pairs.append((written, read))
    return tuple(pairs)


def spans_storage(window: Window, size: int) -> bool:
    """Whether the window is dense, without overlap or gaps, and covers all ``size`` bytes from 0."""
    count = 1
    axes = sorted((step, length) for length, step in zip(window.shape, window.stride, strict=True) if length != 1)
    for step, length in axes:
        if step != count:
            return False
        count *= length
    return window.offset == 0 and count * DTYPE_BYTES[window.dtype] == size
