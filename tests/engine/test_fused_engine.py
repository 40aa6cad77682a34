"""An engine whose steps are fused: tokens of the plain one, logits near, sessions apart, and what it refuses."""

import pytest

from tests.compiler import needs_compiler
from tests.engine.models import MODELS, model_of, prompt_of
from tmmu.engine.engine import Engine
from tmmu.errors import InvalidConfig, UnsupportedOp
from tmmu.runtime.kernels.kernel_calls import is_kernel_call

SLOW = ("GPT-2",)
NEAR = 1e-5
"""Of the largest logit."""


def kernels_in(engine: Engine) -> int:
    steps = engine._stacks[0].steps
    bound = (steps.step(shape).executor.bound for shape in steps.shapes)
    return sum(any(map(is_kernel_call, step.code)) for each in bound for step in each.steps)


@pytest.mark.parametrize(
    ("options", "message"),
    [({"fuse": 1}, "is not a bool"), ({"fuse": True, "ring": 1 << 20}, "kernels read weights that stay")],
)
def test_what_is_not_fused_is_refused_before_anything_is_planned(options: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidConfig, match=message):
        Engine(object(), max_tokens=32, **options)  # type: ignore[arg-type]


@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [name if name in SLOW else pytest.param(name, marks=pytest.mark.long) for name in MODELS]
)
def test_tokens_are_those_of_the_plain_engine(name: str) -> None:
    model, prompt = model_of(name), prompt_of(12)
    plain, fused = (Engine(model, max_tokens=48, max_sessions=2, fuse=fuse) for fuse in (False, True))
    with plain.open() as one, fused.open() as other:
        expected, logits = one.prefill(prompt), other.prefill(prompt)
        for _ in range(16):
            assert (logits - expected).abs().max() <= NEAR * expected.abs().max()
            assert int(logits.argmax()) == int(expected.argmax())
            token = int(expected.argmax())
            expected, logits = one.decode(token), other.decode(token)
    assert kernels_in(fused) > 0
    assert kernels_in(plain) == 0


@needs_compiler
@pytest.mark.slow
def test_sessions_of_a_fused_engine_do_not_see_each_other() -> None:
    """Interleaved and batched, each has the tokens that it has alone; kernels move between their state by a table."""
    prompts = [prompt_of(length) for length in (5, 9, 7)]
    engine = Engine(model_of("GPT-2"), max_tokens=48, max_sessions=4, max_batch=2, fuse=True)
    alone = []
    for prompt in prompts:
        with engine.open() as session:
            tokens, logits = [], session.prefill(prompt)
            for _ in range(10):
                tokens.append(int(logits.argmax()))
                logits = session.decode(tokens[-1])
            alone.append(tokens)
    sessions = [engine.open() for _ in prompts]
    logits = [session.prefill(prompt) for session, prompt in zip(sessions, prompts, strict=True)]
    together: list[list[int]] = [[] for _ in prompts]
    for _ in range(10):
        for row, session in enumerate(sessions):
            together[row].append(int(logits[row].argmax()))
            logits[row] = session.decode(together[row][-1])
    assert together == alone
    batched = [engine.submit(session, [3]) for session in sessions]
    expected = []
    for prompt, tokens in zip(prompts, alone, strict=True):
        with engine.open() as session:
            session.prefill([*prompt, *tokens])
            expected.append(session.decode(3))
    for future, logits_alone in zip(batched, expected, strict=True):
        assert (future.result(60) - logits_alone).abs().max() <= NEAR * logits_alone.abs().max()
    with sessions[0].fork() as fork:
        assert fork.decode(5).equal(sessions[0].decode(5))
    with pytest.raises(UnsupportedOp, match="does not pause"):
        sessions[0].run_until("transformer.h.0", [3])
    for session in sessions:
        session.close()
