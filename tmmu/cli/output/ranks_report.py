"""What the ranks of a program take, kind by kind: a table, and its record for JSON."""

from dataclasses import asdict
from typing import Final

from tmmu.codec.printable import align_columns
from tmmu.planner.arenas import readable_size
from tmmu.rank_plans import RankKind, RankPlans, ranks_text

HEADING: Final = ("ranks", "each as it is", "in the plan", "weights", "state", "stack")
OF_A_KIND: Final = "ranks of a kind are taken to do the same, and --rank N plans one by itself"


def rank_lines(plans: RankPlans | None) -> list[str]:
    """One row for each kind, which is fullest, and what that rests on; empty where no kinds were looked for."""
    if plans is None:
        return []
    count = sum(len(kind.ranks) for kind in plans.kinds)
    kinds = "1 kind" if len(plans.kinds) == 1 else f"{len(plans.kinds)} kinds"
    table = align_columns("<>>>>>", HEADING, [_row(kind) for kind in plans.kinds])
    fullest = f"ranks {ranks_text(plans.fullest_kind.ranks)} need most: rank {plans.fullest_kind.rank} is planned"
    return [f"{count} ranks of {kinds}", *table, fullest, *_reads_lines(plans), ""]


def _row(kind: RankKind) -> tuple[str, ...]:
    eager = "not known" if kind.eager is None else readable_size(kind.eager)
    parts = (kind.planned, kind.weights, kind.state, kind.stack)
    return ranks_text(kind.ranks), eager, *map(readable_size, parts)


def _reads_lines(plans: RankPlans) -> list[str]:
    """Where the program asks for its rank, by which ranks of a kind may differ."""
    if not plans.reads:
        return []
    lines = ", ".join(plans.reads)
    return [f"the program asks which rank it is ({lines}): {OF_A_KIND}"]


def rank_record(world: int | None, rank: int, plans: RankPlans | None) -> dict[str, object] | None:
    """The same for JSON; ``None`` where the model is not one rank of many."""
    if world is None:
        return None
    if plans is None:
        return {"world": world, "rank": rank, "kinds": None, "reads": None}
    kinds = [{"text": ranks_text(kind.ranks), "rank": kind.rank} | asdict(kind) for kind in plans.kinds]
    return {"world": world, "rank": plans.fullest_kind.rank, "kinds": kinds, "reads": list(plans.reads)}
