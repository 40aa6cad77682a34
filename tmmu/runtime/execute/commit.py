"""Commit: waits for a batch and seals it in a hash chain over everything that has run."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from blake3 import blake3

START: Final = bytes(32)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pending:
    """Work still under way in an arena, by index; ``wait`` returns when it is done, or raises."""

    arena: int
    wait: Callable[[], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitState:
    """The chain's digest, 32 bytes over every plan committed so far, and the number of the next batch."""

    digest: bytes = START
    batch: int = 0


def commit_execution(state: CommitState, plan_digest: bytes, pending: Sequence[Pending]) -> CommitState:
    """The next state, after all pending work: ``UML_OS.TMMU.CommitExecution_v1``.

    Its digest is ``BLAKE3(digest || plan_digest || batch as u64 little-endian)``. Waits arena by arena, in the order
    given within each. Where nothing is pending the state stays the same. What a wait raises passes through, and nothing
    is sealed.
    """
    if not pending:
        return state
    for work in sorted(pending, key=lambda work: work.arena):
        work.wait()
    sealed = blake3(state.digest + plan_digest + state.batch.to_bytes(8, "little")).digest()
    return CommitState(digest=sealed, batch=state.batch + 1)
