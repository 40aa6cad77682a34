"""Sessions that make room for others come back as they were, and nothing is moved twice."""

from typing import Any

import pytest

from tests.engine.models import VOCABULARY, model_of, prompt_of, reference_tokens
from tmmu.engine.engine import Engine
from tmmu.errors import InvalidConfig, SegmentFull

COUNT = 10


@pytest.fixture(scope="module", params=["Llama", "Bamba"])
def model(request: pytest.FixtureRequest) -> Any:
    return model_of(request.param)


def test_more_sessions_than_there_is_room_for_have_the_tokens_of_a_run_alone(model: Any) -> None:
    prompts = [prompt_of(4 + i, seed=i) for i in range(5)]
    expected = [reference_tokens(model, prompt, COUNT) for prompt in prompts]
    with Engine(model, max_tokens=64, max_batch=4, max_sessions=2, host="64MiB") as engine:
        sessions = [engine.open() for _ in prompts]
        found = [[int(s.prefill(prompt).argmax())] for s, prompt in zip(sessions, prompts, strict=True)]
        for _ in range(COUNT - 1):
            rows = engine.decode(sessions, [tokens[-1] for tokens in found])
            for tokens, logits in zip(found, rows, strict=True):
                tokens.append(int(logits.argmax()))
        assert found == expected
        assert sum(session.is_resident for session in sessions) == 2
        assert engine.host.counts.sessions_out > 0


def test_idle_session_wakes_after_others_have_used_its_bytes(model: Any) -> None:
    prompt = prompt_of(9)
    expected = reference_tokens(model, prompt, COUNT)
    with Engine(model, max_tokens=64, max_batch=1, max_sessions=1, host="64MiB") as engine:
        sleeper = engine.open()
        first = list(sleeper.generate(prompt, 4, stop=()))
        with engine.open() as other:
            assert not sleeper.is_resident
            list(other.generate(prompt_of(20, seed=3), 6, stop=()))
            assert other.base == 0
        assert first + list(sleeper.generate([first[-1]], COUNT - 4, stop=())) == expected


def test_positions_that_the_host_has_are_not_copied_again() -> None:
    with Engine(model_of("Llama"), max_tokens=64, max_batch=1, max_sessions=1, host="1MiB") as engine:
        session, token, logits = engine.open(), engine.geometry.token_bytes, VOCABULARY * 4
        session.prefill(prompt_of(20))
        engine.swap_out(session)
        engine.swap_out(session)
        assert engine.host.counts.bytes_out == 20 * token + logits
        session.decode(1)
        engine.swap_out(session)
        assert engine.host.counts.bytes_out == 21 * token + 2 * logits
        assert engine.host.counts.bytes_in == 20 * token + logits
        session.close()
        assert engine.host.used == 0


def test_state_that_did_not_change_is_not_copied_again(model: Any) -> None:
    with Engine(model, max_tokens=64, max_batch=1, max_sessions=2, host="64MiB") as engine:
        session = engine.open()
        engine.swap_out(session)  # before the first token: what recurs is zeros, and is so again
        engine.swap_out(session)
        before = session.prefill(prompt_of(9))
        engine.swap_out(session)
        moved = engine.host.counts.bytes_out
        with session.fork() as other:  # it came in to be copied
            engine.swap_out(session)
            assert engine.host.counts.bytes_out == moved
            assert other.decode(1).equal(session.decode(1))
        engine.swap_out(session)
        assert engine.host.counts.bytes_out > moved
        with engine.open() as alone:
            assert alone.prefill(prompt_of(9)).equal(before)


def test_full_host_tier_is_refused_and_nothing_moves() -> None:
    with Engine(model_of("Llama"), max_tokens=64, max_batch=1, max_sessions=1, host=1000) as engine:
        session = engine.open()
        session.prefill(prompt_of(5))
        with pytest.raises(SegmentFull, match="larger host="):
            engine.open()
        assert session.is_resident
        assert engine.sessions == (session,)
        session.decode(1)
        request = engine._submit(session, [1], is_prompt=False)
        with pytest.raises(InvalidConfig, match="waits for a step"):
            engine.swap_out(session)
        engine.cancel(session)
        assert request.future.cancelled()


def test_engine_without_a_host_tier_refuses_as_before() -> None:
    with Engine(model_of("Llama"), max_tokens=64, max_batch=1, max_sessions=1) as engine:
        engine.open()
        with pytest.raises(SegmentFull, match="data"):
            engine.open()
