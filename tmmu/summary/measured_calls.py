"""A real run beside eager's figure, call by call."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from tmmu.compare.align import align
from tmmu.eager.observed import ObservedMemory
from tmmu.eager.peak import live_levels
from tmmu.ir.lifetimes import EARLIER, EagerRun


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredCall:
    """Live bytes of the stack as one call ends, its arguments and results held.

    ``measured``: by torch's allocator; ``eager``: by the lifetimes of the plan, ``None`` where the trace has no such
    call. ``beside``: of ``measured``, what no call makes and eager's figure leaves out: numbers that torch wraps for
    calls, states of generators. ``inside``: what the call's kernel held beyond that for itself, at its most.
    """

    name: str
    source: str
    measured: int
    eager: int | None
    beside: int
    inside: int

    @property
    def difference(self) -> int | None:
        """Measured bytes above eager's figure and what is beside it."""
        return None if self.eager is None else self.measured - self.beside - self.eager


def measured_calls(
    run: EagerRun, memory: ObservedMemory, names: Sequence[str], sources: Sequence[str]
) -> tuple[MeasuredCall, ...]:
    """A row per call of the real run.

    Calls pair by position; where both runs go through the same levels (and autograd makes a view again in another way
    than in the trace), by these; where there are more or fewer calls, those pair that have one level.
    """
    found = earlier_bytes(run)
    levels = [found + level for level in memory.called]
    eager = paired_levels(live_levels(run.storages, run.calls), levels)
    columns = zip(names, sources, levels, eager, memory.beside, memory.most, strict=True)
    return tuple(
        MeasuredCall(
            name=name,
            source=source,
            measured=level + beside,
            eager=figure,
            beside=beside,
            inside=found + most - level - beside,
        )
        for name, source, level, figure, beside, most in columns
    )


def earlier_bytes(run: EagerRun) -> int:
    """What is there before the step and goes in it: part of eager's stack from the first call on."""
    table = run.storages
    return sum(size for size, maker in zip(table.bytes, table.maker, strict=True) if maker == EARLIER)


def paired_levels(eager: Sequence[int], measured: Sequence[int]) -> list[int | None]:
    """For each measured level, eager's for that call."""
    if is_same_course(eager, measured):
        return list(measured)
    if len(eager) == len(measured):
        return list(eager)
    partners = {right: eager[left] for left, right in align(eager, measured)}
    return [partners.get(position) for position in range(len(measured))]


def is_same_course(eager: Sequence[int], measured: Sequence[int]) -> bool:
    """Whether both go through the same levels, however many calls stay at each."""
    return [level for level, _ in groupby(eager)] == [level for level, _ in groupby(measured)]
