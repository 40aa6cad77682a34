"""A paused step that goes on, fails or is cancelled leaves the bits of one that never paused, whatever the state."""

from typing import Any

import pytest
import torch

from tests.engine.models import prompt_of
from tests.engine.pauses import Subject, arena_of, open_subject
from tmmu.engine.session import Session

every = pytest.fixture(scope="module", params=["Llama", "GPT-2", "Bamba"], name="every")(open_subject)


def test_resumed_steps_have_the_bits_of_whole_ones_whoever_runs_between(every: Subject) -> None:
    prompt, engine = prompt_of(20), every.engine
    with engine.open() as whole, engine.open() as session, engine.open() as other, engine.open() as third:
        expected = [whole.prefill(prompt), whole.decode(5), whole.decode(6)]
        paused = session.run_until(every.layer(0), prompt)
        other.prefill(prompt_of(20, seed=1))  # a step of the same shape
        third.prefill(prompt_of(9, seed=2))  # and of others
        engine.decode([other, third], [1, 2])
        assert 0 < paused.bytes_saved <= paused.live_bytes
        assert paused.resume().equal(expected[0])
        assert paused.bytes_restored == paused.bytes_saved
        paused = session.run_until(every.layer(0), 5)
        engine.decode([other, third], [3, 4])
        other.decode(3)
        assert paused.resume().equal(expected[1])
        assert session.logits is not None
        assert session.logits.equal(expected[1])
        assert session.decode(6).equal(expected[2])
        assert session.length == whole.length


@pytest.mark.parametrize("inside", [(True, False, False), (False, True, False), (False, False, True)])
def test_calls_may_be_made_inside_inference_mode_or_not(every: Subject, inside: tuple[bool, ...]) -> None:
    prompt, layer = prompt_of(16), every.layer(0)
    with every.reader(prompt) as whole, every.reader(prompt) as session, every.engine.open() as other:
        for end in ("cancel", "resume"):
            with torch.inference_mode(inside[0]):
                paused = session.run_until(layer, 3)
            with torch.inference_mode(inside[1]):
                other.prefill([1])
            assert paused.bytes_saved > 0
            with torch.inference_mode(inside[2]):
                paused.values[layer] = paused.values[layer]
                found = getattr(paused, end)()
        assert found.equal(whole.decode(3))


def test_cancelled_step_leaves_the_session_as_before(every: Subject) -> None:
    prompt = prompt_of(16)
    with every.reader(prompt) as whole, every.reader(prompt) as session, every.engine.open() as other:
        logits = session.logits
        assert logits is not None
        for module in (every.layer(0), every.layer(1)):
            with session.run_until(module, 3):
                other.prefill([1])
            assert session.paused is None
            assert session.length == 16
            assert session.logits is not None
            assert session.logits.equal(logits)
        assert recurrent_bytes(session) == recurrent_bytes(whole)
        assert session.decode(7).equal(whole.decode(7))


def recurrent_bytes(session: Session) -> list[list[int]]:
    geometry, arena = session.engine.geometry, arena_of(session)
    offsets = geometry.offsets(session.capacities)
    return [arena[offsets[t.name] : offsets[t.name] + t.bytes_for(0)].tolist() for t in geometry.tensors if not t.grows]


def test_piece_that_fails_is_a_cancelled_step(every: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    prompt = prompt_of(16)

    def fail(*_: Any) -> Any:
        raise RuntimeError("no")

    with every.reader(prompt) as whole, every.reader(prompt) as session:
        paused = session.run_until(every.layer(0), 3)
        with monkeypatch.context() as patch:
            patch.setattr("tmmu.runtime.execute.pieces.run_launches", fail)
            with pytest.raises(RuntimeError, match="no"):
                paused.resume()
            assert not paused.is_paused
            with pytest.raises(RuntimeError, match="no"):
                session.run_until(every.layer(0), 3)
        assert (session.paused, session.is_broken, session.length) == (None, False, 16)
        assert session.decode(7).equal(whole.decode(7))
