"""Anchors: the modules whose call tells that a block is needed.

For a weight ``layers.3.attn.q.weight`` the owner ``layers.3.attn.q`` is an anchor, and so is every module around it
that holds weights of this block only (``layers.3.attn``, ``layers.3``). The outermost anchor that is called is called
before anything touches the weights inside, by call or by name.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import nn

from tmmu.errors import InvalidConfig
from tmmu.ir.ring import Ring


@dataclass(frozen=True, slots=True)
class Anchor:
    """A call of ``module`` needs ``blocks``."""

    module: nn.Module
    blocks: tuple[int, ...]


def anchors(module: nn.Module, ring: Ring, names: Sequence[Sequence[str]]) -> list[Anchor]:
    """The anchors of all blocks, by path; ``names`` are those of the weights of each block.

    A weight of the root ``module`` itself needs no anchor if its block is resident. Its call says only that a pass
    begins, so it can stream only with the first block that streams; ``INVALID_CONFIG`` for any other.
    """
    blocks_under: dict[str, dict[int, None]] = {}
    for block, row in enumerate(names):
        for name in row:
            for path in _enclosing_paths(name):
                blocks_under.setdefault(path, {})[block] = None
    anchored: dict[str, dict[int, None]] = {}
    for block, row in enumerate(names):
        for name in row:
            owner, *parents = _enclosing_paths(name)
            if not owner and not ring.blocks[block].resident:
                _require_first(ring, block, name)
            if owner or not ring.blocks[block].resident:
                for path in (owner, *(path for path in parents if path and len(blocks_under[path]) == 1)):
                    anchored.setdefault(path, {})[block] = None
    return [Anchor(module.get_submodule(path), tuple(anchored[path])) for path in sorted(anchored)]


def _enclosing_paths(name: str) -> list[str]:
    """The paths of the module that owns a weight and of all modules around it, inside out; the root's is empty."""
    parts = name.split(".")[:-1]
    return [".".join(parts[:n]) for n in range(len(parts), -1, -1)]


def _require_first(ring: Ring, block: int, name: str) -> None:
    visits = [visit.block for visit in ring.visits]
    before = visits[: visits.index(block)]
    if visits.count(block) > 1 or any(not ring.blocks[earlier].resident for earlier in before):
        raise InvalidConfig(
            f"{name} belongs to the streamed module itself, whose call does not say when it is needed",
            fix="put it into a module of its own, or give the ring room to keep it",
            name=name,
        )
