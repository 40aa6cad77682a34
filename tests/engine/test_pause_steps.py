"""Steps that pause behind module after module show the values of the model, and read what replaced them."""

from collections.abc import Callable
from threading import Thread
from typing import Any

import pytest
import torch

from tests.engine.models import MODELS, model_of, prompt_of
from tests.engine.pauses import Subject, open_subject
from tmmu.engine.engine import Engine
from tmmu.errors import InvalidConfig

NEAR = 1e-4

grower = pytest.fixture(scope="module", params=["Llama", "GPT-2"], name="grower")(open_subject)


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
