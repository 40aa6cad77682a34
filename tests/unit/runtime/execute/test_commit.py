"""Commits wait in arena order, then seal; with nothing pending they change nothing."""

from functools import partial

import pytest
from blake3 import blake3

from tmmu.runtime.execute.commit import CommitState, Pending, commit_execution

DIGEST = bytes(range(32))


def no_wait() -> None:
    return None


def test_commit_with_nothing_pending_keeps_the_state() -> None:
    state = CommitState(digest=b"\x07" * 32, batch=3)
    assert commit_execution(state, DIGEST, []) is state


def test_seal_covers_state_plan_and_batch() -> None:
    state = CommitState(digest=b"\x07" * 32, batch=258)
    sealed = commit_execution(state, DIGEST, [Pending(arena=0, wait=no_wait)])
    assert sealed.digest == blake3(b"\x07" * 32 + DIGEST + bytes([2, 1, 0, 0, 0, 0, 0, 0])).digest()
    assert sealed.batch == 259
    assert commit_execution(sealed, DIGEST, []) == sealed


def test_commit_waits_arena_by_arena() -> None:
    order: list[str] = []
    work = [(3, "late"), (0, "first"), (2, "a"), (2, "b")]
    pending = [Pending(arena=arena, wait=partial(order.append, name)) for arena, name in work]
    commit_execution(CommitState(), DIGEST, pending)
    assert order == ["first", "a", "b", "late"]


def test_seal_depends_on_the_order_of_batches() -> None:
    pending = [Pending(arena=0, wait=no_wait)]
    second_digest = bytes(32)
    ab = commit_execution(commit_execution(CommitState(), DIGEST, pending), second_digest, pending)
    ba = commit_execution(commit_execution(CommitState(), second_digest, pending), DIGEST, pending)
    assert ab != ba
    assert ab == commit_execution(commit_execution(CommitState(), DIGEST, pending), second_digest, pending)


def test_failed_wait_seals_nothing() -> None:
    def fail() -> None:
        raise OSError("device lost")

    with pytest.raises(OSError, match="device lost"):
        commit_execution(CommitState(), DIGEST, [Pending(arena=1, wait=fail)])
