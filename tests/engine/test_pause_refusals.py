"""What a paused step refuses, when it is over, and whose room it keeps."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from tests.engine.models import VOCABULARY, model_of
from tests.engine.pauses import arena_of
from tmmu.engine.engine import Engine
from tmmu.errors import InvalidConfig, SegmentFull, SessionUnknown, UnsupportedOp


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda s: s.run_until("model.layers.9", [1]), "the nearest are model.layers"),
        (lambda s: s.run_until("", [1]), "no op of a step is in a module ''"),
        (lambda s: s.run_until("model.layers", [1]), "no one end in a step: it is not called just once"),
        (lambda s: s.run_until(None, [1]), "the module is None"),
        (lambda s: s.run_until("model.layers.0", []), "no tokens"),
        (lambda s: s.run_until("model.layers.0", "text"), "whole numbers"),
        (lambda s: s.run_until("model.layers.0", True), "whole numbers"),
        (lambda s: s.run_until("model.layers.0", VOCABULARY), "no token of the model"),
        (lambda s: s.run_until("model.layers.0", [1] * 97), "do not fit"),
    ],
)
def test_bad_pauses_are_one_line_and_leave_the_session_as_it_was(call: Any, words: str, llama: Engine) -> None:
    with llama.open() as session:
        with pytest.raises(InvalidConfig, match=words):
            call(session)
        assert (session.length, session.paused) == (0, None)
        assert not arena_of(session).any()


@pytest.fixture(scope="module")
def llama() -> Iterator[Engine]:
    with Engine(model_of("Llama"), max_tokens=96, max_batch=1, max_sessions=2, host="1MiB") as engine:
        yield engine


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda p: p.values["model.layers.0.mlp.act_fn"], r"written over by op \d+ aten.mul.Tensor"),
        (lambda p: p.values["model.layers.0.mlp"], r"model.layers.0.mlp is read by no later op"),
        (lambda p: p.values["model.layers.1"], "not computed yet"),
        (lambda p: p.values["model.embed_tokens"], r"was written over by op \d+ aten"),
        (lambda p: p.values["model.rotary_emb"], r"several tensors \(name one of them: model.rotary_emb\[0\]"),
        (lambda p: p.values["model.layer.0"], "the nearest are model.layers.0"),
        (lambda p: p.values[0], "no value is called '0'"),
        (
            lambda p: p.replace("model.layers.0", torch.zeros(64)),
            r"is float32\[1, 1, 64\], and the tensor float32\[64\]",
        ),
        (lambda p: p.replace("model.layers.0", torch.zeros(1, 1, 64).double()), "and the tensor float64"),
        (lambda p: p.replace("model.layers.0", 5), "replaced by a int"),
        (lambda p: p.run_until("model.embed_tokens"), "has run before"),
        (lambda p: p.run_until("nothing"), "no op of a step"),
        (lambda p: p.run_until(None), "the module is None"),
        (lambda p: p.session.decode(1), "paused behind model.layers.0"),
        (lambda p: p.session.prefill([1]), "paused behind model.layers.0"),
        (lambda p: p.session.run_until("lm_head", 1), "paused behind model.layers.0"),
        (lambda p: p.session.fork(), "resume that step, or cancel it"),
        (lambda p: p.session.engine.swap_out(p.session), "paused behind"),
    ],
)
def test_refusals_leave_the_step_paused(call: Any, words: str, llama: Engine) -> None:
    with llama.open() as whole, llama.open() as session:
        expected = [whole.prefill([1, 2]), whole.decode(3)][1]
        session.prefill([1, 2])
        paused = session.run_until("model.layers.0", 3)
        with pytest.raises(InvalidConfig, match=words):
            call(paused)
        assert "model.layers.0.mlp" not in paused.values
        assert paused.resume().equal(expected)


def test_step_is_over_once_it_was_resumed_cancelled_or_its_session_closed(llama: Engine) -> None:
    with llama.open() as session:
        resumed = session.run_until("model.layers.0", [1, 2])
        resumed.resume()
        cancelled = session.run_until("model.layers.0", 3)
        cancelled.cancel()
        cancelled.cancel()
        current = session.run_until("model.layers.0", 3)
        for step in (resumed, cancelled):
            for call in (
                step.resume,
                lambda step=step: step.values["model.layers.0"],
                lambda step=step: len(step.values),
            ):
                with pytest.raises(InvalidConfig, match="not paused any more"):
                    call()
        assert "behind model.layers.0" in repr(current)
    assert repr(current) == "<PausedStep: over>"
    current.cancel()
    for call in (current.resume, lambda: current.values["model.layers.0"], lambda: current.run_until("lm_head")):
        with pytest.raises(SessionUnknown, match="closed"):
            call()


def test_closed_engine_ends_what_is_paused() -> None:
    engine = Engine(model_of("Llama"), max_tokens=64, max_batch=1)
    paused = engine.open().run_until("model.layers.0", [1, 2])
    engine.close()
    with pytest.raises(SessionUnknown):
        paused.resume()


def test_paused_session_makes_no_room_for_others(llama: Engine) -> None:
    sessions = [llama.open(), llama.open()]
    steps = [session.run_until("model.layers.0", [1, 2]) for session in sessions]
    with pytest.raises(SegmentFull):
        llama.open()
    steps[0].cancel()
    with llama.open():
        assert [session.is_resident for session in sessions] == [False, True]
    expected, found = sessions[0].prefill([1, 2]), steps[1].resume()
    assert found.equal(expected)
    for session in sessions:
        session.close()


def test_paused_sessions_keep_their_room_and_who_needs_it_is_refused() -> None:
    model = model_of("GPT-2")
    with Engine(model, max_tokens=64, max_sessions=2, host="1MB") as engine:
        other = engine.open()
        paused = [engine.open().run_until("transformer.h.1", [1, 2]) for _ in range(2)]
        for call in (engine.open, lambda: other.prefill([3])):
            with pytest.raises(SegmentFull):
                call()
        with pytest.raises(InvalidConfig, match="paused behind"):
            engine.swap_out(paused[0].session)
        paused[0].cancel()
        logits = other.prefill([3])  # the one that was paused has made room
        assert not engine.is_resident(paused[0].session)
        assert paused[1].is_paused
        resumed = paused[1].resume()
        with engine.open() as fresh:
            assert torch.equal(fresh.prefill([3]), logits)
        with engine.open() as fresh:
            assert torch.equal(fresh.prefill([1, 2]), resumed)


def test_step_whose_weights_stream_does_not_pause() -> None:
    model = model_of("GPT-2")
    size = sum(parameter.numel() * 4 for parameter in model.parameters())
    with Engine(model, max_tokens=64, ring=size * 4 // 5) as engine, pytest.raises(UnsupportedOp, match="stream"):
        engine.open().run_until("transformer.h.1", [1, 2])
