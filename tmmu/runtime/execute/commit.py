"""Commit: the end of a batch, after which its memory is settled and its record sealed."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from blake3 import blake3

START: Final = bytes(32)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pending:
    """Work still under way in the arena of this index; ``wait`` returns when it is done, or raises."""

    arena: int
    wait: Callable[[], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitState:
    """32 bytes that depend on every plan committed so far, and the number of the next batch."""

    digest: bytes = START
    batch: int = 0


def commit_execution(state: CommitState, plan_digest: bytes, pending: Sequence[Pending]) -> CommitState:
    """Nothing is under way any more, and the next state is sealed: ``UML_OS.TMMU.CommitExecution_v1``.

    Waits arena by arena, in the order given within each. With nothing pending the state is the same one, so a
    repeated commit changes nothing. Whatever a wait raises passes through, and nothing is sealed.
    """
    if not pending:
        return state
    for work in sorted(pending, key=lambda pending_work: pending_work.arena):
        work.wait()
    sealed = blake3(state.digest + plan_digest + state.batch.to_bytes(8, "little")).digest()
    return CommitState(digest=sealed, batch=state.batch + 1)
