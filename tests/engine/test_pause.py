"""A step that pauses has the bits of one that does not, whoever runs meanwhile; what was replaced is what is read."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Thread
from typing import Any

import pytest
import torch

from tests.engine.models import MODELS, VOCABULARY, model_of, prompt_of
from tmmu.engine.engine import Engine
from tmmu.engine.session import Session
from tmmu.errors import InvalidConfig, SegmentFull, SessionUnknown, UnsupportedOp

LAYER = {"GPT-2": "transformer.h.{}", "Llama": "model.layers.{}", "Bamba": "model.layers.{}"}
NEAR = 1e-4


class Time:
    now = 0.0

    def __call__(self) -> float:
        return self.now


class Subject:
    """One model, an engine of it, and the path of its layers."""

    def __init__(self, name: str) -> None:
        self.name, self.model, self.time = name, model_of(name), Time()
        longest = 32 if name == "Bamba" else 96  # a step of many tokens is a long trace where state recurs
        self.engine = Engine(self.model, max_tokens=longest, max_batch=2, clock=self.time)

    def layer(self, index: int) -> str:
        return LAYER[self.name].format(index)

    @contextmanager
    def reader(self, tokens: list[int]) -> Iterator[Session]:
        """A session that has read some tokens."""
        with self.engine.open() as session:
            if tokens:
                session.prefill(tokens)
            yield session


def _subject(request: pytest.FixtureRequest) -> Iterator[Subject]:
    subject = Subject(request.param)
    with subject.engine:
        yield subject


grower = pytest.fixture(scope="module", params=["Llama", "GPT-2"], name="grower")(_subject)
every = pytest.fixture(scope="module", params=["Llama", "GPT-2", "Bamba"], name="every")(_subject)


def arena_of(session: Session) -> torch.Tensor:
    return session.engine.segments.slabs["data"].bytes(session.base, session.arena_bytes).clone()


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


def test_nothing_is_moved_where_nobody_needs_the_room(grower: Subject) -> None:
    counts = grower.engine.pauses.counts
    moved = counts.bytes_saved
    with grower.reader(prompt_of(9)) as session:
        paused = session.run_until(grower.layer(1), 3)
        values = {name: paused.values[name] for name in paused.values}
        assert sum(value.nbytes for value in values.values()) <= paused.live_bytes
        paused.resume()
    assert counts.bytes_saved == moved
    assert grower.engine.usage["stack"].used == 0


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1)])
def test_steps_of_one_shape_wait_at_once(grower: Subject, order: tuple[int, ...]) -> None:
    prompts = [prompt_of(12, seed=seed) for seed in range(3)]
    engine = grower.engine
    expected = []
    for prompt in prompts:
        with engine.open() as session:
            expected.append(session.prefill(prompt))
    sessions = [engine.open() for _ in prompts]
    steps = [s.run_until(grower.layer(i % 2), p) for i, (s, p) in enumerate(zip(sessions, prompts, strict=True))]
    for index in order:
        assert steps[index].resume().equal(expected[index])
    for session in sessions:
        session.close()


def test_a_step_goes_on_from_module_to_module(grower: Subject) -> None:
    with grower.reader(prompt_of(9)) as whole, grower.reader(prompt_of(9)) as session:
        expected = whole.decode(3)
        paused = session.run_until(grower.layer(0), 3)
        first = paused.values[grower.layer(0)]
        whole.decode(4)
        paused.run_until(grower.layer(1))
        assert paused.module == grower.layer(1)
        assert not paused.values[grower.layer(1)].equal(first)
        with pytest.raises(InvalidConfig, match=f"{grower.layer(0)} has run before"):
            paused.run_until(grower.layer(0))
        paused.run_until("lm_head")
        assert paused.values["lm_head"].reshape(-1).equal(expected)
        assert paused.resume().equal(expected)


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


def test_long_prompt_pauses_in_its_last_step(grower: Subject) -> None:
    prompt = prompt_of(70)
    with grower.engine.open() as whole, grower.engine.open() as session:
        expected = whole.prefill(prompt)
        paused = session.run_until(grower.layer(0), prompt)
        assert session.length == 64
        paused.cancel()
        assert session.length == 64
        assert session.prefill(prompt[64:]).equal(expected)


def replaced_by_hook(subject: Subject, module: str, tokens: list[int], change: Any) -> torch.Tensor:
    """``float32[vocabulary]`` of the model itself, where a hook changes what a module returns."""

    def hook(_: Any, __: Any, result: Any) -> Any:
        return (change(result[0]), *result[1:]) if isinstance(result, tuple) else change(result)

    handle = subject.model.get_submodule(module).register_forward_hook(hook)
    try:
        with torch.no_grad():
            logits: torch.Tensor = subject.model(torch.tensor([tokens]), use_cache=False).logits[0, -1]
    finally:
        handle.remove()
    return logits


@pytest.mark.parametrize("part", ["", ".mlp", "attention"])
@pytest.mark.parametrize("is_moved", [False, True])
def test_replaced_value_is_that_of_a_hook(grower: Subject, part: str, is_moved: bool) -> None:
    attention = ".attn" if grower.name == "GPT-2" else ".self_attn"
    module, prompt = grower.layer(0) + (attention if part == "attention" else part), prompt_of(16)

    def change(value: torch.Tensor) -> torch.Tensor:
        return value.flip(-1) * 3

    expected = replaced_by_hook(grower, module, prompt, change)
    with grower.engine.open() as session, grower.engine.open() as other:
        paused = session.run_until(module, prompt)
        if is_moved:
            other.prefill(prompt)
        paused.values[module] = change(paused.values[module])
        found = paused.resume()
        assert found.sub(expected).abs().max() < NEAR
        with grower.engine.open() as plain:
            assert plain.prefill(prompt).sub(expected).abs().max() > 100 * NEAR


def test_values_end_with_the_prompt_and_replacing_them_touches_no_padding(grower: Subject) -> None:
    prompt, layer = prompt_of(9), grower.layer(0)
    expected = replaced_by_hook(grower, layer, prompt, torch.neg)
    with grower.engine.open() as session:
        paused = session.run_until(layer, prompt)
        assert paused.values[layer].shape == (1, 9, 64)
        with pytest.raises(InvalidConfig, match=r"is float32\[1, 9, 64\], and the tensor float32\[1, 16, 64\]"):
            paused.values[layer] = torch.full((1, 16, 64), float("nan"))
        paused.values[layer] = -paused.values[layer]
        assert paused.resume().sub(expected).abs().max() < NEAR


def test_nothing_that_is_not_finite_stays_behind_the_text(grower: Subject) -> None:
    prompt, layer = prompt_of(9), grower.layer(0)
    with grower.reader(prompt) as whole, grower.engine.open() as session:
        paused = session.run_until(layer, prompt)
        paused.values[layer] = torch.full((1, 9, 64), float("nan"))
        paused.run_until(grower.layer(1))  # whose keys and values are made of it
        paused.cancel()
        assert (
            session.decode(prompt[0]).isfinite().all()
        )  # which writes one position, and gives no weight to those behind it
        assert session.prefill(prompt[1:]).sub(whole.logits).abs().max() < NEAR


def returned_tensors(result: Any) -> list[torch.Tensor]:
    if isinstance(result, torch.Tensor):
        return [result]
    return [t for item in result for t in returned_tensors(item)] if isinstance(result, (tuple, list)) else []


@pytest.mark.parametrize(
    "name", [name if name in ("GPT-2", "Llama") else pytest.param(name, marks=pytest.mark.slow) for name in MODELS]
)
def test_value_under_the_name_of_a_module_is_what_it_returns(name: str) -> None:
    model, prompt = model_of(name), prompt_of(16)
    returned: dict[str, list[torch.Tensor]] = {}

    def hook_of(path: str) -> Callable[..., None]:
        def hook(_: Any, __: Any, result: Any) -> None:
            returned[path] = [tensor.clone() for tensor in returned_tensors(result)]

        return hook

    handles = [part.register_forward_hook(hook_of(path)) for path, part in model.named_modules() if path]
    with torch.no_grad():
        model(torch.tensor([prompt]), use_cache=False, logits_to_keep=1)
    for handle in handles:
        handle.remove()
    checked = 0
    with Engine(model, max_tokens=64, max_batch=1) as engine, engine.open() as session:
        for path, tensors in returned.items():
            try:
                paused = session.run_until(path, prompt)
            except InvalidConfig as error:
                assert "no op of a step" in error.what or "no one end" in error.what  # noqa: PT017
                continue
            with paused:
                names = [path] if len(tensors) == 1 else [f"{path}[{index}]" for index in range(len(tensors))]
                for own, tensor in zip(names, tensors, strict=True):
                    if own in paused.values:
                        value = paused.values[own]
                        if own.endswith("kv_b_proj"):  # the engine expands all positions of the state
                            value = value[:, :, : len(prompt)]
                        assert (own, value.shape) == (own, tensor.shape)
                        assert value.sub(tensor).abs().max() < NEAR * (1 + tensor.abs().max()), own
                        checked += 1
    layers = model.config.num_hidden_layers
    assert checked >= 4 * layers


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


def test_lease_ends_a_paused_session_of_which_nothing_is_asked(grower: Subject) -> None:
    engine, time = grower.engine, grower.time
    session = engine.open(lease=10)
    paused = session.run_until(grower.layer(0), [1, 2])
    time.now += 6
    assert len(paused.values) > 0  # which asks for something
    time.now += 6
    assert engine.reclaim_expired() == 0
    time.now += 11
    assert engine.reclaim_expired() == 1
    assert not session.is_open
    assert not paused.is_paused
    assert paused.live_bytes == 0


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


def test_threads_decode_while_steps_pause_and_go_on(grower: Subject) -> None:
    engine, prompts = grower.engine, [prompt_of(6 + i, seed=i) for i in range(4)]
    expected = []
    for prompt in prompts:
        with engine.open() as session:
            expected.append(list(session.generate(prompt, 8, stop=())))
    found: dict[int, list[int]] = {}

    def work(number: int) -> None:
        with engine.open() as session:
            if number % 2:
                found[number] = list(session.generate(prompts[number], 8, stop=()))
                return
            logits = session.run_until(grower.layer(0), prompts[number]).resume()
            found[number] = [int(logits.argmax())]
            while len(found[number]) < 8:
                paused = session.run_until(grower.layer(len(found[number]) % 2), found[number][-1])
                assert paused.values[paused.module].isfinite().all()
                found[number].append(int(paused.resume().argmax()))

    threads = [Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert [found.get(number) for number in range(4)] == expected


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
