"""Memory in which payloads are received, used again when nobody has it: fresh pages cost more than the copy."""

from collections import deque
from typing import Any, Final
from weakref import finalize

import numpy as np

LEAST_BYTES: Final = 64 << 10
MOST_BYTES: Final = 128 << 20
"""Of blocks that nobody uses; what is beyond them goes back to the system."""


class ReceivePool:
    """Blocks of bytes. One comes back by itself when the last view of it is gone, in whatever thread that happens, so
    nothing here takes a lock. Its bytes are then another's: who hands a block on has overwritten all that he shows.
    """

    def __init__(self, most: int = MOST_BYTES) -> None:
        self._most = most
        self._free = deque[Any]()

    @property
    def free_bytes(self) -> int:
        """Bytes that wait to be used again."""
        return sum(block.nbytes for block in tuple(self._free))

    def take(self, size: int) -> Any:
        """``uint8[size]``, of any values; small ones and those for which there is none are new."""
        if size < LEAST_BYTES:
            return np.empty(size, np.uint8)
        for _ in range(len(self._free)):
            try:
                block = self._free.popleft()
            except IndexError:  # another thread took the last
                break
            if size <= block.nbytes <= 2 * size:
                return self._lend(block, size)
            self._free.append(block)
        return self._lend(np.empty(size, np.uint8), size)

    def _lend(self, block: Any, size: int) -> Any:
        view = block[:size]
        finalize(view, self._give_back, block).atexit = False
        return view

    def _give_back(self, block: Any) -> None:
        self._free.append(block)
        while self.free_bytes > self._most and self._free:
            self._free.popleft()


POOL: Final = ReceivePool()
"""Of this process."""
