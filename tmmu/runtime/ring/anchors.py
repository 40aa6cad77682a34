"""Which modules' calls say that a block is needed: those that own its weights, and the parts that hold no others."""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import nn

from tmmu.errors import InvalidConfig
from tmmu.ir.ring import Ring


@dataclass(frozen=True, slots=True)
class Anchor:
    """The call of ``module`` needs ``blocks``."""

    module: nn.Module
    blocks: tuple[int, ...]


def anchors(module: nn.Module, ring: Ring, names: Sequence[Sequence[str]]) -> list[Anchor]:
    """The anchors of all blocks; ``names`` are of the weights of each.

    The owner of a weight, and every module around it that holds weights of this block only: the outermost of these that
    is called comes before whatever touches them inside, by call or by name. Weights of ``module`` itself need nothing
    where they stay, and can stream only with the first block that streams: that is there when the pass begins.
    """
    blocks: dict[str, dict[int, None]] = {}
    for block, row in enumerate(names):
        for name in row:
            for path in _upwards(name):
                blocks.setdefault(path, {})[block] = None
    found: dict[str, dict[int, None]] = {}
    for block, row in enumerate(names):
        for name in row:
            owner, *around = _upwards(name)
            if not owner and not ring.blocks[block].resident:
                _require_first(ring, block, name)
            if owner or not ring.blocks[block].resident:
                for path in (owner, *(path for path in around if path and len(blocks[path]) == 1)):
                    found.setdefault(path, {})[block] = None
    return [Anchor(module.get_submodule(path), tuple(found[path])) for path in sorted(found)]


def _upwards(name: str) -> list[str]:
    """The paths of the module that owns a weight and of all modules around it, inside out; the root's is empty."""
    parts = name.split(".")[:-1]
    return [".".join(parts[:n]) for n in range(len(parts), -1, -1)]


def _require_first(ring: Ring, block: int, name: str) -> None:
    visits = [visit.block for visit in ring.visits]
    before = visits[: visits.index(block)]
    if visits.count(block) > 1 or any(not ring.blocks[other].resident for other in before):
        raise InvalidConfig(
            f"{name} belongs to the streamed module itself, whose call does not say when it is needed",
            fix="put it into a module of its own, or give the ring room to keep it",
            name=name,
        )
