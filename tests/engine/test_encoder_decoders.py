"""Encoder-decoders: a source is encoded once, and its tokens are those of transformers' own ``generate``."""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from tests.engine.models import (
    AMPLIFIED_NEAR,
    BINS,
    ENCODER_DECODERS,
    FRAMES,
    VOCABULARY,
    model_of,
    prompt_of,
    reference_logits,
    reference_text,
    require_same_tokens,
    source_of,
)
from tmmu.engine.capture.model_call import build_model
from tmmu.engine.capture.relative_bias import bias_by_positions
from tmmu.engine.capture.step import StepShape
from tmmu.engine.engine import Engine
from tmmu.engine.geometry import StateLengths
from tmmu.engine.session import Session
from tmmu.engine.steps.planned_steps import plan_step
from tmmu.errors import InvalidConfig, UnsupportedOp


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """An engine of a model with a source."""

    name: str
    model: Any
    engine: Engine
    start: int

    def same(self, source: Any, found: list[int], expected: list[int]) -> None:
        require_same_tokens(self.model, [self.start], found, expected, source, AMPLIFIED_NEAR)

    def cross_bytes(self, session: Session) -> torch.Tensor:
        """A copy of the bytes of a session that are of its source."""
        geometry, slab = self.engine.geometry, self.engine.segments.slabs["data"]
        offsets = geometry.offsets(session.capacities)
        parts = [
            slab.bytes(session.base + offsets[tensor.name], tensor.bytes_for(session.lengths))
            for tensor in geometry.tensors
            if tensor.along == "source"
        ]
        return torch.cat(parts)


@pytest.fixture(scope="module", params=ENCODER_DECODERS)
def subject(request: pytest.FixtureRequest) -> Iterator[Subject]:
    model = model_of(request.param)
    source = 96 if request.param == "T5" else None
    with Engine(model, max_tokens=128, max_source=source, max_batch=4, host="64MiB") as engine:
        yield Subject(name=request.param, model=model, engine=engine, start=model.config.decoder_start_token_id)


@pytest.fixture(scope="module")
def t5() -> Iterator[Engine]:
    with Engine(model_of("T5"), max_tokens=64, max_source=96, max_batch=1) as engine:
        yield engine


def test_best_tokens_of_a_source_are_those_of_transformers(subject: Subject) -> None:
    source = source_of(subject.name)
    expected = reference_text(subject.model, source, 40)
    assert len(set(expected)) > 5
    with subject.engine.open() as session:
        session.encode(source)
        found = list(session.generate(max_new_tokens=40, stop=()))
        assert session.length == 40
    subject.same(source, found, expected)


def test_drawn_tokens_are_those_after_manual_seed(subject: Subject) -> None:
    source, settings = source_of(subject.name, seed=4), {"temperature": 0.9, "top_k": 50, "top_p": 0.95}
    expected = reference_text(subject.model, source, 16, seed=3, **settings)
    with subject.engine.open() as session:
        session.encode(source)
        assert list(session.generate(max_new_tokens=16, seed=3, stop=(), **settings)) == expected


def test_tokens_that_the_settings_of_a_folder_suppress_are_not_chosen(tmp_path: Path) -> None:
    model, source = model_of("Whisper"), source_of("Whisper")
    first, *others = reference_text(model, source, 8)
    model.generation_config.begin_suppress_tokens = [first, VOCABULARY]
    model.generation_config.suppress_tokens = [others[-1]]
    expected = reference_text(model, source, 16)
    assert expected[0] != first
    assert others[-1] not in expected
    model.save_pretrained(tmp_path)
    with Engine(tmp_path, max_tokens=64, max_batch=1) as engine, engine.open() as session:
        session.encode(source)
        found = list(session.generate(max_new_tokens=9, stop=()))
        # Of a text that goes on no token is the first.
        found += session.generate(max_new_tokens=0, stop=())
        session.decode(found[-1])
        assert found + list(session.generate(max_new_tokens=7, stop=())) == expected


@pytest.mark.parametrize(
    ("name", "tokens"), [("T5", 65), pytest.param("T5", 1, marks=pytest.mark.slow), ("Whisper", 1)]
)
def test_padded_source_and_prompt_have_the_logits_of_a_run_without(name: str, tokens: int) -> None:
    """In double precision, where rounding is far below what a wrong mask or position would change."""
    model = model_of(name).double()
    source = source_of(name, seed=tokens, tokens=tokens)
    source = source.double() if isinstance(source, torch.Tensor) else source
    prompt = [model.config.decoder_start_token_id, *prompt_of(37, seed=tokens)]
    expected = reference_logits(model, prompt, source)
    longest = 96 if name == "T5" else None
    options = {"max_tokens": 64, "max_source": longest, "max_batch": 1}
    with Engine(model, **options) as engine, engine.open() as whole, engine.open() as parts:
        whole.encode(source)
        parts.encode(source)
        parts.prefill(prompt[:5])
        parts.prefill(prompt[5:-1])
        for logits in (whole.prefill(prompt), parts.decode(prompt[-1])):
            assert float((logits - expected).abs().max()) < 1e-10


def test_source_is_encoded_once_and_steps_neither_change_it_nor_run_the_encoder(subject: Subject) -> None:
    engine = subject.engine
    with engine.open() as session:
        session.encode(source_of(subject.name))
        before, steps = subject.cross_bytes(session), engine.scheduler.steps
        assert before.any()
        list(session.generate(max_new_tokens=5, stop=()))
        assert engine.scheduler.steps == steps + 5
        assert subject.cross_bytes(session).equal(before)
        lengths = engine._stacks[0].runner.step_lengths(session)
    graph = plan_step(
        engine.subject, StepShape(rows=1, tokens=1, kv_length=lengths.text, source_length=lengths.source)
    ).program.graph
    encoder = {buffer for buffer, name in enumerate(graph.notes.buffers) if ".encoder." in f".{name}"}
    assert encoder
    assert encoder.isdisjoint(graph.values.buffer)  # weights that no op names


def test_session_reserves_the_bytes_of_text_and_source(subject: Subject) -> None:
    geometry, engine = subject.engine.geometry, subject.engine
    row = 2 * 2 * 64 * 4  # layers, keys and values, width, float32
    assert (geometry.token_bytes, geometry.source_token_bytes) == (row, row)
    used = engine.usage["data"].used
    with engine.open(60, source=10 if subject.name == "T5" else None) as session:
        positions = 64 + (64 if subject.name == "T5" else FRAMES // 2)
        assert session.arena_bytes >= positions * row
        assert session.arena_bytes - positions * row < len(geometry.arena_tensors) * geometry.alignment
        assert engine.usage["data"].used - used == session.arena_bytes == geometry.arena_bytes(session.capacities)


def test_next_source_begins_a_text_in_the_same_arena(subject: Subject) -> None:
    """A stream of chunks: each is encoded, and the last text is a prompt of the decoder, if it is to be."""
    engine, text = subject.engine, [subject.start]
    with engine.open() as session:
        place = session.base
        for chunk in range(3):
            source = source_of(subject.name, seed=chunk, tokens=30 - 9 * chunk)
            session.encode(source)
            assert (session.length, session.logits) == (0, None)
            prompt = [subject.start, *text[1:][-7:]]
            found = list(session.generate(prompt, 8, stop=()))
            expected = reference_text(subject.model, source, 8, prompt=prompt)
            require_same_tokens(subject.model, prompt, found, expected, source, AMPLIFIED_NEAR)
            text += found
        assert session.base == place


def test_swapped_session_has_its_source_when_it_comes_back_and_none_of_the_last(subject: Subject) -> None:
    first, second = (source_of(subject.name, seed=seed, tokens=20 + seed) for seed in (1, 2))
    expected = [reference_text(subject.model, source, 6) for source in (first, second)]
    with subject.engine.open() as session:
        for source, tokens in zip((first, second), expected, strict=True):
            session.encode(source)
            subject.engine.swap_out(session)
            found = list(session.generate(max_new_tokens=3, stop=()))
            subject.engine.swap_out(session)
            found += session.generate(found[-1:], 3, stop=())
            subject.same(source, found, tokens)
            subject.engine.swap_out(session)
    assert subject.engine.host.used == 0


def test_fork_has_a_source_of_its_own(subject: Subject) -> None:
    first, second = source_of(subject.name, seed=1), source_of(subject.name, seed=2)
    expected = reference_text(subject.model, first, 6)
    with subject.engine.open() as session:
        session.encode(first)
        with session.fork() as other:
            session.encode(second)
            assert session.prefill([subject.start]).ne(other.prefill([subject.start])).any()
            found = [int(other.logits.argmax())] if other.logits is not None else []
            subject.same(first, found + list(other.generate(found, 5, stop=())), expected)


def test_asyncio_tasks_encode_and_generate(subject: Subject) -> None:
    sources = [source_of(subject.name, seed=seed, tokens=8 + seed) for seed in range(3)]

    async def text(source: Any) -> list[int]:
        with subject.engine.open() as session:
            await session.encode_async(source)
            return [token async for token in session.generate_async(max_new_tokens=6, stop=())]

    async def texts() -> list[list[int]]:
        return await asyncio.gather(*map(text, sources))

    for source, found in zip(sources, asyncio.run(texts()), strict=True):
        subject.same(source, found, reference_text(subject.model, source, 6))


def interleave(subject: Subject, count: int, capacity: int) -> None:
    """Eight sessions at random, in batches and not, with forks and swaps, each with a source of its own."""
    engine, generator = subject.engine, torch.Generator().manual_seed(1)

    def chance(part: float) -> bool:
        return bool(torch.rand((), generator=generator) < part)

    sources = [source_of(subject.name, seed=seed, tokens=5 + 11 * seed) for seed in range(8)]
    sessions = [engine.open(capacity) for _ in sources]
    found: list[list[int]] = []
    for session, source in zip(sessions, sources, strict=True):
        session.encode(source)
        found.append([int(session.prefill([subject.start]).argmax())])
    while min(map(len, found)) < count:
        chosen = [i for i in range(8) if len(found[i]) < count and chance(0.6)]
        for i in (i for i in chosen if chance(0.1)):
            fork = sessions[i].fork()
            sessions[i].close()
            sessions[i] = fork
            if chance(0.3):
                engine.swap_out(fork)
        batches = [chosen] if chance(0.8) else [[i] for i in chosen]
        for rows in (batch for batch in batches if batch):
            logits = engine.decode([sessions[i] for i in rows], [found[i][-1] for i in rows])
            for i, row in zip(rows, logits, strict=True):
                found[i].append(int(row.argmax()))
    for session, source, tokens in zip(sessions, sources, found, strict=True):
        subject.same(source, tokens, reference_text(subject.model, source, count))
        session.close()


def test_interleaved_batched_forked_and_swapped_sessions_have_the_tokens_of_a_run_alone(subject: Subject) -> None:
    rows, steps = subject.engine.scheduler.rows, subject.engine.scheduler.steps
    interleave(subject, count=12, capacity=64)
    assert subject.engine.scheduler.rows - rows > subject.engine.scheduler.steps - steps


@pytest.mark.slow
def test_long_interleaved_sessions_have_the_tokens_of_a_run_alone(subject: Subject) -> None:
    interleave(subject, count=128, capacity=128)


@pytest.mark.slow
@pytest.mark.parametrize("name", ENCODER_DECODERS)
def test_every_encoder_decoder_has_128_tokens_of_transformers(name: str) -> None:
    """In double precision, where rounding decides no token: a draw is between any two, not the best."""
    model, drawing = model_of(name).double(), {"temperature": 0.9, "top_k": 50, "top_p": 0.95, "seed": 7}
    with Engine(model, max_tokens=192, max_batch=1) as engine, engine.open(165) as session:
        for seed in range(3):
            source = source_of(name, seed=seed, tokens=150)
            source = source.double() if isinstance(source, torch.Tensor) else source
            for settings in ({}, drawing):
                session.encode(source)
                found = list(session.generate(max_new_tokens=128, stop=(), **settings))
                assert found == reference_text(model, source, 128, **settings)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda session: session.prefill([1]), "the session has no source"),
        (lambda session: session.decode(1), "the session has no source"),
        (lambda session: next(session.generate()), "the session has no source"),
        (lambda session: session.encode([]), "no tokens"),
        (lambda session: session.encode([VOCABULARY]), "no token of the model"),
        (lambda session: session.encode("text"), "whole numbers"),
        (lambda session: session.encode(torch.zeros(3)), "float32"),
        (lambda session: session.encode([1] * 65), "a source of 65 tokens does not fit in a session for 64"),
        (lambda session: session.engine.open(source=97), "larger max_source="),
        (lambda session: session.engine.open(source=0), "source is 0"),
        (lambda session: session.engine.open(source="x"), "source is 'x'"),
    ],
)
def test_bad_calls_are_one_line_and_leave_the_session_as_it_was(t5: Engine, call: Any, words: str) -> None:
    with t5.open(64, source=50) as session:
        with pytest.raises(InvalidConfig, match=words) as caught:
            call(session)
        assert "\n" not in str(caught.value)
        assert session.lengths == StateLengths(0, 0)
        assert not t5.segments.slabs["data"].bytes(session.base, session.arena_bytes).any()


def test_features_of_another_form_are_refused() -> None:
    with Engine(model_of("Whisper"), max_tokens=64, max_batch=1) as engine, engine.open() as session:
        for other, words in (
            (torch.zeros(BINS, FRAMES - 1), rf"float32\[{BINS}, {FRAMES - 1}\]"),
            (torch.zeros(2, BINS, FRAMES), "one window"),
            (torch.zeros(FRAMES), "one window"),
            (torch.zeros(BINS, FRAMES, dtype=torch.float64), "float64"),
            (torch.zeros(BINS, FRAMES, device="meta"), "on meta"),
            ([1, 2], "features are list"),
        ):
            with pytest.raises(InvalidConfig, match=words):
                session.encode(other)
        with pytest.raises(InvalidConfig, match="give no length of a source"):
            engine.open(source=FRAMES)
        assert session.lengths == StateLengths(0, 0)
        session.encode(torch.zeros(1, BINS, FRAMES))
        assert session.source_length == FRAMES // 2


def test_model_without_an_encoder_takes_no_source() -> None:
    model = model_of("GPT-2")
    with pytest.raises(InvalidConfig, match="no encoder"):
        Engine(model, max_tokens=64, max_source=64)
    with Engine(model, max_tokens=64, max_batch=1) as engine, engine.open() as session:
        with pytest.raises(InvalidConfig, match="no encoder"):
            session.encode([1])
        with pytest.raises(InvalidConfig, match="no encoder"):
            engine.open(source=1)
        assert session.capacities == StateLengths(64, 0)


SMALL = {"vocab_size": 50, "d_model": 32, "d_ff": 32, "d_kv": 8, "num_layers": 1, "num_heads": 2}


@pytest.mark.parametrize(
    ("kind", "sizes", "words"),
    [
        ("Bart", {"encoder_layers": 1, "decoder_layers": 1, "encoder_ffn_dim": 32, "decoder_ffn_dim": 32,
                  "encoder_attention_heads": 2, "decoder_attention_heads": 2}, "counts its own positions"),
        ("UMT5", {}, "counts its own positions"),
        ("LongT5", {}, "0 of 1 layers of the encoder"),
    ],
)  # fmt: skip
def test_model_whose_padding_or_positions_would_be_wrong_is_refused(kind: str, sizes: Any, words: str) -> None:
    config = getattr(transformers, f"{kind}Config")(**SMALL | sizes)
    model = getattr(transformers, f"{kind}ForConditionalGeneration")(config).eval()
    with pytest.raises(UnsupportedOp, match=words):
        Engine(model, max_tokens=64)


def test_encoder_with_windows_is_refused() -> None:
    part = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2,
            "num_key_value_heads": 1, "head_dim": 16, "vocab_size": 50, "sliding_window": 8,
            "attn_logit_softcapping": None}  # fmt: skip
    config = transformers.T5GemmaConfig(encoder=part, decoder=part, vocab_size=50)
    model = transformers.T5GemmaForConditionalGeneration(config).eval()
    with pytest.raises(UnsupportedOp, match="a cap or a window"):
        Engine(model, max_tokens=64)


def test_encoding_that_fails_leaves_a_session_without_a_source(t5: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    with t5.open() as session:
        session.encode([5, 6])
        session.prefill([0])
        steps = t5._stacks[0].steps
        step = steps.step

        def failing(shape: Any) -> Any:
            if isinstance(shape, StepShape):
                return step(shape)
            raise RuntimeError("the device is gone")

        with monkeypatch.context() as patch:
            patch.setattr(steps, "step", failing)
            with pytest.raises(RuntimeError, match="gone"):
                session.encode([7])
        with pytest.raises(InvalidConfig, match="no source"):
            session.decode(1)
        session.encode([7])
        again = session.prefill([0])
        with t5.open() as other:
            other.encode([7])
            assert other.prefill([0]).equal(again)


def test_bias_by_positions_is_that_of_the_model_row_by_row() -> None:
    model = model_of("T5")
    attention = model.decoder.block[0].layer[0].SelfAttention
    traced = build_model(model.config, torch.float32)
    traced.load_state_dict(model.state_dict())
    starts, tokens, kv_length = (0, 3, 70, 180), 5, 192
    positions = torch.tensor([list(range(start, start + tokens)) for start in starts])
    bias_by_positions(traced.get_decoder(), positions, kv_length)  # type: ignore[operator]
    biases = traced.decoder.block[0].layer[0].SelfAttention.compute_bias(0, 0)  # type: ignore[union-attr, index, operator]
    for row, start in enumerate(starts):
        assert biases[row : row + 1].equal(attention.compute_bias(tokens, kv_length, past_seen_tokens=start))
