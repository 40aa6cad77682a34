"""Functions and models in ``torch.compile(backend="tmmu")``, and what the reports of their graphs say."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from tmmu.backend import GraphReport, reports


def compile_planned(model: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    return torch.compile(model, backend="tmmu", **options)  # type: ignore[no-any-return, call-overload]


def the_report() -> GraphReport:
    (report,) = reports()
    return report


def all_planned() -> bool:
    return bool(reports()) and all(report.planned > 0 and not report.plain for report in reports())


class Mlp(nn.Module):
    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(6, 12), nn.GELU(), nn.LayerNorm(12), nn.Dropout(dropout), nn.Linear(12, 5), nn.Tanh()
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)  # type: ignore[no-any-return]


class Normed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.BatchNorm2d(4)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x).mean((2, 3))  # type: ignore[no-any-return]


def train(
    run: Callable[..., torch.Tensor], model: nn.Module, batches: list[torch.Tensor], kind: Any = torch.optim.SGD
) -> list[torch.Tensor]:
    """The losses of one step for each batch."""
    optimizer = kind(model.parameters(), lr=0.1)
    losses = []
    for step, batch in enumerate(batches):
        torch.manual_seed(step)
        optimizer.zero_grad()
        loss = run(batch).square().mean()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        losses.append(loss.detach())
    return losses


CASES: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "mlp": (Mlp, (4, 6)),
    "dropout": (lambda: Mlp(dropout=0.15), (64, 6)),
    "batch norm": (Normed, (3, 3, 8, 8)),
}
