"""Tokens are those of transformers' own ``generate``; logits are near those of a run without cache or padding."""

from typing import Any

import pytest
import torch

from tests.engine.models import (
    MODELS,
    NEAR,
    model_of,
    prompt_of,
    reference_logits,
    reference_tokens,
    require_same_tokens,
)
from tmmu.engine.engine import Engine


@pytest.fixture(scope="module")
def gpt2() -> Any:
    return model_of("GPT-2")


@pytest.fixture(scope="module")
def engine(gpt2: Any) -> Any:
    with Engine(gpt2, max_tokens=128, max_batch=4) as engine:
        yield engine


def test_best_tokens_are_those_of_transformers(engine: Engine, gpt2: Any) -> None:
    prompt = prompt_of(21)
    with engine.open() as session:
        found = list(session.generate(prompt, 40, stop=()))
        assert session.length == len(prompt) + 39
    require_same_tokens(gpt2, prompt, found, reference_tokens(gpt2, prompt, 40))


@pytest.mark.parametrize(
    "settings", [{"temperature": 0.7}, {"temperature": 1.0, "top_k": 20}, {"temperature": 1.3, "top_p": 0.8}]
)
def test_drawn_tokens_are_those_after_manual_seed(engine: Engine, gpt2: Any, settings: dict[str, Any]) -> None:
    prompt = prompt_of(9)
    expected = reference_tokens(gpt2, prompt, 16, seed=3, **settings)
    state = torch.get_rng_state()
    with engine.open() as session:
        found = list(session.generate(prompt, 16, seed=3, stop=(), **settings))
    assert found == expected
    assert torch.get_rng_state().equal(state)


def test_prompt_in_parts_and_token_by_token_has_the_logits_of_the_whole(engine: Engine, gpt2: Any) -> None:
    prompt = prompt_of(47, seed=4)
    expected = reference_logits(gpt2, prompt)
    spread = float(expected.max() - expected.min())
    with engine.open() as whole, engine.open() as parts, engine.open() as single:
        parts.prefill(prompt[:5])
        parts.prefill(torch.tensor([prompt[5:30]]))
        for token in prompt[:-1]:
            single.decode(token)
        for logits in (whole.prefill(prompt), parts.prefill(prompt[30:]), single.decode(prompt[-1])):
            assert float((logits - expected).abs().max()) < NEAR * spread


def test_text_stops_at_the_end_token_and_goes_on(engine: Engine, gpt2: Any) -> None:
    prompt = prompt_of(12, seed=1)
    tokens = reference_tokens(gpt2, prompt, 8)
    with engine.open() as session:
        assert list(session.generate(prompt, 8, stop=[tokens[2]])) == tokens[: tokens.index(tokens[2]) + 1]
    with engine.open() as session:
        first = list(session.generate(prompt, 3, stop=()))
        rest = list(session.generate([first[-1]], 5, stop=()))
        assert first + rest == tokens


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_every_architecture_has_the_tokens_of_transformers(name: str) -> None:
    model, prompt = model_of(name), prompt_of(37)
    with Engine(model, max_tokens=192, max_batch=2) as engine:
        with engine.open(165) as session:
            found = list(session.generate(prompt, 128, stop=()))
        require_same_tokens(model, prompt, found, reference_tokens(model, prompt, 128))
        with engine.open(165) as session:
            drawn = list(session.generate(prompt, 64, temperature=0.9, top_k=50, top_p=0.95, seed=7, stop=()))
        assert drawn == reference_tokens(model, prompt, 64, seed=7, temperature=0.9, top_k=50, top_p=0.95)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["Llama", "Gemma 3", "DeepSeek", "Bamba"])
def test_interleaved_batched_and_forked_sessions_have_the_tokens_of_a_run_alone(name: str) -> None:
    model = model_of(name)
    generator = torch.Generator().manual_seed(1)
    with Engine(model, max_tokens=128, max_batch=4) as engine:
        prompts = [prompt_of(int(torch.randint(3, 40, (), generator=generator)), seed=i) for i in range(8)]
        expected = [reference_tokens(model, prompt, 24) for prompt in prompts]
        sessions = [engine.open(96) for _ in prompts]
        found = [[int(session.prefill(prompt).argmax())] for session, prompt in zip(sessions, prompts, strict=True)]
        while min(map(len, found)) < 24:
            turn = [i for i in range(8) if len(found[i]) < 24 and torch.rand((), generator=generator) < 0.6]
            if not turn:
                continue
            forks = [i for i in turn if torch.rand((), generator=generator) < 0.1]
            for i in forks:
                other = sessions[i].fork()
                sessions[i].close()
                sessions[i] = other
            logits = engine.decode([sessions[i] for i in turn], [found[i][-1] for i in turn])
            for i, row in zip(turn, logits, strict=True):
                found[i].append(int(row.argmax()))
        for prompt, tokens, reference in zip(prompts, found, expected, strict=True):
            require_same_tokens(model, prompt, tokens, reference)


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("Llama", torch.bfloat16),
        pytest.param("Llama", torch.float64, marks=pytest.mark.slow),
        pytest.param("Mixtral", torch.float16, marks=pytest.mark.slow),
        pytest.param("Bamba", torch.bfloat16, marks=pytest.mark.slow),
    ],
)
def test_model_that_was_converted_as_a_whole_has_its_own_tokens(name: str, dtype: torch.dtype) -> None:
    """With its buffers, which the configuration would have in single precision."""
    model = model_of(name).to(dtype)
    prompt = prompt_of(10)
    with Engine(model, max_tokens=64, max_batch=1, max_sessions=1) as engine, engine.open() as session:
        assert {form.dtype for form in engine.geometry.tensors} <= {dtype, torch.float32}
        assert list(session.generate(prompt, 8, stop=())) == reference_tokens(model, prompt, 8)


def test_requests_without_a_thread_run_together_when_somebody_runs_them(engine: Engine) -> None:
    prompts = [prompt_of(9, seed=seed) for seed in range(4)]
    with engine.open() as alone:
        expected = [alone.prefill(prompts[0]), alone.decode(7)]
    sessions = [engine.open() for _ in prompts]
    try:
        futures = [engine.enqueue(session, prompt) for session, prompt in zip(sessions, prompts, strict=True)]
        assert not any(future.done() for future in futures)
        engine.scheduler.run_until(lambda: all(future.done() for future in futures))
        steps, rows = engine.scheduler.steps, engine.scheduler.rows
        tokens = [engine.enqueue(session, torch.tensor([7])) for session in sessions]
        engine.scheduler.run_until(lambda: all(future.done() for future in tokens))
        assert (engine.scheduler.steps - steps, engine.scheduler.rows - rows) == (1, 4)
        for logits, future in zip(expected, (futures[0], tokens[0]), strict=True):
            assert torch.allclose(logits, future.result(), atol=1e-5)
    finally:
        for session in sessions:
            session.close()
