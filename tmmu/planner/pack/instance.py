"""A packing problem made ready for search: columns in birth order, and quick access to what overlaps an item."""

from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from tmmu.ir.problem import Problem

Column: TypeAlias = npt.NDArray[Any]
"""``int64[n]``, or Python integers where the sum of sizes leaves 62 bits."""
Index: TypeAlias = npt.NDArray[np.int64]

WORD_LIMIT: Final = 2**62


@dataclass(frozen=True, slots=True, kw_only=True)
class Instance:
    """Items of more than no bytes, sorted by (birth, id). ``item`` leads back to the problem's own index.

    ``first[i]`` and ``stop[i]`` bound the items that may be born during item i or in its block before it;
    ``carry[j]`` are the items born before block j and alive at its start. Together they hold all that overlap item i.
    """

    item: Index
    size: Column
    birth: Index
    death: Index
    stop: Index
    block: int
    carry: tuple[Index, ...]
    first_twin: Index
    bound: int
    far: int

    def __len__(self) -> int:
        return len(self.item)


def prepare_instance(problem: Problem, bound: int) -> Instance:
    """The instance of ``problem``, whose most live bytes are ``bound``. O(n log n) time; O(n + live) space."""
    total = sum(problem.size)
    wide = total >= WORD_LIMIT
    all_sizes = np.array(problem.size, dtype=object if wide else np.int64)
    birth = np.array(problem.birth, dtype=np.int64)
    death = np.array(problem.death, dtype=np.int64)
    keep = np.flatnonzero(all_sizes > 0)
    item = keep[np.argsort(birth[keep], kind="stable")]
    birth, death = birth[item], death[item]
    block = _block_width(birth, death)
    return Instance(
        item=item,
        size=all_sizes[item],
        birth=birth,
        death=death,
        stop=np.searchsorted(birth, death, side="left"),
        block=block,
        carry=_carries(birth, death, block),
        first_twin=np.searchsorted(birth, birth, side="left"),
        bound=bound,
        far=total * 2 + 1 if wide else WORD_LIMIT,
    )


def live_at_birth(birth: Index, death: Index) -> Index:
    """Per item in birth order, how many live at its birth, born no later."""
    ended = np.searchsorted(np.sort(death), birth, side="right")
    started = np.searchsorted(birth, birth, side="right")
    return started - ended


def overlap_count(instance: Instance) -> int:
    """Pairs of items that live at once, counted twice."""
    birth, death = instance.birth, instance.death
    if not len(instance):
        return 0
    ended = np.searchsorted(np.sort(death), birth, side="right")
    return int((instance.stop - ended).sum())


def _block_width(birth: Index, death: Index) -> int:
    """As wide as the usual live set: then the carries take no more room than the items."""
    if not len(birth):
        return 1
    return max(32, int(live_at_birth(birth, death).mean()))


def _carries(birth: Index, death: Index, block: int) -> tuple[Index, ...]:
    carries: list[Index] = []
    live = np.empty(0, dtype=np.int64)
    for start in range(0, len(birth), block):
        live = live[death[live] > birth[start]]
        carries.append(live)
        fresh = np.arange(start, min(start + block, len(birth)), dtype=np.int64)
        live = np.concatenate([live, fresh])
    return tuple(carries)
