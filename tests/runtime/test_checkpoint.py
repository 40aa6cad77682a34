"""Random operators inside ``torch.utils.checkpoint`` draw, when a captured graph is run, what eager draws."""

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    checkpoint_sequential,
    create_selective_checkpoint_contexts,
)

from tests.kernels import plain_kernels
from tests.runtime.harness import (
    TOKEN,
    Make,
    Tensors,
    capture_program,
    plan_of,
    random_ids,
    randomize,
    same_bits,
    weights_of,
)
from tmmu.backend import reports
from tmmu.ir.program import Program
from tmmu.passes.capture.record.generator import RANDOM_STATE, SET_RANDOM_STATE
from tmmu.runtime.compare.reference import ReferenceExecutor
from tmmu.runtime.compare.sanitize import run_sanitized
from tmmu.runtime.execute.bind import bind
from tmmu.runtime.execute.executor import Executor

GET_STATE, SET_STATE = str(RANDOM_STATE), str(SET_RANDOM_STATE)
OUTSIDE = torch.Generator().manual_seed(99).get_state()


class Blocks(nn.Module):
    """Three blocks with dropout, checkpointed in the way that a subclass says."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.5), nn.Tanh(), nn.Linear(16, 8)) for _ in range(3)
        )

    def run_block(self, block: nn.Module, x: torch.Tensor) -> torch.Tensor:
        return checkpoint(block, x, use_reentrant=False)  # type: ignore[no-any-return]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = self.run_block(block, x)
        return x


class Reentrant(Blocks):
    def run_block(self, block: nn.Module, x: torch.Tensor) -> torch.Tensor:
        return checkpoint(block, x.requires_grad_(), use_reentrant=True)  # type: ignore[no-any-return]


class DrawingAnew(Blocks):
    def run_block(self, block: nn.Module, x: torch.Tensor) -> torch.Tensor:
        return checkpoint(block, x, use_reentrant=False, preserve_rng_state=False)  # type: ignore[no-any-return]


class Nested(Blocks):
    def run_block(self, block: nn.Module, x: torch.Tensor) -> torch.Tensor:
        def inner(y: torch.Tensor) -> torch.Tensor:
            y = nn.functional.dropout(y, 0.25)
            return nn.functional.dropout(checkpoint(block, y, use_reentrant=False), 0.25)

        return checkpoint(inner, x, use_reentrant=False)  # type: ignore[no-any-return]


class Twice(Blocks):
    def run_block(self, block: nn.Module, x: torch.Tensor) -> torch.Tensor:
        once = checkpoint(block, x, use_reentrant=False)
        return checkpoint(block, once + x, use_reentrant=False)  # type: ignore[no-any-return]


class Between(Blocks):
    """Dropout before, between and after what is checkpointed."""

    def run_block(self, block: nn.Module, x: torch.Tensor) -> torch.Tensor:
        x = nn.functional.dropout(x, 0.25)
        return nn.functional.dropout(checkpoint(block, x, use_reentrant=False), 0.25)


class Attending(Blocks):
    """After the last draw comes an operator that might draw, and does not."""

    def run_block(self, block: nn.Module, x: torch.Tensor) -> torch.Tensor:
        def attend(y: torch.Tensor) -> torch.Tensor:
            y = block(y)[None, None]
            return nn.functional.scaled_dot_product_attention(y, y, y)[0, 0]

        return checkpoint(attend, x, use_reentrant=False)  # type: ignore[no-any-return]


class Sequential(Blocks):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return checkpoint_sequential(list(self.blocks), 2, x, use_reentrant=False)  # type: ignore[no-any-return]


class Selective(Blocks):
    def run_block(self, block: nn.Module, x: torch.Tensor) -> torch.Tensor:
        def policy(ctx: Any, op: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
            del ctx, args, kwargs
            linear = op in (torch.ops.aten.addmm.default, torch.ops.aten.mm.default)
            return CheckpointPolicy.MUST_SAVE if linear else CheckpointPolicy.PREFER_RECOMPUTE

        contexts = lambda: create_selective_checkpoint_contexts(policy)  # noqa: E731
        return checkpoint(block, x, use_reentrant=False, context_fn=contexts)  # type: ignore[no-any-return]


class Penalized(Blocks):
    """The graph of the blocks is differentiated twice: each state is put back twice."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.clone().requires_grad_()
        y = super().forward(x)
        (gradient,) = torch.autograd.grad(y.sum(), x, create_graph=True)
        return y + gradient


class Seeded(Blocks):
    def run_block(self, block: nn.Module, x: torch.Tensor) -> torch.Tensor:
        torch.manual_seed(5)
        return super().run_block(block, x)


class Foreign(Blocks):
    """A state from outside of the step, and a copy of one of the step."""

    def run_block(self, block: nn.Module, x: torch.Tensor) -> torch.Tensor:
        before = torch.get_rng_state().clone()
        x = x + torch.rand_like(x)
        torch.default_generator.set_state(OUTSIDE)
        x = super().run_block(block, x)
        torch.set_rng_state(before)
        return x + torch.rand(8, generator=torch.default_generator)


class Forked(Blocks):
    def run_block(self, block: nn.Module, x: torch.Tensor) -> torch.Tensor:
        with torch.random.fork_rng(devices=[]):
            x = x + torch.randn_like(x)
        return super().run_block(block, x)


class LastWord(Blocks):
    """Nothing is drawn after the state is put back: the next step finds it."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.random.fork_rng(devices=[]):
            return super().forward(nn.functional.dropout(x, 0.5))


WAYS: tuple[type[Blocks], ...] = (
    Blocks,
    Reentrant,
    DrawingAnew,
    Nested,
    Twice,
    Between,
    Attending,
    Sequential,
    Selective,
    Penalized,
    Seeded,
    Foreign,
    Forked,
    LastWord,
)


def loss(model: Callable[..., torch.Tensor], **inputs: Any) -> torch.Tensor:
    return model(**inputs).square().mean()


def x(seed: int) -> dict[str, torch.Tensor]:
    return {"x": torch.randn(4, 8, generator=torch.Generator().manual_seed(seed))}


def eager_step(real: nn.Module, inputs: dict[str, torch.Tensor]) -> list[torch.Tensor]:
    real.zero_grad(set_to_none=True)
    value = loss(real, **inputs)
    value.backward()  # type: ignore[no-untyped-call]
    tensors = [value.detach(), *(p.grad for p in real.parameters() if p.grad is not None)]
    return tensors + [t.grad for t in inputs.values() if t.grad is not None]


@cache
def traced_step(make: Make) -> tuple[Program, Tensors]:
    """Traced once for all presets and both ways to run: the trace is what takes time."""
    with plain_kernels():
        return capture_program(make, x(0), mode="backward", loss=loss)


def executor_of(make: Make, real: nn.Module, *, preset: str, replay: bool = True) -> Executor:
    program, constants = traced_step(make)
    plan = plan_of(program, mode="backward", preset=preset)
    return bind(program, plan, token=TOKEN, weights=constants | weights_of(real), replay=replay)


@pytest.mark.parametrize("replay", [True, False])
@pytest.mark.parametrize("preset", ["train_full", "inference", "remat_enabled"])
@pytest.mark.parametrize("make", WAYS, ids=lambda way: way.__name__)
def test_checkpointed_steps_have_the_bits_of_eager(make: type[Blocks], preset: str, replay: bool) -> None:
    real = randomize(make()).train()
    with plain_kernels():
        executor = executor_of(make, real, preset=preset, replay=replay)
        torch.manual_seed(3)
        expected = [eager_step(real, x(step)) for step in range(3)]
        after = torch.get_rng_state()
        torch.manual_seed(3)
        for step, eager in enumerate(expected):
            planned = executor(**x(step))
            assert len(planned) == len(eager)
            assert all(map(same_bits, planned, eager)), step
        assert torch.get_rng_state().equal(after)
    executor.close()


@pytest.mark.parametrize("make", [Blocks, Nested, Seeded, Foreign], ids=lambda way: way.__name__)
def test_sanitizer_and_reference_agree_with_eager(make: type[Blocks]) -> None:
    real = randomize(make()).train()
    with plain_kernels():
        torch.manual_seed(3)
        expected = eager_step(real, x(0))
        program, constants = capture_program(make, x(0), mode="backward", loss=loss)
        weights = constants | weights_of(real)
        plan = plan_of(program, mode="backward", preset="remat_enabled")
        executor = bind(program, plan, token=TOKEN, weights=weights)
        torch.manual_seed(3)
        report = run_sanitized(program, executor, weights, x(0), token=TOKEN)
        executor.close()
        plain = ReferenceExecutor(program, weights)
        torch.manual_seed(3)
        plain.run(plan.order, x(0))
    assert all(map(same_bits, report.outputs, expected))
    assert all(map(same_bits, [plain.value(value) for value in program.graph.outputs], expected))


def test_binding_restores_the_random_state() -> None:
    real = randomize(Seeded())
    before = torch.manual_seed(11).get_state()
    executor_of(Seeded, real, preset="inference").close()
    assert torch.get_rng_state().equal(before)


def test_checkpointed_step_on_a_cpu_is_one_launch() -> None:
    executor = executor_of(Blocks, randomize(Blocks()), preset="inference")
    assert executor.launch_count == 1
    executor.close()


@pytest.mark.parametrize("make", [Blocks, Between, Nested, Reentrant, LastWord], ids=lambda way: way.__name__)
def test_ops_that_restore_a_random_state_are_all_needed(make: type[Blocks]) -> None:
    """One left out is another step, or leaves another state behind."""
    real = randomize(make()).train()
    with plain_kernels():
        program, constants = capture_program(make, x(0), mode="backward", loss=loss)
        plain = ReferenceExecutor(program, constants | weights_of(real))
        order = range(len(program.calls))

        def result(without: int | None) -> list[torch.Tensor]:
            torch.manual_seed(3)
            plain.run([op for op in order if op != without], x(0))
            return [*(plain.value(value).clone() for value in program.graph.outputs), torch.get_rng_state()]

        expected = result(None)
        put_back = [op for op in order if program.graph.ops.target[op] == SET_STATE]
        assert put_back
        if make is not LastWord:
            put_back.pop()  # nothing is drawn afterwards, and what was computed again drew as much as the first time
        for op in put_back:
            assert not all(map(same_bits, result(op), expected)), op


def test_gpt2_with_gradient_checkpointing_trains_as_eager_does() -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(
        n_embd=32,
        n_layer=2,
        n_head=4,
        vocab_size=100,
        bos_token_id=0,
        eos_token_id=0,
        use_cache=False,
        attn_implementation="eager",
    )

    def make() -> Any:
        gpt2 = transformers.GPT2LMHeadModel(config)
        gpt2.activation_checkpointing_enable()
        return gpt2.train()

    def own_loss(model: Any, **inputs: Any) -> torch.Tensor:
        return model(**inputs).logits.square().mean()  # type: ignore[no-any-return]

    inputs = {"input_ids": random_ids(2, 16, high=100)}
    real = make()
    with plain_kernels():
        program, constants = capture_program(make, inputs, mode="backward", loss=own_loss)
        assert program.graph.ops.target.count(GET_STATE) == 1 + config.n_layer
        plan = plan_of(program, mode="backward", preset="remat_enabled")
        executor = bind(program, plan, token=TOKEN, weights=constants | weights_of(real))
        torch.manual_seed(3)
        value = own_loss(real, **inputs)
        value.backward()  # type: ignore[no-untyped-call]
        expected = [value.detach(), *(p.grad for p in real.parameters())]
        torch.manual_seed(3)
        assert all(map(same_bits, executor(**inputs), expected))
    executor.close()


def two_steps(model: Callable[..., Any], real: nn.Module, *, backwards: int = 1) -> list[torch.Tensor]:
    """Two steps with a draw of somebody else's between forward and backward; the state afterwards comes last."""
    results = []
    torch.manual_seed(3)
    for step in range(2):
        real.zero_grad(set_to_none=True)
        value = loss(model, **x(step))
        torch.rand(3)
        for again in range(backwards):
            value.backward(retain_graph=again + 1 < backwards)  # type: ignore[no-untyped-call]
        results += [value.detach(), *(p.grad for p in real.parameters() if p.grad is not None)]
    return [*results, torch.get_rng_state()]


def compiled_ways() -> list[Any]:
    """Each way with values saved and recomputed; one of both is slow, in turn."""
    marks = pytest.mark.slow, ()
    return [
        pytest.param(way, options, id=f"{way.__name__}-{name}", marks=marks[(row + column) % 2])
        for row, way in enumerate((Blocks, Between, Nested, Twice, Attending, Seeded))
        for column, (name, options) in enumerate({"saved": {}, "recomputed": {"recompute": True}}.items())
    ]


@pytest.mark.filterwarnings("ignore")  # torch's own, about what it cannot compile as a whole
@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.parametrize(("make", "options"), compiled_ways())
def test_compiled_checkpoints_draw_as_eager_does(make: type[Blocks], options: dict[str, bool]) -> None:
    real = randomize(make()).train()
    expected = two_steps(real, real)
    compiled = torch.compile(real, backend="tmmu", options=options)  # type: ignore[call-overload]
    planned = two_steps(compiled, real)
    assert len(planned) == len(expected)
    assert all(map(same_bits, planned, expected))
    assert reports()
    assert all(report.planned and not report.plain for report in reports())


@pytest.mark.filterwarnings("ignore")
@pytest.mark.usefixtures("fresh_compiler")
def test_compiled_reentrant_checkpoint_has_the_bits_of_aot_eager() -> None:
    real = randomize(Reentrant()).train()
    expected = two_steps(torch.compile(real, backend="aot_eager"), real)
    torch._dynamo.reset()
    assert all(map(same_bits, two_steps(torch.compile(real, backend="tmmu"), real), expected))


@pytest.mark.usefixtures("fresh_compiler")
def test_second_backward_without_a_plan_finds_the_random_state_that_the_plan_saved() -> None:
    real = randomize(Blocks()).train()
    expected = two_steps(real, real, backwards=3)
    planned = two_steps(torch.compile(real, backend="tmmu"), real, backwards=3)
    assert all(map(same_bits, planned, expected))
    assert any(report.plain for report in reports())
