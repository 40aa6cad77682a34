"""A rewrite: for each op of a rewritten graph, which op of the base graph it stands for, and how.

same    the op itself
rerun   the op again, on fresh buffers: what it made was dropped
twin    the op again without its effects: a batch norm that leaves its running statistics alone
sublist the op on entries ``[low, high)`` of its lists of tensors, such as one parameter of an optimizer's step
"""

from dataclasses import dataclass
from typing import Final, TypeAlias

from tmmu.ir.ids import OpId

SAME: Final = "same"
RERUN: Final = "rerun"
TWIN: Final = "twin"
SUBLIST: Final = "sublist"
KINDS: Final = (SAME, RERUN, TWIN, SUBLIST)
"""Plan files name a kind by its place here: new ones come last."""

Part: TypeAlias = "tuple[int, int] | tuple[()]"
"""``(low, high)`` of a sublist, empty for any other kind."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewrite:
    """``base_hash`` is the base graph's ``ir_hash``; the columns have a row for each op of the rewritten graph."""

    base_hash: bytes
    origin: tuple[OpId, ...]
    kind: tuple[str, ...]
    part: tuple[Part, ...]

    def __len__(self) -> int:
        return len(self.origin)
