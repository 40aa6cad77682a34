"""Summaries of planned steps, and the longest part of a prompt that they leave room for."""

import re
from typing import Any

import pytest

from tests.engine.models import model_of, prompt_of, reference_tokens
from tmmu.engine.engine import Engine
from tmmu.engine.geometry import StateLengths
from tmmu.errors import DeviceMemory

TOKENS = 160


@pytest.fixture(scope="module")
def model() -> Any:
    return model_of("Llama")


def test_summaries_say_phase_lengths_and_bytes_by_how_long_they_live(model: Any) -> None:
    with Engine(model, max_tokens=TOKENS, max_batch=2) as engine, engine.open() as session:
        decode, prefill = engine.summaries
        assert (decode.phase, decode.rows, decode.tokens, decode.kv_length) == ("llm_decode", 2, 1, 192)
        assert (prefill.phase, prefill.rows, prefill.tokens, prefill.kv_length) == ("llm_prefill", 1, 128, 192)
        weights = sum(weight.nbytes for weight in model.parameters())
        for summary, rows in ((decode, 2), (prefill, 1)):
            assert weights <= summary.memory.text <= engine.usage["text"].capacity
            assert summary.memory.data == rows * 192 * engine.geometry.token_bytes
        assert prefill.memory.inputs == 8 * (128 + 128 + 1)
        assert max(prefill.memory.stack, decode.memory.stack) == engine.usage["stack"].capacity
        session.prefill([1, 2])
        assert (engine.summaries[-1].phase, engine.summaries[-1].tokens) == ("llm_prefill", 16)


def test_smaller_budget_has_prompts_read_in_smaller_parts_with_the_same_tokens(model: Any) -> None:
    with Engine(model, max_tokens=TOKENS, max_batch=1, max_sessions=1) as engine:
        geometry, whole = engine.geometry, engine.usage
        assert engine.prefill_buckets == (128, 64, 32, 16)
        prefill = engine.summaries[1].memory.stack
    longest = geometry.arena_bytes(geometry.capacities_for(TOKENS, 0))
    budget = whole["text"].capacity + prefill + longest
    prompt = prompt_of(100)
    expected = reference_tokens(model, prompt, 8)
    for bytes_less, largest in ((0, 128), (1, 64), (prefill * 5 // 6, 16)):
        with Engine(model, max_tokens=TOKENS, max_batch=1, budget=budget - bytes_less) as engine:
            assert engine.prefill_buckets[0] == largest
            assert sum(usage.capacity for usage in engine.usage.values()) <= budget - bytes_less
            with engine.open() as session:
                assert list(session.generate(prompt, 8, stop=())) == expected
            read = {summary.tokens for summary in engine.summaries}
            assert max(read) == 128 if bytes_less == 0 else largest in read


def test_budget_for_less_than_the_longest_session_leaves_most_for_shorter_ones(model: Any) -> None:
    with Engine(model, max_tokens=TOKENS, max_batch=1, max_sessions=1) as engine:
        geometry, text = engine.geometry, engine.usage["text"].capacity
        decode = engine.summaries[0].memory.stack
    smallest = geometry.arena_bytes(StateLengths(64, 0))
    with Engine(model, max_tokens=TOKENS, max_batch=1, budget=text + decode + smallest) as engine:
        assert engine.prefill_buckets == ()
        with engine.open(60) as session:
            assert list(session.generate([1, 2, 3], 5, stop=())) == reference_tokens(model, [1, 2, 3], 5)
    with pytest.raises(DeviceMemory, match="smallest session"):
        Engine(model, max_tokens=TOKENS, max_batch=1, budget=text + decode + smallest - 256)


def test_refused_bytes_fit_when_its_advice_is_followed(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tmmu.engine.steps.sizes.device_memory", lambda _: (2_000_000, 0))
    with pytest.raises(
        DeviceMemory, match=r"budget of 3000000 bytes, and the device has 1900000 of .*smaller reserve="
    ):
        Engine(model, max_tokens=64, max_batch=1, budget=3_000_000, reserve=100_000)
    with pytest.raises(DeviceMemory, match=r"the heap 3000000: \d+ together, and 2000000 are there") as refused:
        Engine(model, max_tokens=64, max_batch=1, heap=3_000_000)
    heap = re.search(r"give heap=(\d+) or less", refused.value.fix)
    assert heap is not None
    with Engine(model, max_tokens=64, max_batch=1, heap=int(heap[1])) as engine:
        assert engine.usage["data"].capacity > 0
    with pytest.raises(DeviceMemory, match=r"the smallest session .*give a larger budget= or heap="):
        Engine(model, max_tokens=64, max_batch=1, heap=1000)


def test_part_of_the_free_memory_is_left_alone_without_a_budget(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tmmu.engine.steps.sizes.device_memory", lambda _: (100_000_000, 0))
    with Engine(model, max_tokens=TOKENS, max_batch=1, max_sessions=10**30) as engine:
        assert 80_000_000 < sum(usage.capacity for usage in engine.usage.values()) <= 90_000_000


def test_heap_that_is_less_than_the_longest_session_leaves_prompts_their_parts(model: Any) -> None:
    with Engine(model, max_tokens=TOKENS, max_batch=1, max_sessions=1) as engine:
        heap = engine.geometry.arena_bytes(StateLengths(64, 0))
        assert heap < engine.usage["data"].capacity
    with Engine(model, max_tokens=TOKENS, max_batch=1, heap=heap) as engine:
        assert (engine.prefill_buckets[0], engine.usage["data"].capacity) == (128, heap)
