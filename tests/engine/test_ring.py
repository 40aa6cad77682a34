"""Sessions of an engine whose weights stream: prefill and decode over one ring, sessions in the heap."""

from pathlib import Path
from typing import Any

import pytest
import transformers

from tests.engine.models import MODELS, model_of, prompt_of, reference_tokens
from tmmu.engine.engine import Engine
from tmmu.errors import ArenaTooSmall, DeviceMemory, InvalidConfig, UnsupportedOp

SHORT = ["Llama"]


def room_of(model: Any) -> int:
    """Bytes of a ring that holds less than the weights, and any one layer of these models."""
    return sum(parameter.numel() * 4 for parameter in model.parameters()) * 4 // 5


@pytest.mark.parametrize(
    "name", [name if name in SHORT else pytest.param(name, marks=pytest.mark.slow) for name in MODELS]
)
def test_tokens_are_those_of_weights_that_stay(name: str) -> None:
    model, prompt = model_of(name), prompt_of(20)
    with Engine(model, max_tokens=64, max_batch=2, ring=room_of(model)) as engine:
        assert engine.stream is not None
        sessions = [engine.open(48) for _ in range(2)]
        runs = [session.generate(prompt, 12) for session in sessions]
        found = [list(pair) for pair in zip(*runs, strict=True)]
        assert [list(row) for row in zip(*found, strict=True)] == [reference_tokens(model, prompt, 12)] * 2
        weights = engine.stream.weights
        assert weights is not None
        assert weights.figures["moved_bytes"] >= weights.figures["pass_bytes"] * (weights.figures["passes"] - 1)
        assert weights.loop.counters.held_back == 0
        assert engine.usage["text"].used == 0
        assert weights.slab.storage.nbytes() < sum(p.numel() * 4 for p in model.parameters())


def test_heap_overflow_swaps_an_idle_session() -> None:
    model = model_of("GPT-2")
    with Engine(model, max_tokens=64, max_sessions=1) as engine:
        arena = engine.open().arena_bytes
    with Engine(model, max_tokens=64, ring=room_of(model), heap=2 * arena, host="1GB") as engine:
        assert engine.usage["data"].capacity == 2 * arena
        sessions = [engine.open() for _ in range(4)]
        prompts = [prompt_of(16, seed) for seed in range(4)]
        found = [list(session.generate(prompt, 4)) for session, prompt in zip(sessions, prompts, strict=True)]
        more = [list(session.generate([tokens[-1]], 4)) for session, tokens in zip(sessions, found, strict=True)]
        for prompt, tokens, rest in zip(prompts, found, more, strict=True):
            assert tokens + rest == reference_tokens(model, prompt, 8)
        assert engine.host.counts.sessions_out >= 2


def test_step_that_fails_leaves_the_stream_and_other_sessions_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    model, prompt = model_of("GPT-2"), prompt_of(16)
    with Engine(model, max_tokens=64, ring=room_of(model)) as engine:
        assert engine.stream is not None
        first, second = engine.open(), engine.open()
        one, two = first.generate(prompt, 8), second.generate(prompt, 8)
        found = [(next(one), next(two)) for _ in range(3)]
        assert engine.stream.weights is not None
        loop, count = engine.stream.weights.loop, 0
        leave = loop.leave

        def fail(visit: int) -> None:
            nonlocal count
            count += 1
            if count == 3:
                raise RuntimeError("cut")
            leave(visit)

        monkeypatch.setattr(loop, "leave", fail)
        with pytest.raises(RuntimeError, match="cut"):
            next(one)
        monkeypatch.undo()
        rest = [*(token for _, token in found), *two]
        assert rest == reference_tokens(model, prompt, 8)


def test_refusals_have_a_code() -> None:
    model = model_of("GPT-2")
    with pytest.raises(ArenaTooSmall, match=r"give it \d+ bytes"):
        Engine(model, max_tokens=64, ring=1000)
    with pytest.raises(InvalidConfig, match="ring"):
        Engine(model, max_tokens=64, ring=-1)
    with pytest.raises(InvalidConfig):
        Engine(model, max_tokens=64, heap="many")
    with pytest.raises(DeviceMemory, match="heap="):
        Engine(model, max_tokens=64, heap=64)
    with pytest.raises(DeviceMemory, match="ring="):
        Engine(model, max_tokens=64, budget="300KB")


def test_encoders_do_not_stream() -> None:
    config = transformers.T5Config(d_model=32, d_kv=8, d_ff=32, num_layers=1, num_heads=4, vocab_size=100)
    with pytest.raises(UnsupportedOp, match="an encoder and its decoder"):
        Engine(transformers.T5ForConditionalGeneration(config).eval(), max_tokens=64, max_source=64, ring="1MB")


def test_folder_of_files_streams(tmp_path: Path) -> None:
    model, prompt = model_of("Llama"), prompt_of(16)
    model.save_pretrained(tmp_path)
    with Engine(str(tmp_path), max_tokens=64, ring=room_of(model)) as engine:
        assert list(engine.open().generate(prompt, 6)) == reference_tokens(model, prompt, 6)


def test_figures_of_a_stream_are_there_before_its_first_step() -> None:
    model = model_of("GPT-2")
    with Engine(model, max_tokens=64, ring=room_of(model)) as engine:
        assert engine.stream is not None
        before = engine.stream.figures
        engine.open().prefill([1])
        after = engine.stream.figures
        assert before.keys() == after.keys()
        assert (before["passes"], after["passes"]) == (0, 1)
        assert before["pass_bytes"] == after["pass_bytes"] > 0
        assert before["host_bytes"] == after["host_bytes"]
