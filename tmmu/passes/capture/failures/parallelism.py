"""Ways to spread a model over ranks that no trace follows yet: each is refused by its own name and reason.

A row is for failures that pass through the files of one way. What it does beside the failure is not looked at: a model
that is spread so and does not fail is planned.
"""

from dataclasses import dataclass
from typing import Final

from tmmu.errors import CapacityUndeclared, TmmuError, UnsupportedOp
from tmmu.passes.capture.failures.failure import Failure
from tmmu.passes.capture.routing.routing import Routing


@dataclass(frozen=True, slots=True, kw_only=True)
class _Way:
    """``places`` are files or folders of torch."""

    places: tuple[str, ...]
    name: str
    reason: str
    fix: str


_WAYS: Final = (
    _Way(
        places=("distributed/fsdp/fully_sharded_data_parallel.py",),
        name="FullyShardedDataParallel (FSDP1)",
        reason="it keeps weights in flat tensors of a GPU that must be there",
        fix="use fully_shard (FSDP2), which is planned",
    ),
)


def refusal_of_parallelism(failure: Failure) -> TmmuError | None:
    """``UNSUPPORTED_OP`` for a failure inside of one of these ways; ``None`` for others."""
    way = next((way for way in _WAYS if failure.passes(*way.places)), None)
    if way is None:
        return None
    where = f"{failure.source}: " if failure.source else ""
    return UnsupportedOp(f"{where}{way.name} is not planned: {way.reason}", fix=way.fix, where=failure.source)


def refusal_of_count(failure: Failure, routing: Routing) -> TmmuError | None:
    """``CAPACITY_UNDECLARED`` for a look at counts or rows that a gate decides; ``None`` for all others.

    A gate is no more than a choice of the largest: a text's next token is one too, and looking at it is no count.
    """
    gate, is_of_value = routing.unanswered, failure.kind == _VALUE_LOOK or failure.takes_unknown_number
    if not gate or not (failure.kind == _SHAPE_LOOK or (is_of_value and routing.is_count)):
        return None
    where = f"{failure.source}: " if failure.source else ""
    return CapacityUndeclared(
        f"{where}what is counted here is data, which the choice at {gate} decides",
        fix="where that is a gate of experts, declare how many tokens one gets at most, as a multiple of its even "
        "share: --capacity-factor 1.25, in Python capacity_factor=1.25; else let no shape and no branch depend on it",
        where=failure.source,
    )


_VALUE_LOOK: Final = "DataDependentOutputException"
_SHAPE_LOOK: Final = "DynamicOutputShapeException"
"""What is raised where a value or a shape is looked at that a trace has not."""
