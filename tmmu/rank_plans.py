"""The ranks of a program by kinds: one of each is traced and planned, and which takes most memory is known of all."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from tmmu.driver import Compiled
from tmmu.eager.peak import eager_figures
from tmmu.errors import InternalError, InvalidConfig
from tmmu.summary.plan_summary import memory_of

MAX_KINDS: Final = 16
"""So many kinds of ranks are traced in one go: each takes as long as a plan of its own."""
WORLD_MAX: Final = 2**17
"""Ranks of one program: more than any cluster has."""
FULLEST: Final = "fullest"
NAMED: Final[Mapping[str, int]] = {"first": 0, "last": -1}
"""Ranks by name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankKind:
    """Ranks that take the same, in bytes each; ``rank`` is the first, and the one that was traced.

    ``eager``: a run as it is, in its first run or a later one; ``planned``: a run in the plan, the caller's inputs
    counted. ``weights``, ``state`` and ``stack`` are parts of ``planned``.
    """

    ranks: tuple[int, ...]
    eager: int | None
    planned: int
    weights: int
    state: int
    stack: int

    @property
    def rank(self) -> int:
        """The rank that was traced."""
        return self.ranks[0]

    @property
    def needed(self) -> int:
        """What a rank of this kind must have: in a run as it is where that is known."""
        return self.planned if self.eager is None else self.eager


@dataclass(frozen=True, slots=True, kw_only=True)
class RankPlans:
    """All kinds of ranks, by their first rank; ``fullest`` is the plan of the first rank of the kind that needs most.

    ``reads``: the lines in which the program asks which of all ranks it is. Ranks of a kind may do other work by that.
    ``side_by_side``: the kinds of rank 0, of the last rank and of the fullest with their plans, each once.
    """

    kinds: tuple[RankKind, ...]
    fullest: Compiled
    fullest_kind: RankKind
    reads: tuple[str, ...]
    side_by_side: tuple[tuple[RankKind, Compiled], ...]


def compile_ranks(world: int, compile_rank: Callable[[int], Compiled]) -> RankPlans:
    """Plans of one rank of each kind, which ``compile_rank`` makes: a trace for each.

    A trace says which ranks have shards of equal shapes; of the others the first is traced next.
    ``INVALID_CONFIG`` for more than ``MAX_KINDS`` kinds.
    """
    kinds: list[RankKind] = []
    reads: dict[str, None] = {}
    fullest: tuple[RankKind, Compiled] | None = None
    kept: list[tuple[RankKind, Compiled]] = []
    remaining = tuple(range(world))
    while remaining:
        compiled = compile_rank(remaining[0])
        if compiled.rank_kinds is None:
            raise InternalError("a trace of one rank of many says no kinds")
        kind_of = compiled.rank_kinds.kind_of
        reads.update(dict.fromkeys(compiled.rank_kinds.reads))
        _require_few(kind_of, len(kinds))
        kind = kind_of_ranks(tuple(rank for rank in remaining if kind_of[rank] == kind_of[remaining[0]]), compiled)
        remaining = tuple(rank for rank in remaining if kind_of[rank] != kind_of[remaining[0]])
        kinds.append(kind)
        if fullest is None or kind.needed > fullest[0].needed:
            fullest = kind, compiled
        named = (fullest[0].rank, 0, world - 1)
        kept = [pair for pair in (*kept, (kind, compiled)) if any(rank in pair[0].ranks for rank in named)]
    if fullest is None:
        raise InternalError("a world has ranks")
    return RankPlans(
        kinds=tuple(kinds),
        fullest=fullest[1],
        fullest_kind=fullest[0],
        reads=tuple(reads),
        side_by_side=tuple(kept),
    )


def require_world(world: object) -> int:
    """The number of ranks; ``INVALID_CONFIG`` for none and for more than ``WORLD_MAX``."""
    if type(world) is not int or not 1 <= world <= WORLD_MAX:
        raise InvalidConfig(f"world {world!r:.40} is not in 1..{WORLD_MAX}", fix="give the number of ranks")
    return world


def rank_number(rank: object, world: int) -> int | None:
    """The number of ``first``, ``last`` or a number itself; ``None`` for ``fullest``, which is known after traces."""
    if isinstance(rank, str) and rank in NAMED:
        return NAMED[rank] % world
    if type(rank) is int and 0 <= rank < world:
        return rank
    if rank != FULLEST:
        raise InvalidConfig(
            f"rank {rank!r:.40} is none of {world}", fix=f"give first, last, fullest or a number in 0..{world - 1}"
        )
    return None


def kind_of_ranks(ranks: tuple[int, ...], compiled: Compiled) -> RankKind:
    """What each of these ranks takes, by the plan of one of them."""
    memory = memory_of(compiled.plan, compiled.graph)
    eager = eager_figures(compiled.graph, compiled.plan.mode)
    first = 0 if compiled.first_step is None else compiled.first_step.total_bytes
    return RankKind(
        ranks=ranks,
        eager=None if eager is None else max(eager.total_bytes, first),
        planned=memory.total,
        weights=memory.text,
        state=memory.data,
        stack=memory.stack,
    )


def _require_few(kind_of: tuple[int, ...], traced: int) -> None:
    count = len(set(kind_of))
    if max(count, traced + 1) > MAX_KINDS:
        raise InvalidConfig(
            f"the ranks are of {max(count, traced + 1)} kinds or more, and {MAX_KINDS} are traced in one go",
            fix="name one: --rank first, --rank last or a number",
        )


def ranks_text(ranks: tuple[int, ...]) -> str:
    """``0-2,4``: ranks in order, neighbours as one range."""
    ranges: list[list[int]] = []
    for rank in ranks:
        if ranges and ranges[-1][1] == rank - 1:
            ranges[-1][1] = rank
        else:
            ranges.append([rank, rank])
    return ",".join(f"{start}" if start == end else f"{start}-{end}" for start, end in ranges)
