"""A synthetic graph of a million buffers, generated from integers alone: the same on every machine.

Each op writes one or two buffers and reads one or two of the last sixteen; a congruential generator chooses reads,
sizes, roles, overwrites, saves and recomputation. Value ``b`` covers all of buffer ``b``.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, TypeAlias, cast

from tmmu.ir.graph import ACTIVATION, GRADIENT, Buffers, Graph, Notes, OpNotes, Ops, Overwrite, Values
from tmmu.ir.ids import BufferId, Bytes, ValueId

BUFFERS: Final = 1_000_000
READ_DISTANCE: Final = 16
"""Buffers back that an op may read, about the number live at once."""
SAVE_INTERVAL: Final = 4096
"""One op in so many saves its result: a training step holds a few hundred buffers to its end."""
ELEMENTS: Final = (1, 24, 64, 96, 256, 1000, 4096, 0)
MULTIPLIER: Final = 6364136223846793005
INCREMENT: Final = 1442695040888963407

_NONE: Final[tuple[int, ...]] = ()
_Ids: TypeAlias = tuple[tuple[ValueId, ...], ...]


@dataclass(slots=True)
class _GraphColumns:
    """Columns of the graph under construction, a row per buffer or op."""

    elements: list[int] = field(default_factory=list)
    role: list[str] = field(default_factory=list)
    reads: list[tuple[int, ...]] = field(default_factory=list)
    writes: list[tuple[int, ...]] = field(default_factory=list)
    overwrites: list[tuple[tuple[int, int], ...]] = field(default_factory=list)
    saves: list[tuple[int, ...]] = field(default_factory=list)
    recompute: list[bool] = field(default_factory=list)


def random_numbers() -> Iterator[int]:
    """The upper 32 bits of the states of a 64-bit congruential generator (Knuth, MMIX) that starts at 1."""
    state = 1
    while True:
        state = (state * MULTIPLIER + INCREMENT) % 2**64
        yield state >> 32


def million_buffers(count: int = BUFFERS) -> Graph:
    """``count`` float32 buffers; the last one is the output."""
    columns, drawn = _GraphColumns(), random_numbers()
    while len(columns.elements) < count:
        _add_op(columns, next(drawn), two=len(columns.elements) + 2 <= count)
    return _build_graph(columns)


def _add_op(c: _GraphColumns, drawn: int, *, two: bool) -> None:
    new = len(c.elements)
    first = new - 1 - (drawn >> 3) % min(new, READ_DISTANCE) if new else -1
    second = new - 1 - (drawn >> 7) % min(new, READ_DISTANCE) if new else -1
    like = new > 0 and drawn % 4 == 0
    for index in range(1 + (two and drawn % 8 == 7)):
        c.elements.append(c.elements[first] if like else ELEMENTS[(drawn >> 12 + 3 * index) % len(ELEMENTS)])
        c.role.append(GRADIENT if (drawn >> 18 + 3 * index) % 8 == 0 else ACTIVATION)
    c.reads.append(tuple(dict.fromkeys((first, second))) if new else _NONE)
    c.writes.append(tuple(range(new, len(c.elements))))
    c.overwrites.append(((new, first),) if like else ())
    c.saves.append((new,) if drawn % SAVE_INTERVAL == 1 else _NONE)
    c.recompute.append(drawn % (2 * SAVE_INTERVAL) == 1)


def _build_graph(c: _GraphColumns) -> Graph:
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
