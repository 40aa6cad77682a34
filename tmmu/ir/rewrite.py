"""A rewrite: for each op of a rewritten graph, which op of the base graph it stands for, and how.

same    the op itself
rerun   the op again, on fresh buffers: what it made was dropped
twin    the op again without its effects: a batch norm that leaves its running statistics alone, dropout by its mask
sublist the op on entries ``[low, high)`` of its lists of tensors, such as one parameter of an optimizer's step
part    the op on a box of its result, in a buffer of its own: ``(axis, low, high)`` for each axis that is cut
placed  the op on a box of its result, at its place in the whole, after the boxes before it
summand a product over ``[low, high)`` of the axis that it sums over, added to those before it; only near
like    an op that asks its operand for no more than its form, on another one: ``(value,)`` of the base
picked  a loss by class as the loss of one column: ``(step,)`` of ``PICKED_STEPS``, ``(ROWS, low, high)`` for rows
to_host a copy, in host memory, of what the op made: ``(value,)`` of the base
from_host that copy again, on the device, in a buffer of its own: ``(value,)`` of the base
"""

from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias

from tmmu.ir.graph import Graph
from tmmu.ir.ids import OpId

SAME: Final = "same"
RERUN: Final = "rerun"
TWIN: Final = "twin"
SUBLIST: Final = "sublist"
PART: Final = "part"
PLACED: Final = "placed"
SUMMAND: Final = "summand"
LIKE: Final = "like"
PICKED: Final = "picked"
TO_HOST: Final = "to_host"
FROM_HOST: Final = "from_host"
KINDS: Final = (SAME, RERUN, TWIN, SUBLIST, PART, PLACED, SUMMAND, LIKE, PICKED, TO_HOST, FROM_HOST)
"""Plan files name a kind by its place here: new ones come last."""
PARTIAL_KINDS: Final = (PART, PLACED, SUMMAND, LIKE, PICKED)
"""Kinds that read other windows than their origins."""
HOST_KINDS: Final = (TO_HOST, FROM_HOST)
"""Kinds that copy what their origins made."""
WITH_PART: Final = (SUBLIST, *PARTIAL_KINDS, *HOST_KINDS)
"""Kinds whose ops have a row in the column ``part`` of a file."""

CLASSES, COLUMNS, NUMBERS, WEIGHT, ROWS, LOSS = range(6)
PICKED_STEPS: Final = (CLASSES, COLUMNS, NUMBERS, WEIGHT, ROWS, LOSS)
"""The ops that stand for a loss by class, of ``N`` rows (docs/spec/rewrites.md):

classes ``int64[N]``: 0 where a row counts, its target where it is ignored; columns ``int64[N]``: the targets, 0 where
a row is ignored; numbers ``[N]``: the classes as numbers; weight: the loss of the numbers, for its total weight; rows
``[N, 1]``: what stands at the columns; loss: the loss of the rows.
"""

ARGUMENT, RESULT, NONE, SCALE = range(4)
"""What an argument of a twin is: an argument or a result of the origin's, at a place; ``None``; ``1 / (1 - argument)``.
"""


class Twin(NamedTuple):
    """What a twin calls: of each argument ``(what it is, place)``; the results of the origin that it makes."""

    operator: str
    arguments: tuple[tuple[int, int], ...]
    results: tuple[int, ...]


Part: TypeAlias = "tuple[int, ...]"
"""Empty for what is whole."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewrite:
    """``base_hash`` is the base graph's ``ir_hash``; the columns have a row for each op of the rewritten graph."""

    base_hash: bytes
    origin: tuple[OpId, ...]
    kind: tuple[str, ...]
    part: tuple[Part, ...]

    def __len__(self) -> int:
        return len(self.origin)


def identity_rewrite(base: Graph) -> Rewrite:
    """The rewrite that changes nothing."""
    ops = base.ops.ids
    return Rewrite(base_hash=base.ir_hash, origin=tuple(ops), kind=(SAME,) * len(ops), part=((),) * len(ops))
