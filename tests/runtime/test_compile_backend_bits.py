"""Whose bits a compiled graph has: eager's, and in a few named places those of ``backend="aot_eager"``."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from tests.runtime.harness import same_bits
from tmmu.backend import reports

pytestmark = pytest.mark.usefixtures("fresh_compiler")

F = nn.functional
Function = Callable[..., torch.Tensor]


def outcome(backend: str | None, function: Function, inputs: tuple[torch.Tensor, ...]) -> list[torch.Tensor]:
    """What the function returns without gradients, what with them, and the gradients."""
    torch._dynamo.reset()
    run = function if backend is None else torch.compile(function, backend=backend)
    leaves = [x.clone().requires_grad_() for x in inputs]
    with torch.no_grad():
        plain = run(*leaves)
    result = run(*leaves)
    result.square().sum().backward()  # type: ignore[no-untyped-call]
    assert backend != "tmmu" or all(report.planned > 0 and not report.plain for report in reports())
    return [plain, result.detach(), *(leaf.grad for leaf in leaves if leaf.grad is not None)]


def assert_same(actual: list[torch.Tensor], expected: list[torch.Tensor]) -> None:
    assert len(actual) == len(expected)
    assert all(map(same_bits, actual, expected))


def interpolate(dims: int, **options: Any) -> tuple[Function, tuple[int, ...]]:
    return lambda x: F.interpolate(x, **options), (2, 3, 7, 9, 5)[: dims + 2]


RULES: dict[str, tuple[Function, tuple[int, ...]]] = {
    "bilinear to a size": interpolate(2, size=(5, 11), mode="bilinear"),
    "bilinear by a factor": interpolate(2, scale_factor=1.7, mode="bilinear"),
    "bilinear, corners": interpolate(2, size=(5, 11), mode="bilinear", align_corners=True),
    "bilinear, smooth": interpolate(2, size=(5, 4), mode="bilinear", antialias=True),
    "bicubic to a size": interpolate(2, size=(5, 11), mode="bicubic"),
    "bicubic by a factor": interpolate(2, scale_factor=1.7, mode="bicubic"),
    "linear": interpolate(1, scale_factor=1.5, mode="linear"),
    "trilinear": interpolate(3, size=(5, 11, 4), mode="trilinear"),
    "nearest": interpolate(2, scale_factor=1.7, mode="nearest"),
    "nearest, exact": interpolate(2, scale_factor=1.7, mode="nearest-exact"),
    "multi margin": (lambda x: F.multi_margin_loss(x, torch.zeros(64, dtype=torch.long)), (64, 64)),
    "multilabel margin": (lambda x: F.multilabel_margin_loss(x, torch.zeros(64, 64, dtype=torch.long)), (64, 64)),
    "hard shrink": (F.hardshrink, (64, 64)),
    "soft shrink": (F.softshrink, (64, 64)),
    "batch norm": (lambda x: F.batch_norm(x, None, None, training=True), (8, 3, 5)),
    "a product with a stack": (lambda x: x.view(4, 16, 64) @ x, (64, 64)),
}
"""What torch's compiler has rules for in Python, whose roundings are not those of the kernels."""


def test_operators_with_a_decomposition_have_the_bits_of_their_kernel() -> None:
    """All of them in one graph, each with an input and a result of its own: to compile takes longer than to run."""
    functions = [function for function, _ in RULES.values()]
    inputs = tuple(torch.randn(shape) for _, shape in RULES.values())

    def each(*inputs: torch.Tensor) -> list[torch.Tensor]:
        return [function(x) for function, x in zip(functions, inputs, strict=True)]

    def outcomes(backend: str | None) -> list[list[torch.Tensor]]:
        torch._dynamo.reset()
        run = each if backend is None else torch.compile(each, backend=backend)
        leaves = [x.clone().requires_grad_() for x in inputs]
        with torch.no_grad():
            plain = run(*leaves)
        results = run(*leaves)
        torch.autograd.backward([result.square().sum() for result in results])
        assert backend is None or (reports() and all(report.planned > 0 and not report.plain for report in reports()))
        gradients = [leaf.grad for leaf in leaves if leaf.grad is not None]
        return [plain, [result.detach() for result in results], gradients]

    planned, eager = outcomes("tmmu"), outcomes(None)
    for found, expected in zip(planned, eager, strict=True):
        same = map(same_bits, found, expected)
        assert [name for name, is_same in zip(RULES, same, strict=True) if not is_same] == []


def autocast_twice(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return (F.softmax(x @ w, -1) @ w).float()


SPLIT: dict[str, Function] = {
    "cumprod": lambda x, w: (x @ w).cumprod(1),
    "prod": lambda x, w: (x @ w).prod(1),
    "one weight twice under autocast": autocast_twice,
    "several uses": lambda x, w: torch.cat([(x @ w)[1:], (x @ w).t().reshape(-1, 8), x * 3, x.exp(), x.sin()]),
    "nuclear norm": lambda x, w: torch.linalg.matrix_norm(x @ w, "nuc"),
    "singular values": lambda x, w: torch.linalg.svdvals(x @ w),
    "eigenvalues": lambda x, w: torch.linalg.eigvalsh(x.t() @ x + w + w.t()),
    "condition": lambda x, w: torch.linalg.cond(x.t() @ x + w),
}
"""Where autograd, asked for a graph, goes another way than in eager."""


@pytest.mark.parametrize("name", SPLIT)
def test_operators_that_aot_autograd_splits_otherwise_have_the_bits_of_its_split(name: str) -> None:
    inputs = torch.randn(8, 8), torch.randn(8, 8)
    planned = outcome("tmmu", SPLIT[name], inputs)
    assert_same(planned, outcome("aot_eager", SPLIT[name], inputs))
    for result, eager in zip(planned, outcome(None, SPLIT[name], inputs), strict=True):
        torch.testing.assert_close(result, eager, rtol=0.05, atol=0.05)


@pytest.mark.parametrize("function", [torch.sgn, torch.sign, torch.round], ids=lambda f: f.__name__)
def test_gradients_that_are_zero_have_eagers_strides(function: Callable[..., torch.Tensor]) -> None:
    def gradient(run: Callable[..., torch.Tensor]) -> torch.Tensor:
        x = torch.randn(4, 3, generator=torch.Generator().manual_seed(0)).requires_grad_()
        return torch.autograd.grad(run(x), x, torch.ones(4, 3))[0]

    expected, found = gradient(function), gradient(torch.compile(function, backend="tmmu"))
    assert same_bits(found, expected.clone())
    assert found.stride() == expected.stride()
    assert [report.planned for report in reports()] == [2]
