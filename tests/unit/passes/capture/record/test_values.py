"""Values on demand: one evaluation answers for all that hang together."""

from typing import Any

import pytest
import torch
from torch import nn

import tmmu
from tmmu.passes.capture.record import values


def calls_run(monkeypatch: pytest.MonkeyPatch, layers: int) -> int:
    """How many calls are computed for real while a step with AdamW in its list form is traced."""
    count, run = [0], values._run

    def counted(*arguments: Any) -> Any:
        count[0] += 1
        return run(*arguments)

    monkeypatch.setattr(values, "_run", counted)
    net = nn.Sequential(*(nn.Linear(2, 2) for _ in range(layers)))
    optimizer = torch.optim.AdamW(net.parameters(), foreach=True)

    def step(x: torch.Tensor) -> None:
        net(x).sum().backward()
        optimizer.step()

    tmmu.plan(step, torch.ones(1, 2), device="cpu")
    monkeypatch.undo()
    return count[0]


def test_counts_of_steps_of_many_weights_are_computed_once_a_recording(monkeypatch: pytest.MonkeyPatch) -> None:
    few, many = calls_run(monkeypatch, 2), calls_run(monkeypatch, 8)
    assert 0 < few <= many < 6 * few  # linear: each step's count was computed for each, in each recording before


def test_value_holds_until_the_next_write() -> None:
    class Counting(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            count = torch.zeros(())
            before = int(count)
            count.add_(3)
            after = int(count)
            count.mul_(2)
            return x[: before + after + int(count)] * 1

    graph = tmmu.plan(Counting(), torch.ones(16, 4), device="cpu").graph
    assert (9, 4) in graph.values.shape
