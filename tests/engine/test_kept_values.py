"""Values that a client keeps in the arena of its session: copies, within a quota, that go where the session goes."""

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._subclasses import FakeTensorMode

from tests.engine.models import model_of, prompt_of
from tests.engine.swaps import swapping_of
from tmmu.engine.engine import Engine
from tmmu.engine.session import Session
from tmmu.errors import InvalidConfig, SegmentFull, SessionUnknown

ROOM = 64 * 1024 + 2048 + 2048
"""Bytes of one session of 64 tokens, its logits and values."""


@pytest.fixture(scope="module")
def engine() -> Any:
    with Engine(model_of("Llama"), max_tokens=64, max_batch=1, heap=ROOM + 512, host="1MiB") as engine:
        yield engine


def _fake() -> torch.Tensor:
    with FakeTensorMode():
        return torch.ones(3)


def _nested() -> torch.Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that nested tensors are a prototype
        return torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])


def _freed() -> torch.Tensor:
    tensor = torch.ones(3)
    tensor.untyped_storage().resize_(0)
    return tensor


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
        torch.tensor([1 + 2j]).conj().imag,
        torch.ones(1).expand(5),
    ],
    ids=["scalar", "empty", "conjugate", "bool", "gradient", "strided", "negative", "expanded"],
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
        session.kept["b"] = torch.tensor(1.25)  # in the place of what the host has
        session.kept["b"] = torch.tensor(1.5)
        engine.swap_out(session)
        with engine.open(keep=1024) as other:
            other.prefill([1])
            other.kept["b"] = torch.tensor(9.0)
            assert not session.is_resident
            assert session.kept["b"] == 1.5
            assert not other.is_resident
        assert (list(session.kept), session.kept.used) == (["c", "b"], 512)
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


def test_values_are_a_mapping_like_any_other(engine: Engine) -> None:
    with engine.open(keep=1024) as session:
        kept = session.kept
        assert int(kept.setdefault("a", torch.tensor(1))) == 1
        assert int(kept.setdefault("a", torch.tensor(2))) == 1
        assert kept.pop("b", None) is None
        assert kept.pop(["b"], 3) == 3  # type: ignore[arg-type]
        assert not kept.__contains__(["a"])
        assert kept.get(["a"], 4) == 4  # type: ignore[arg-type]
        kept.update(b=torch.ones(3), c=torch.tensor(5))
        assert int(kept.pop("a")) == 1
        assert (list(kept), kept.used) == (["b", "c"], 512)
        kept.clear()
        assert (len(kept), kept.used) == (0, 0)


def test_values_are_whole_when_their_change_is_interrupted(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    with engine.open(keep=2048) as session:
        session.kept["a"], session.kept["b"] = torch.full((300,), 1.0), torch.full((3,), 2.0)

        def interrupt(_: torch.Tensor) -> None:
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr("tmmu.engine.kept_values.zero_tensor", interrupt)
            with pytest.raises(KeyboardInterrupt):
                session.kept["a"] = torch.full((2,), 3.0)
        assert (list(session.kept), session.kept.used) == (["b"], 256)
        session.kept["c"] = torch.full((4,), 4.0)
        assert session.kept["b"].tolist() == [2.0] * 3
        assert session.kept["c"].tolist() == [4.0] * 4


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
        (lambda s: s.kept.update(x=_fake()), "on meta"),
        (lambda s: s.kept.update(x=_nested()), "of tensors"),
        (lambda s: s.kept.update(x=_freed()), "freed or cut"),
        (lambda s: s.kept[["x"]], r"keeps no \['x'\]"),
        (lambda s: s.kept.pop(["x"]), r"keeps no \['x'\]"),
        (lambda s: s.kept.setdefault("x"), "NoneType cannot be kept"),
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
    swapping_of(engine).wait_until_still()
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
