"""The rewrite of a schedule: the rows of a rewrite in another order, some of them again."""

from collections.abc import Iterable
from dataclasses import replace

from tmmu.ir.ids import OpId
from tmmu.ir.rewrite import RERUN, TWIN, Rewrite
from tmmu.planner.fit.step_facts import StepFacts


def rematerialize(rewrite: Rewrite, facts: StepFacts, schedule: Iterable[tuple[OpId, bool]]) -> Rewrite:
    """``facts``: of what ``rewrite`` makes; ``schedule``: its ops, and whether they run again.

    What changes what persists, or draws, runs again as its twin.
    """
    origin, kind, part = [], [], []
    changes = (facts.kept_write.at[1:] > facts.kept_write.at[:-1]).tolist()
    for op, again in schedule:
        origin.append(rewrite.origin[op])
        kind.append((TWIN if changes[op] or not facts.alone[op] else RERUN) if again else rewrite.kind[op])
        part.append(() if again else rewrite.part[op])
    return replace(rewrite, origin=tuple(origin), kind=tuple(kind), part=tuple(part))
