"""FLOPs by shapes are torch's own count, where torch has one; bytes are those of windows, each once."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.flop_counter import FlopCounterMode

from tests.unit.passes.semantics import models
from tests.unit.passes.semantics.models import Stack, ids, program_of_module, training_graph
from tmmu.ir.graph import Graph, blank_notes
from tmmu.passes.semantics.costs import NORM_WEIGHT, SOFTMAX_WEIGHT, op_flops, shape_flops
from tmmu.passes.semantics.families import family_of
from tmmu.passes.semantics.traffic import op_bytes

COUNTED = {"product", "convolution", "attention"}


class Convolutions(nn.Module):
    """Grouped, dilated, strided, transposed, and over one and three axes."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Conv2d(4, 8, 3, 2, 1, groups=2)
        self.b = nn.ConvTranspose2d(8, 8, 4, 2, 1)
        self.c = nn.Conv2d(8, 8, 3, padding=2, dilation=2, groups=8)
        self.d, self.e = nn.Conv1d(8, 6, 5), nn.Conv3d(1, 2, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.c(self.b(self.a(x)))
        return self.e(self.d(h.flatten(2)).unflatten(2, (4, -1))[:, None]).sum()


class Products(nn.Module):
    """Every spelling of a product."""

    def forward(self, x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> list[torch.Tensor]:
        return [
            x @ y, torch.addmm(x[:, :1], x, y), torch.bmm(z, z), torch.baddbmm(z, z, z.mT), torch.mm(x, x.t()),
            functional.linear(z, y.t()[:, :6]),
        ]  # fmt: skip


f = torch.zeros
MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[torch.Tensor, ...]]] = {
    "convolutions": (Convolutions, (f(2, 4, 12, 12),)),
    "residual network": (models.Stages, (f(2, 1, 32, 32),)),
    "composed attention": (lambda: Stack(causal=True, composed=True), (ids(2, 8),)),
    "encoder and decoder": (models.TextPair, (ids(2, 8), ids(2, 5))),
    "u-net": (models.UNet, (f(1, 4, 16, 16), ids(1, 7))),
    "products": (Products, (f(3, 6), f(6, 9), f(2, 6, 6))),
}


def flops_of(graph: Graph) -> int:
    """By shapes alone, of the families that torch counts."""
    blank = blank_notes(graph)
    return sum(shape_flops(blank, op) for op in graph.ops.ids if family_of(graph.ops.target[op]) in COUNTED)


@pytest.mark.parametrize("name", MODELS)
def test_flops_of_a_model_are_those_of_the_flop_counter(name: str) -> None:
    module, args = MODELS[name]
    built = module().eval()
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        built(*args)
    graph = program_of_module(module, *args).graph
    # The counter has no formula for the fused attention of a CPU, and counts 0.
    fused = [op for op in graph.ops.ids if graph.ops.target[op].endswith("attention_for_cpu.default")]
    assert flops_of(graph) - sum(shape_flops(graph, op) for op in fused) == counter.get_total_flops() > 0


@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_flops_of_a_step_are_torchs_formulas_op_by_op(device: str) -> None:
    """Forward and backward; the cuda target has attention operators that torch's formulas know."""
    graph = step_of(device)
    counted = [op for op in graph.ops.ids if graph.notes.ops.flops[op]]
    names = {graph.ops.target[op].split(".")[1] for op in counted}
    assert {"convolution_backward", "mm"} <= names
    assert device == "cpu" or {"_scaled_dot_product_efficient_attention_backward"} <= names
    assert [shape_flops(graph, op) for op in counted] == [graph.notes.ops.flops[op] for op in counted]


def step_of(device: str) -> Graph:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.v, self.c = models.Patches(), nn.Conv2d(3, 3, 3, 2, 1)
            self.g, self.t = nn.Conv2d(3, 6, 3, groups=3), nn.ConvTranspose2d(6, 3, 4, 2, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.v(self.t(self.g(self.c(x)))).sum()

    return training_graph(Model, torch.zeros(2, 3, 34, 34), device=device)


def one_op(run: Callable[..., object], *args: torch.Tensor, target: str) -> tuple[Graph, int]:
    class Wrapped(nn.Module):
        def forward(self, *tensors: torch.Tensor) -> object:
            return run(*tensors)

    graph = program_of_module(Wrapped, *args).graph
    (op,) = [op for op in graph.ops.ids if graph.ops.target[op] == f"aten.{target}"]
    return graph, op


@pytest.mark.parametrize(
    ("run", "args", "target", "flops", "touched"),
    [
        (lambda x: x + 1, (f(4, 6),), "add.Tensor", 24, 192),
        (lambda x: x.exp(), (f(4, 6),), "exp.default", 8 * 24, 192),
        (lambda x, y: x / y, (f(4, 6), f(6)), "div.Tensor", 4 * 24, 96 + 24 + 96),
        (lambda x: x.sum(0), (f(4, 6),), "sum.dim_IntList", 24, 96 + 24),
        (lambda x: x.softmax(-1), (f(4, 6),), "_softmax.default", SOFTMAX_WEIGHT * 24, 192),
        (
            lambda x: functional.layer_norm(x, (6,)), (f(4, 6),), "native_layer_norm.default",
            NORM_WEIGHT * 24, 96 + 96 + 32,
        ),
        (lambda x: x.t().contiguous(), (f(4, 6),), "clone.default", 0, 192),
        (lambda x: x[:, ::2].exp(), (f(4, 6),), "exp.default", 8 * 12, 96),
        (lambda x, i: x[i], (f(100, 6), ids(2)), "index.Tensor", 0, 48 + 48 + 16),
        (lambda x: x.expand(50, 6) + 1, (f(1, 6),), "add.Tensor", 300, 24 + 1200),
        (lambda x: torch.mv(x, x[0]), (f(6, 6),), "mv.default", 72, 144 + 24),
        (torch.zeros_like, (f(4, 6),), "zeros_like.default", 0, 96),
    ],
)  # fmt: skip
def test_op_counts_and_touches(
    run: Callable[..., object], args: tuple[torch.Tensor, ...], target: str, flops: int, touched: int
) -> None:
    graph, op = one_op(run, *args, target=target)
    assert (op_flops(graph, op), op_bytes(graph, op)) == (flops, touched)


def test_views_are_no_ops_and_cost_nothing() -> None:
    graph, _ = one_op(lambda x: x.view(24).view(6, 4).t()[1:].exp(), f(4, 6), target="exp.default")
    assert len(graph.ops) == 1


def test_write_into_a_cache_touches_what_it_writes() -> None:
    graph = program_of_module(lambda: models.Cached(5, length=4096), ids(1, 1)).graph
    copies = [op for op in graph.ops.ids if graph.ops.target[op] == "aten.copy_.default"]
    assert [op_bytes(graph, op) for op in copies] == [2 * 128, 2 * 128]


def test_windows_that_later_ops_read_are_not_written_twice() -> None:
    def run(x: torch.Tensor) -> torch.Tensor:
        y = x.exp()
        return y[:, :3] + y[:, 3:]

    graph, op = one_op(run, f(4, 6), target="exp.default")
    assert len(graph.ops.writes[op]) > 1
    assert op_bytes(graph, op) == 192


def test_attention_counts_grouped_heads_and_longer_keys() -> None:
    def run(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        return functional.scaled_dot_product_attention(q, k, k, enable_gqa=True)

    class Grouped(nn.Module):
        def forward(self, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
            return run(q, k)

    graph = program_of_module(Grouped, f(2, 8, 5, 16), f(2, 8, 11, 16)).graph
    assert sum(shape_flops(graph, op) for op in graph.ops.ids) == 2 * 2 * 8 * 5 * 11 * (16 + 16)


def test_note_of_the_file_comes_first() -> None:
    graph, op = one_op(lambda x: x @ x, f(6, 6), target="mm.default")
    noted = replace(graph, notes=replace(graph.notes, ops=replace(graph.notes.ops, flops=(7,))))
    assert (op_flops(noted, op), shape_flops(noted, op)) == (7, 2 * 6**3)


class Integers(nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch._int_mm(x, y)


def test_products_of_integers_are_counted() -> None:
    inputs = torch.zeros(32, 16, dtype=torch.int8), torch.zeros(16, 8, dtype=torch.int8)
    assert flops_of(program_of_module(Integers, *inputs).graph) == 2 * 32 * 16 * 8
