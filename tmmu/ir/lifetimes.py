"""What a model holds when it is run as it is: how long each storage that a step makes lives in eager.

A table of its own beside the graph, taken before any pass: ops that passes remove have their storages here. Positions
count the calls that eager makes, views among them, and are no positions of a plan.
"""

from dataclasses import dataclass
from typing import Final

from tmmu.ir.ids import Bytes

CYCLE: Final = "a reference cycle, until it is collected"
"""The holder of what nothing but garbage in a cycle refers to."""

EARLIER: Final = "before the step"
"""The maker of a storage that is there when a step begins and goes in it, such as the gradients of the step before."""
OPTIONAL: Final = ("host", "in_parts", "own_step")
"""Keys of a run that a file has only where there is something."""
LIFETIME_NUMBERS: Final = ("bytes", "birth", "death", "last_use", "stream")
"""The columns of numbers; the others are texts."""
STREAM: Final = "stream"
"""The column that a file has only where some storage was made on another stream than the first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lifetimes:
    """One row per storage: ``bytes``, unpadded, live during call ``p`` where ``birth <= p < death``.

    ``last_use`` is the last call that reads or writes it. ``maker`` is an operator, ``source`` its line. ``holder``
    says who kept it beyond its last use; empty where nobody did. ``stream``: on which stream of the device it was made,
    0 for the one that a step begins on; empty where all are of that one.
    """

    bytes: tuple[Bytes, ...]
    birth: tuple[int, ...]
    death: tuple[int, ...]
    last_use: tuple[int, ...]
    maker: tuple[str, ...]
    module: tuple[str, ...]
    source: tuple[str, ...]
    holder: tuple[str, ...]
    stream: tuple[int, ...] = ()

    def __len__(self) -> int:
        return len(self.bytes)


NO_LIFETIMES: Final = Lifetimes(bytes=(), birth=(), death=(), last_use=(), maker=(), module=(), source=(), holder=())


@dataclass(frozen=True, slots=True, kw_only=True)
class EagerRun:
    """A step of the model as eager runs it under one CPython, whose frames decide what is held for how long.

    ``persistent_bytes``: weights, constants, state and inputs, which are there before the step. ``storages`` are those
    of the device; ``host`` those that a step on a GPU makes in the host's memory, by ``.cpu()`` above all.
    ``in_parts``: classes of torch's layers that are one kernel where the model runs as it is, and its parts here.
    ``own_step``: whether it is a function of the user's that takes a step, and no step of a model.
    """

    python: str
    calls: int
    persistent_bytes: Bytes
    storages: Lifetimes
    host: Lifetimes = NO_LIFETIMES
    in_parts: tuple[str, ...] = ()
    own_step: bool = False
