"""Conjugate and negative bits: what a call is given is what eager gives it, and writes go through them."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

from tests.runtime.harness import TOKEN, bind_module, capture_program, plan_of, run_eager, same_bits
from tmmu.backend import reports
from tmmu.errors import UnsupportedOp
from tmmu.ir.program import ValueRef
from tmmu.runtime.compare.sanitize import run_sanitized
from tmmu.runtime.execute.bind import bind

Function = Callable[..., Any]


def draw(*shape: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(shape, dtype=torch.complex64, generator=generator)


def add_conjugated(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    y.conj().add_(1j)
    return y


def scale_imaginary(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    y.imag.mul_(2)
    y.conj().imag.mul_(3)
    return y


def add_negated(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    y = x * 2
    torch._neg_view(y).add_(x)
    return y, torch._neg_view(y)


def assign_conjugated(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    y.conj()[0] = x[1]
    y.conj()[1].copy_(y[2])
    return y


def views_of_one(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    y = x * 2
    return y, y.conj(), y.conj().imag, y.imag, y.conj()


FUNCTIONS: dict[str, tuple[Function, tuple[torch.Tensor, ...]]] = {
    "product of an adjoint": (lambda x, y: x.mH @ y, (draw(16, 1), draw(16, 16))),
    "sum over conjugates": (lambda x, y: torch.einsum("ij,jk->ik", x.conj(), y), (draw(8, 8), draw(8, 7))),
    "inner product": (lambda x, y: torch.vdot(x, y) + torch.dot(x.conj(), y), (draw(33), draw(33))),
    "copy of a conjugate": (lambda x: (x + 1).conj().clone() + x.conj(), (draw(4, 5),)),
    "conjugate out": (lambda x: (x * 2).conj(), (draw(4, 5),)),
    "conjugate of an argument out": (lambda x: (x * 2, x.conj().t()), (draw(4, 5),)),
    "views of one": (views_of_one, (draw(4, 5),)),
    "write through a conjugate": (add_conjugated, (draw(4, 5),)),
    "write through an imaginary part": (scale_imaginary, (draw(4, 5),)),
    "write through a negative": (add_negated, (draw(4, 5),)),
    "assignment through a conjugate": (assign_conjugated, (draw(4, 5),)),
}


class Called(nn.Module):
    def __init__(self, function: Function) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor, y: torch.Tensor | None = None) -> Any:
        return self.function(x) if y is None else self.function(x, y)


def resolved(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().resolve_conj().resolve_neg()


@pytest.mark.parametrize("name", FUNCTIONS)
def test_program_has_eagers_bits_and_passes_the_sanitizer(name: str) -> None:
    function, args = FUNCTIONS[name]
    inputs = dict(zip("xy", args, strict=False))
    make = partial(Called, function)
    executor = bind_module(make, make(), inputs)
    program, _ = capture_program(make, inputs)
    expected = [resolved(tensor) for tensor in run_eager(make(), {k: v.clone() for k, v in inputs.items()})]
    results = executor.run({k: v.clone() for k, v in inputs.items()})
    assert len(results) == len(expected)
    assert all(map(same_bits, results, expected))
    again = bind(program, plan_of(program), token=TOKEN, weights={})
    assert run_sanitized(program, again, {}, inputs, token=TOKEN).ops == len(program.calls)


@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.parametrize("trains", [False, True])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_compiled_function_has_eagers_bits(name: str, trains: bool) -> None:
    function, args = FUNCTIONS[name]
    outcomes = []
    for run in (function, torch.compile(function, backend="tmmu")):
        torch._dynamo.reset()
        leaves = [arg.clone().requires_grad_(trains) for arg in args]
        results = run(*leaves)
        results = results if isinstance(results, tuple) else (results,)
        if trains:
            sum(torch.view_as_real(r * (1 + 0j)).square().sum() for r in results).backward()
        outcomes.append([resolved(t) for t in (*results, *leaves, *(leaf.grad for leaf in leaves if trains))])
    assert len(outcomes[0]) == len(outcomes[1])
    assert all(map(same_bits, *outcomes))
    assert all(report.planned > 0 for report in reports()) or name == "views of one"


@pytest.mark.usefixtures("fresh_compiler")
def test_results_keep_their_bits() -> None:
    x = draw(4, 5)
    results = torch.compile(views_of_one, backend="tmmu")(x)
    for result, expected in zip(results, views_of_one(x), strict=True):
        assert (result.is_conj(), result.is_neg()) == (expected.is_conj(), expected.is_neg())
        assert result.stride() == expected.stride()
    assert len({result.untyped_storage().data_ptr() for result in results}) == 1


def test_call_says_what_it_is_given_conjugated() -> None:
    function, (x, y) = FUNCTIONS["product of an adjoint"]
    program, _ = capture_program(partial(Called, function), {"x": x, "y": y})
    (call,) = program.calls
    assert [ref.conj for ref in call.args if isinstance(ref, ValueRef)] == [True, False]
    assert len(program.graph.buffers) == 3


def test_conjugated_weight_is_refused_by_name() -> None:
    class Holder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("turned", torch.zeros(3, dtype=torch.complex64).conj())

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * self.turned

    with pytest.raises(UnsupportedOp, match="turned is a view that torch has conjugated"):
        capture_program(Holder, {"x": draw(3)})
