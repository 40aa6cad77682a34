"""Values that a client keeps in the arena of its session: copies, within a quota, that go where the session goes."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.engine.models import model_of, prompt_of
from tmmu.engine.engine import Engine
from tmmu.engine.session import Session
from tmmu.errors import InvalidConfig, SegmentFull, SessionUnknown

ROOM = 64 * 1024 + 2048 + 2048
"""Bytes of one session of 64 tokens, its logits and values."""


@pytest.fixture(scope="module")
def engine() -> Any:
    with Engine(model_of("Llama"), max_tokens=64, max_batch=1, heap=ROOM + 512, host="1MiB") as engine:
        yield engine


def test_values_are_copies_in_the_arena_and_count_against_its_quota(engine: Engine) -> None:
    with engine.open(keep=1000) as session:
        assert session.arena_bytes == engine.geometry.arena_bytes(session.capacities)
        assert session.capacities.kept == 1024
        value = torch.arange(6.0).reshape(2, 3)
        session.kept["hidden"] = value.T
        value.zero_()
        found = session.kept["hidden"]
        assert found.tolist() == [[0, 3], [1, 4], [2, 5]]
        found.zero_()
        assert session.kept["hidden"].sum() == 15
        assert session.kept.used == 256
        arena = engine.segments.slabs["data"].bytes(session.base, session.arena_bytes)
        assert arena[-1024:-1000].view(torch.float32).tolist() == [0, 3, 1, 4, 2, 5]


@pytest.mark.parametrize(
    "value",
    [
        torch.tensor(3),
        torch.empty(0, 2, dtype=torch.bfloat16),
        torch.tensor([1 + 2j]).conj(),
        torch.tensor([True, False]),
        torch.randn(4, requires_grad=True),
        torch.randn(3, 4)[:, ::2],
    ],
    ids=["scalar", "empty", "conjugate", "bool", "gradient", "strided"],
)
def test_every_dense_tensor_can_be_kept(engine: Engine, value: torch.Tensor) -> None:
    with engine.open(keep=256) as session:
        session.kept["it"] = value
        found = session.kept["it"]
        assert (found.dtype, found.shape) == (value.dtype, value.shape)
        assert found.equal(value.detach())


def test_values_move_with_their_session_and_nothing_else_is_copied_again(engine: Engine) -> None:
    with engine.open(keep=1024) as session:
        session.prefill(prompt_of(20))
        session.kept["a"] = torch.full((300,), 7, dtype=torch.uint8)
        for name, value in (("b", 1.5), ("c", 2.5)):
            engine.swap_out(session)
            before = engine.host.counts.bytes_out
            session.kept[name] = torch.tensor(value)
            engine.swap_out(session)
            assert engine.host.counts.bytes_out == before + 256 + 2000  # and logits, which every write may change
        del session.kept["a"]
        engine.swap_out(session)
        with engine.open(keep=1024) as other:
            other.prefill([1])
            other.kept["b"] = torch.tensor(9.0)
            assert not session.is_resident
            assert session.kept["b"] == 1.5
            assert not other.is_resident
        assert (list(session.kept), session.kept.used) == (["b", "c"], 512)
        assert session.kept["c"] == 2.5
        assert session.logits is not None


def test_next_source_or_token_leaves_values_alone_and_a_fork_has_its_own() -> None:
    with Engine(model_of("Llama"), max_tokens=64, max_batch=1, heap=2 * ROOM) as engine:
        session = engine.open(keep=512)
        session.kept["x"] = torch.tensor([1, 2])
        session.prefill(prompt_of(5))
        other = session.fork()
        other.kept["x"] = torch.tensor([3])
        session.decode(4)
        assert session.kept["x"].tolist() == [1, 2]
        assert other.kept["x"].tolist() == [3]


def test_value_that_does_not_fit_changes_nothing(engine: Engine) -> None:
    with engine.open(keep=512) as session:
        session.kept["a"], session.kept["b"] = torch.tensor(1), torch.tensor(2)
        with pytest.raises(
            SegmentFull, match=r"value of 512 bytes.*may keep 512 and has 256 left \(open.*keep=768"
        ) as e:
            session.kept["a"] = torch.zeros(300, dtype=torch.uint8)
        assert e.value.fields == {"segment": session.arena, "bytes": 512, "free": 256, "capacity": 512}
        assert {name: int(value) for name, value in session.kept.items()} == {"a": 1, "b": 2}
        with pytest.raises(SegmentFull, match="may keep 0"), engine.open() as none:
            none.kept["a"] = torch.tensor(1)


@pytest.mark.parametrize(
    ("call", "what"),
    [
        (lambda s: s.kept["x"], "keeps no 'x'"),
        (lambda s: s.kept.pop("x"), "keeps no 'x'"),
        (lambda s: s.kept.update({3: torch.tensor(1)}), "named 3"),
        (lambda s: s.kept.update(x=4), "int cannot be kept"),
        (lambda s: s.kept.update(x=torch.empty(3, device="meta")), "on meta"),
        (lambda s: s.kept.update(x=torch.eye(2).to_sparse()), "sparse_coo"),
        (lambda s: s.engine.open(keep=-1), "keep is -1"),
    ],
)
def test_refusals_of_values(engine: Engine, call: Callable[[Session], object], what: str) -> None:
    with engine.open(keep=256) as session:
        with pytest.raises(InvalidConfig, match=what):
            call(session)
        assert session.kept.get("x") is None
        assert not session.kept


def test_value_of_a_closed_session_is_refused_and_its_bytes_are_gone(engine: Engine) -> None:
    session = engine.open(keep=256)
    session.kept["a"] = torch.tensor(1.0)
    session.close()
    for call in (lambda: session.kept["a"], lambda: session.kept.update(b=torch.tensor(1))):
        with pytest.raises(SessionUnknown, match="closed"):
            call()
    engine._swapping.wait_until_still()  # type: ignore[union-attr]
    assert not engine.segments.slabs["data"].bytes(0, engine.usage["data"].capacity).any()


def test_looking_at_values_renews_the_lease() -> None:
    now = [0.0]
    with Engine(model_of("Llama"), max_tokens=64, max_batch=1, max_sessions=2, clock=lambda: now[0]) as engine:
        session = engine.open(keep=256, lease=10)
        session.prefill([1, 2])
        for ask in (lambda: session.kept.update(a=torch.tensor(1)), lambda: session.kept["a"], lambda: session.logits):
            now[0] += 6
            ask()
            assert engine.reclaim_expired() == 0
        now[0] += 11
        assert engine.reclaim_expired() == 1
