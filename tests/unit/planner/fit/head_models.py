"""Captured steps of small models with heads: tied, in short floats with a float32 loss, frozen, with a bias."""

from functools import cache
from typing import Any

import torch
from torch import nn

import tmmu
from tests.runtime.harness import TOKEN, plan_of, same_bits
from tmmu.ir.graph import Graph
from tmmu.judge.check import judge
from tmmu.passes.lowering.read_calls import read_program
from tmmu.runtime.compare.sanitize import run_sanitized
from tmmu.runtime.execute.bind import bind
from tmmu.runtime.execute.executor import Executor

BATCH, LENGTH, WIDTH, CLASSES = 3, 72, 24, 131


class Head(nn.Module):
    """An embedding, a norm and a head; the loss is of the next token, or of labels of their own.

    ``scale``: what the loss is multiplied by; ``beside``: a second output that the logits have.
    """

    def __init__(self, *, tied: bool = False, shifted: bool = True, frozen: bool = False, bias: bool = False) -> None:
        super().__init__()
        self.embedding, self.norm = nn.Embedding(CLASSES, WIDTH), nn.LayerNorm(WIDTH)
        self.up, self.head = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, CLASSES, bias=bias)
        self.shifted = shifted
        if tied:
            self.head.weight = self.embedding.weight
        self.head.requires_grad_(not frozen)

    def logits(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.norm(self.up(self.embedding(ids)).relu()))

    def forward(self, ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        logits = self.logits(ids).float()
        if self.shifted:
            logits, labels = logits[:, :-1].contiguous(), labels[:, 1:].contiguous()
        return self.loss(logits, labels)

    def loss(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(logits.view(-1, CLASSES), labels.view(-1))


class Accumulated(Head):
    """A sum over rows, as a share of eight steps."""

    def loss(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(logits.view(-1, CLASSES), labels.view(-1), reduction="sum") / 8


class Capped(Head):
    """Logits of at most 30."""

    def logits(self, ids: torch.Tensor) -> torch.Tensor:
        return torch.tanh(super().logits(ids) / 30) * 30


class Scaled(Head):
    """Logits times a number that is learned."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def logits(self, ids: torch.Tensor) -> torch.Tensor:
        return self.scale * super().logits(ids)


class Twice(Head):
    """Two batches, one after the other."""

    def forward(self, ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return super().forward(ids, labels) + super().forward(labels.clamp_min(0), ids)


class OfItsValue(Head):
    """A loss whose gradient hangs on its value."""

    def loss(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return super().loss(logits, labels).square()


class Weighted(Head):
    """Classes with weights."""

    def loss(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        weights = torch.linspace(0.5, 1.5, CLASSES)
        return nn.functional.cross_entropy(logits.view(-1, CLASSES), labels.view(-1), weight=weights)


class IgnoresAClass(Head):
    """Class 0 is padding."""

    def loss(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(logits.view(-1, CLASSES), labels.view(-1), ignore_index=0)


class Watched(Head):
    """The largest logit of each row is an output too."""

    def forward(self, ids: torch.Tensor, labels: torch.Tensor) -> Any:
        logits = self.logits(ids)
        return self.loss(logits, labels), logits.argmax(-1)


MODELS: dict[str, Any] = {
    "tied": lambda: Head(tied=True),
    "short floats": lambda: Head().to(torch.bfloat16),
    "frozen": lambda: Head(frozen=True),
    "frozen in short floats": lambda: Head(frozen=True).to(torch.bfloat16),
    "of all rows": lambda: Head(shifted=False),
    "with a bias": lambda: Head(bias=True),
    "a share of a sum": lambda: Accumulated(tied=True),
    "capped": Capped,
    "scaled": Scaled,
    "two of them": lambda: Twice(tied=True),
    "of its value": OfItsValue,
    "weighted": Weighted,
    "ignores a class": IgnoresAClass,
}


@cache
def head_step(name: str, optimizer: str = "adamw:fused") -> Graph:
    """A training step, planned for a CPU."""
    ids = torch.zeros(BATCH, LENGTH, dtype=torch.int64)
    torch.manual_seed(0)
    inputs = {"ids": ids, "labels": ids.clone()}
    return tmmu.plan(MODELS[name](), inputs, loss="sum", optimizer=optimizer, device="cpu").graph


def weights(graph: Graph) -> dict[str, torch.Tensor]:
    """Small numbers for all that persists."""
    generator = torch.Generator().manual_seed(3)
    found: dict[str, torch.Tensor] = {}
    values, names = graph.values, graph.notes.buffers
    for value, buffer in enumerate(values.buffer):
        is_kept = graph.buffers.role[buffer] in ("parameter", "state", "constant")
        if is_kept and names[buffer] not in found and not values.offset[value]:
            shape, dtype = values.shape[value], getattr(torch, values.dtype[value])
            fill = torch.rand(shape, generator=generator) - 0.3
            if "optimizer" in names[buffer] or not dtype.is_floating_point:
                fill = torch.zeros(shape)
            found[names[buffer]] = fill.to(dtype).as_strided(shape, values.stride[value])
    return found


def inputs_of(graph: Graph) -> dict[str, torch.Tensor]:
    """Random classes; some labels are ignored."""
    generator = torch.Generator().manual_seed(5)
    names = [graph.notes.buffers[graph.values.buffer[value]] for value in graph.inputs]
    inputs = {name: torch.randint(CLASSES, (BATCH, LENGTH), generator=generator) for name in names}
    inputs["labels"][:, ::7] = -100
    return inputs


def bound(graph: Graph) -> Executor:
    """The graph, planned, judged and bound."""
    program = read_program(graph)
    plan = plan_of(program, mode="backward", preset="train_full")
    judge(graph, plan, token=TOKEN)
    return bind(program, plan, token=TOKEN, weights=weights(graph), device="cpu")


def run_twice(graph: Graph) -> dict[str, torch.Tensor]:
    """Outputs of two steps, and the bytes of all that persists after them, by name."""
    executor, inputs = bound(graph), inputs_of(graph)
    results = {}
    for step in range(2):
        outputs = executor.run(inputs)
        results |= {f"output {index} of step {step}": tensor.clone() for index, tensor in enumerate(outputs)}
    results |= {name: executor.state(name).clone() for name in executor.states}
    executor.close()
    return results


def run_with_sanitizer(graph: Graph) -> int:
    """How many times a buffer was compared with the reference's; raises at the first that differs."""
    executor = bound(graph)
    report = run_sanitized(read_program(graph), executor, weights(graph), inputs_of(graph), token=TOKEN)
    executor.close()
    return report.compared


def same_results(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> bool:
    """Whether all have the same bits."""
    return list(first) == list(second) and all(same_bits(first[name], second[name]) for name in first)
