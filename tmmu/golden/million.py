"""A graph of a million buffers, by a recipe of whole numbers: no file, no random source, the same everywhere.

Each op makes one buffer, or two, and reads one or two of the last sixteen: a congruential generator chooses which, and
the sizes, the roles, and what is overwritten, saved or marked to be computed again. Value ``b`` is all of buffer ``b``.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, TypeAlias, cast

from tmmu.ir.graph import ACTIVATION, GRADIENT, Buffers, Graph, Notes, OpNotes, Ops, Overwrite, Values
from tmmu.ir.ids import BufferId, Bytes, ValueId

BUFFERS: Final = 1_000_000
REACH: Final = 16
"""How far back an op reads: so many buffers are live at once, about."""
SAVED_IN: Final = 4096
"""One op in so many saves what it makes, so that a training step holds a few hundred buffers to its end."""
ELEMENTS: Final = (1, 24, 64, 96, 256, 1000, 4096, 0)
MULTIPLIER: Final = 6364136223846793005
INCREMENT: Final = 1442695040888963407

_NONE: Final[tuple[int, ...]] = ()
_Ids: TypeAlias = tuple[tuple[ValueId, ...], ...]


@dataclass(slots=True)
class _Columns:
    """The graph in the making, a row per buffer or op."""

    elements: list[int] = field(default_factory=list)
    role: list[str] = field(default_factory=list)
    reads: list[tuple[int, ...]] = field(default_factory=list)
    writes: list[tuple[int, ...]] = field(default_factory=list)
    overwrites: list[tuple[tuple[int, int], ...]] = field(default_factory=list)
    saves: list[tuple[int, ...]] = field(default_factory=list)
    recompute: list[bool] = field(default_factory=list)


def numbers() -> Iterator[int]:
    """The upper 32 bits of the states of a 64-bit congruential generator (Knuth, MMIX) that starts at 1."""
    state = 1
    while True:
        state = (state * MULTIPLIER + INCREMENT) % 2**64
        yield state >> 32


def million_buffers(count: int = BUFFERS) -> Graph:
    """``count`` float32 buffers; the last one is the output."""
    columns, drawn = _Columns(), numbers()
    while len(columns.elements) < count:
        _add_op(columns, next(drawn), two=len(columns.elements) + 2 <= count)
    return _graph(columns)


def _add_op(c: _Columns, drawn: int, *, two: bool) -> None:
    new = len(c.elements)
    first = new - 1 - (drawn >> 3) % min(new, REACH) if new else -1
    second = new - 1 - (drawn >> 7) % min(new, REACH) if new else -1
    like = new > 0 and drawn % 4 == 0
    for made in range(1 + (two and drawn % 8 == 7)):
        c.elements.append(c.elements[first] if like else ELEMENTS[(drawn >> 12 + 3 * made) % len(ELEMENTS)])
        c.role.append(GRADIENT if (drawn >> 18 + 3 * made) % 8 == 0 else ACTIVATION)
    c.reads.append(tuple(dict.fromkeys((first, second))) if new else _NONE)
    c.writes.append(tuple(range(new, len(c.elements))))
    c.overwrites.append(((new, first),) if like else ())
    c.saves.append((new,) if drawn % SAVED_IN == 1 else _NONE)
    c.recompute.append(drawn % (2 * SAVED_IN) == 1)


def _graph(c: _Columns) -> Graph:
    buffers, ops = len(c.elements), len(c.reads)
    blank, unknown = ("",) * ops, ("unknown",) * ops
    return Graph(
        target="cuda",
        buffers=Buffers(bytes=cast("tuple[Bytes, ...]", tuple(4 * n for n in c.elements)), role=tuple(c.role)),
        values=Values(
            buffer=cast("tuple[BufferId, ...]", tuple(range(buffers))),
            offset=(Bytes(0),) * buffers,
            shape=tuple((n,) for n in c.elements),
            stride=((1,),) * buffers,
            dtype=("float32",) * buffers,
        ),
        ops=Ops(
            target=tuple("test.like" if pairs else "test.make" for pairs in c.overwrites),
            reads=cast("_Ids", tuple(c.reads)),
            writes=cast("_Ids", tuple(c.writes)),
            overwrites=cast("tuple[tuple[Overwrite, ...], ...]", tuple(c.overwrites)),
            saves=cast("_Ids", tuple(c.saves)),
            recompute=tuple(c.recompute),
            stage=("forward",) * ops,
        ),
        inputs=(),
        outputs=(ValueId(buffers - 1),),
        notes=Notes(
            name="million-buffers",
            buffers=("",) * buffers,
            ops=OpNotes(phase=unknown, modality=unknown, flops=(0,) * ops, module=blank, source=blank),
        ),
    )
