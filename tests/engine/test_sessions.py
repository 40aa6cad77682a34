"""Sessions: exact reservations, refusals with numbers, isolation, and arenas that are clean when they are free."""

from copy import deepcopy
from typing import Any

import pytest
import torch

from tests.engine.models import VOCABULARY, model_of, prompt_of, reference_tokens
from tests.engine.swaps import swapping_of
from tmmu.engine.engine import Engine
from tmmu.engine.geometry import StateLengths
from tmmu.errors import DeviceMemory, InvalidConfig, SegmentFull, SessionUnknown, UnsupportedOp
from tmmu.runtime.memory.sizing import device_memory
from tmmu.runtime.memory.usage import round_up


@pytest.fixture(scope="module")
def model() -> Any:
    return model_of("Llama")


@pytest.fixture(scope="module")
def engine(model: Any) -> Any:
    with Engine(model, max_tokens=96, max_batch=2) as engine:
        yield engine


def test_session_reserves_the_bytes_of_its_positions_and_no_more(engine: Engine) -> None:
    row = 2 * 2 * 2 * 16 * 4  # layers, keys and values, heads, size, float32
    assert engine.geometry.token_bytes == row
    used, logits = engine.usage["data"].used, round_up(VOCABULARY * 4, engine.geometry.alignment)
    with engine.open(60) as short, engine.open(70, keep=10) as long:
        assert (short.capacity, short.arena_bytes) == (64, 64 * row + logits)
        assert (long.capacity, long.arena_bytes) == (96, 96 * row + logits + engine.geometry.alignment)
        assert engine.usage["data"].used == used + short.arena_bytes + long.arena_bytes
    assert engine.usage["data"].used == used


def test_full_engine_refuses_with_numbers_and_opens_again(model: Any) -> None:
    with Engine(model, max_tokens=64, max_batch=2, budget="3MiB") as engine:
        room = engine.usage["data"].capacity // engine.geometry.arena_bytes(StateLengths(64, 0))
        sessions = [engine.open() for _ in range(room)]
        with pytest.raises(SegmentFull) as caught:
            engine.open()
        assert caught.value.fields["bytes"] == engine.geometry.arena_bytes(StateLengths(64, 0))
        sessions[0].close()
        engine.open().prefill(prompt_of(5))


def test_other_sessions_change_nothing_of_an_arena(engine: Engine) -> None:
    slab = engine.segments.slabs["data"]
    with engine.open() as idle, engine.open() as busy:
        idle.prefill(prompt_of(9))
        before = slab.bytes(idle.base, idle.arena_bytes).clone()
        list(busy.generate(prompt_of(30, seed=2), 6, stop=()))
        assert slab.bytes(idle.base, idle.arena_bytes).equal(before)


def test_freed_arena_is_zeros_and_outputs_are_no_views_of_it(engine: Engine) -> None:
    slab = engine.segments.slabs["data"]
    session = engine.open()
    logits = session.prefill(prompt_of(20))
    base, size = session.base, session.arena_bytes
    assert slab.bytes(base, size).any()
    assert logits.untyped_storage().nbytes() == VOCABULARY * 4
    session.close()
    session.close()
    assert not slab.bytes(base, size).any()
    with pytest.raises(SessionUnknown, match="closed"):
        session.prefill([1])


def test_rows_of_one_step_share_no_memory(engine: Engine) -> None:
    with engine.open() as first, engine.open() as second:
        first.prefill(prompt_of(3))
        second.prefill(prompt_of(4))
        rows = engine.decode([first, second], [1, 2])
        assert {row.untyped_storage().nbytes() for row in rows} == {VOCABULARY * 4}


def test_steps_that_are_bound_in_inference_mode_run_outside_of_it(model: Any) -> None:
    with Engine(model, max_tokens=64, max_batch=1) as engine, engine.open() as session, engine.open() as other:
        with torch.inference_mode():
            expected = [session.prefill([1, 2]), session.decode(3)]
        assert other.prefill([1, 2]).equal(expected[0])
        assert other.decode(3).equal(expected[1])
        assert session.decode(4).equal(other.decode(4))


def test_fork_copies_what_is_live_and_parts_ways(engine: Engine) -> None:
    prompt = prompt_of(17, seed=5)
    with engine.open() as session:
        session.prefill(prompt)
        with session.fork() as other:
            assert other.capability != session.capability
            assert other.decode(3).equal(session.decode(3))
            session.decode(4)
            after = other.decode(5)
        with engine.open() as alone:
            alone.prefill([*prompt])
            alone.decode(3)
            assert alone.decode(5).equal(after)


def test_interrupted_open_keeps_no_bytes(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    used = engine.usage["data"].used

    def interrupt(_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("tmmu.engine.session.KeptValues", interrupt)
        with pytest.raises(KeyboardInterrupt):
            engine.open()
    assert engine.usage["data"].used == used


def test_capability_finds_its_session_alone(engine: Engine) -> None:
    with engine.open() as session:
        assert len(bytes.fromhex(session.capability)) == 16
        assert engine.session(session.capability) is session
        for other in ("", "0" * 32, session.capability[:-1], session.capability.upper() + "é", "\ud800"):
            with pytest.raises(SessionUnknown):
                engine.session(other)
    with pytest.raises(SessionUnknown):
        engine.session(session.capability)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda session: session.prefill([]), "no tokens"),
        (lambda session: session.prefill([VOCABULARY]), "no token of the model"),
        (lambda session: session.prefill([-1]), "no token of the model"),
        (lambda session: session.prefill([True]), "whole numbers"),
        (lambda session: session.prefill("text"), "whole numbers"),
        (lambda session: session.prefill(torch.zeros(3)), "float32"),
        (lambda session: session.prefill([1] * 65), "65 tokens behind 0 do not fit in a session of 64"),
        (lambda session: session.prefill(5), "whole numbers"),
        (lambda session: session.prefill(b"ab"), "whole numbers"),
        (lambda session: session.prefill({1, 2}), "whole numbers"),
        (lambda session: session.prefill([[1]]), "whole numbers"),
        (lambda session: session.prefill(torch.zeros(2, 3, dtype=torch.int64)), "int64"),
        (lambda session: session.prefill(torch.zeros(3, dtype=torch.complex64)), "complex64"),
        (lambda session: session.prefill(torch.zeros(3, dtype=torch.int64, device="meta")), "meta"),
        (lambda session: session.prefill(torch.ones(3, dtype=torch.int64).to_sparse()), "sparse"),
        (lambda session: session.engine.prefill(session, 5), "whole numbers"),
        (lambda session: session.engine.enqueue(session, 5), "whole numbers"),
        (lambda session: session.engine.enqueue(session, b"ab"), "whole numbers"),
        (lambda session: session.engine.submit(session, None), "whole numbers"),
        (lambda session: session.engine.submit(session, torch.zeros(3)), "float32"),
        (lambda session: session.engine.decode(session, 5), "a list of each"),
        (lambda session: session.engine.decode([session], None), "a list of each"),
        (lambda session: session.generate([1], temperature=10**400), "temperature"),
        (lambda session: session.decode("1"), "no token of the model"),
        (lambda session: session.generate([1], -1), "max_new_tokens"),
        (lambda session: session.generate([1], 1.5), "max_new_tokens"),
        (lambda session: session.generate([1], seed="x"), "seed"),
        (lambda session: session.generate([1], seed=-1), "seed"),
        (lambda session: session.generate([1], stop=5), "whole numbers"),
        (lambda session: session.generate([1], temperature=float("nan")), "temperature"),
        (lambda session: session.generate([1], temperature=float("inf")), "temperature"),
        (lambda session: session.generate([1], temperature="1"), "temperature"),
        (lambda session: session.generate([1], top_k=1.5), "top_k"),
        (lambda session: session.generate([1], temperature=-1), "temperature"),
        (lambda session: session.generate([1], top_p=0), "top_p"),
        (lambda session: next(session.generate()), "read no tokens"),
        (lambda session: session.engine.decode([session, session], [1, 1]), "each session once"),
        (lambda session: session.engine.open(97), "97 tokens"),
        (lambda session: session.engine.open(0), "max_tokens"),
    ],
)
def test_bad_calls_are_one_line_and_leave_the_session_as_it_was(engine: Engine, call: Any, words: str) -> None:
    with engine.open(64) as session:
        with pytest.raises(InvalidConfig, match=words):
            call(session)
        assert session.length == 0
        assert not engine.segments.slabs["data"].bytes(session.base, session.arena_bytes).any()


@pytest.mark.parametrize("name", ["fork", "close_session", "heartbeat", "cancel", "swap_out", "is_resident", "prefill"])
def test_what_is_no_session_of_the_engine_is_refused_and_stays_as_it_was(engine: Engine, model: Any, name: str) -> None:
    arguments = ([1],) if name == "prefill" else ()
    with Engine(model, max_tokens=64, max_batch=1, max_sessions=1) as other, other.open() as stranger:
        for session in (stranger, None, 5, "x"):
            with pytest.raises(SessionUnknown, match=r"another engine|is no session"):
                getattr(engine, name)(session, *arguments)
        assert stranger.is_open
        assert other.sessions == (stranger,)


def test_scores_that_are_not_finite_are_not_drawn(engine: Engine) -> None:
    with engine.open() as session:
        with pytest.raises(InvalidConfig, match="best score is inf at temperature 1e-320"):
            list(session.generate([1, 2], 2, temperature=1e-320, seed=0, stop=()))
        assert len(list(session.generate([3], 2, stop=()))) == 2


def test_full_session_refuses_the_next_token(engine: Engine) -> None:
    with engine.open(64) as session:
        session.prefill(prompt_of(64))
        with pytest.raises(InvalidConfig, match="open it with max_tokens=65"):
            session.decode(1)


def test_engine_of_too_little_memory_says_what_it_needs(model: Any) -> None:
    with pytest.raises(DeviceMemory, match="weights take"):
        Engine(model, max_tokens=64, max_batch=1, budget=1000)


def test_bytes_that_others_keep_are_left_to_them(model: Any) -> None:
    free, _ = device_memory(torch.device("cpu"))
    with pytest.raises(DeviceMemory, match="are there"):
        Engine(model, max_tokens=64, reserve=2 * free)
    with Engine(model, max_tokens=64, reserve="1MB") as engine:
        assert engine.limits.reserve == 10**6


def test_closed_engine_refuses_sessions(model: Any) -> None:
    engine = Engine(model, max_tokens=64, max_batch=1)
    session = engine.open()
    session.prefill([1, 2])
    engine.close()
    with pytest.raises(SessionUnknown):
        session.decode(1)
    with pytest.raises(InvalidConfig, match="closed"):
        engine.open()


@pytest.mark.parametrize("model", [torch.nn.Linear(2, 2), "nowhere", object()])
def test_what_no_engine_is_made_of_is_refused(model: Any) -> None:
    with pytest.raises(InvalidConfig):
        Engine(model)


@pytest.mark.parametrize(
    "options",
    [{"budget": -1}, {"budget": 1.5}, {"budget": "much"}, {"budget": True}, {"host": -1}, {"host": "x"},
     {"max_batch": 0}, {"max_tokens": 0}, {"max_tokens": 513}, {"max_sessions": "1"}, {"device": "cpux"}, {"clock": 5},
     {"queue": 5}, {"weights": 5}, {"weights": {"modl.norm.weight": torch.ones(64)}}, {"weights": {5: torch.ones(64)}}],
    ids=str,
)  # fmt: skip
def test_bad_options_of_an_engine_are_refused(model: Any, options: dict[str, Any]) -> None:
    with pytest.raises(InvalidConfig):
        Engine(model, **({"max_tokens": 64} | options))


def test_model_that_is_not_what_its_configuration_names_is_refused(model: Any) -> None:
    class Other(type(model)):  # type: ignore[misc]
        def forward(self, *args: Any, **kwargs: Any) -> Any:
            raise NotImplementedError

    with pytest.raises(UnsupportedOp, match="Other has the configuration of a LlamaForCausalLM"):
        Engine(Other(model.config), max_tokens=64)


def test_quantized_configuration_is_refused(model: Any) -> None:
    other = deepcopy(model)
    other.config.quantization_config = {"quant_method": "fp8"}
    with pytest.raises(UnsupportedOp, match="quantized by fp8"):
        Engine(other, max_tokens=64)


def test_weights_of_another_dtype_or_without_bytes_are_refused(model: Any) -> None:
    name = "model.norm.weight"
    for other in (
        model.model.norm.weight.detach().half(),
        torch.ones(64, device="meta"),
        torch.ones(64).to_sparse(),
        "x",
    ):
        with pytest.raises(InvalidConfig, match=name):
            Engine(model, max_tokens=64, weights={name: other}).open().prefill([1])


@pytest.mark.parametrize("has_model", [True, False])
def test_weights_of_another_shape_or_tied_ones_that_differ_are_refused(has_model: bool) -> None:
    model = model_of("GPT-2")
    subject, own = (model, {}) if has_model else (model.config, dict(model.named_parameters()))
    name, alias = "transformer.wte.weight", "lm_head.weight"
    table = model.transformer.wte.weight.detach()
    for other in (table.t().contiguous(), table.reshape(-1)):
        with pytest.raises(InvalidConfig, match=rf"{name} is \[.*\], and \[{VOCABULARY}, 64\] in the model"):
            Engine(subject, max_tokens=64, weights=own | {name: other})
    with pytest.raises(InvalidConfig, match=f"{alias} is tied to {name}, and their values differ"):
        Engine(subject, max_tokens=64, weights=own | {name: table, alias: table + 1})


def test_tied_weight_may_have_any_of_its_names() -> None:
    model = model_of("GPT-2")
    zeros = torch.zeros_like(model.lm_head.weight)
    with Engine(model, max_tokens=64, max_batch=1, weights={"lm_head.weight": zeros}) as engine:
        assert not engine.open().prefill([1, 2]).any()


def test_weights_come_with_a_configuration_or_in_any_order_of_memory(model: Any) -> None:
    prompt = prompt_of(7)
    expected = reference_tokens(model, prompt, 6)
    weights = {name: tensor.detach().t().contiguous().t() if tensor.dim() == 2 else tensor.detach()
               for name, tensor in model.named_parameters()}  # fmt: skip
    assert not weights["model.layers.0.mlp.up_proj.weight"].is_contiguous()
    with Engine(model.config, weights=weights, max_tokens=64, max_batch=1) as engine, engine.open() as session:
        assert list(session.generate(prompt, 6, stop=())) == expected
    with pytest.raises(InvalidConfig, match="has no weights"):
        Engine(model.config)


def test_errors_do_not_tell_capabilities() -> None:
    with Engine(model_of("GPT-2"), max_tokens=64, max_sessions=1) as engine:
        session = engine.open()
        with pytest.raises(SegmentFull) as caught:
            engine.open()
        assert session.capability not in str(caught.value)
        assert not any(len(word.strip("',:")) == len(session.capability) for word in str(caught.value).split())
        assert "host=" in str(caught.value)


def test_policy_that_moves_sessions_needs_a_host_tier() -> None:
    with pytest.raises(InvalidConfig, match="no host tier"):
        Engine(model_of("GPT-2"), max_tokens=64, policy="hint")


@pytest.mark.parametrize("options", [{}, {"host": "1MB"}])
def test_closed_engine_has_given_its_memory_back(options: dict[str, Any]) -> None:
    with Engine(model_of("GPT-2"), max_tokens=64, **options) as engine:
        session = engine.open()
        logits = session.prefill([1, 2])
        paused = session.run_until("transformer.h.0", 3)
        kept = logits.clone()
    freed = [name for name, slab in engine.segments.slabs.items() if slab.storage.nbytes() == 0]
    assert freed == (["text", "stack"] if options else ["text", "data", "stack"])
    assert [usage.used for usage in engine.usage.values()] == [0, 0, 0]
    assert torch.equal(logits, kept)
    with pytest.raises(SessionUnknown):
        paused.resume()
    with pytest.raises(SessionUnknown):
        session.decode(1)
    engine.close()


@pytest.mark.parametrize("host", [0, "1MB"])
def test_closing_that_was_interrupted_is_taken_up_by_the_next(
    model: Any, monkeypatch: pytest.MonkeyPatch, host: int | str
) -> None:
    with Engine(model, max_tokens=64, max_batch=1, max_sessions=1, host=host) as engine:
        owner, name = (engine._stacks[0].runner, "forget") if not host else (swapping_of(engine), "_advance")
        session = engine.open()
        session.prefill([1, 2])
        original = getattr(owner, name)

        def interrupt(*_: object) -> None:
            monkeypatch.setattr(owner, name, original)
            raise KeyboardInterrupt

        monkeypatch.setattr(owner, name, interrupt)
        with pytest.raises(KeyboardInterrupt):
            session.close()
        assert not session.is_open
        session.close()
        if host:
            swapping_of(engine).wait_until_still()
        assert (engine.usage["data"].used, engine.sessions) == (0, ())
        engine.open().close()
