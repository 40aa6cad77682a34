"""Ways to spread a model over ranks that no trace follows yet: each is refused by its own name and reason.

A row is for failures that pass through the files of one way. What it does beside the failure is not looked at: a model
that is spread so and does not fail is planned.
"""

from dataclasses import dataclass
from typing import Final

from tmmu.errors import CapacityUndeclared, TmmuError, UnsupportedOp
from tmmu.passes.capture.failures.failure import Failure


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
    _Way(
        places=("distributed/tensor/experimental/_context_parallel/",),
        name="context_parallel",
        reason="it cuts the caller's own tensors where they lie",
        fix="plan the model on a sequence of one rank's length; attention then holds the keys of two ranks at a time",
    ),
)


def refusal_of_parallelism(failure: Failure) -> TmmuError | None:
    """``UNSUPPORTED_OP`` for a failure inside of one of these ways; ``None`` for others."""
    way = next((way for way in _WAYS if failure.passes(*way.places)), None)
    if way is None:
        return None
    where = f"{failure.source}: " if failure.source else ""
    return UnsupportedOp(f"{where}{way.name} is not planned: {way.reason}", fix=way.fix, where=failure.source)


def refusal_of_count(failure: Failure, gate: str) -> TmmuError | None:
    """``CAPACITY_UNDECLARED`` for a look at how many tokens experts get of ``gate``, a line; ``None`` for others."""
    if not gate or not (failure.kind in _LOOKS or failure.takes_unknown_number):
        return None
    where = f"{failure.source}: " if failure.source else ""
    return CapacityUndeclared(
        f"{where}how many tokens an expert gets is data, which the gate at {gate} decides",
        fix="declare how many an expert gets at most, as a multiple of its even share: --capacity-factor 1.25, "
        "in Python capacity_factor=1.25",
        where=failure.source,
    )


_LOOKS: Final = ("DataDependentOutputException", "DynamicOutputShapeException")
"""What is raised where a value or a shape is looked at that a trace has not."""
