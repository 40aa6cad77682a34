"""Steps at a size: layers, attention whose scores are square, rows that are padded, a branch, a last size."""

from functools import cache

import torch
from torch import nn

import tmmu
from tmmu import MemoryPlan

WIDTH = 64


class Layers(nn.Module):
    """Three layers over rows."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The loss of rows float32[n, 64]."""
        for layer in self.layers:
            x = nn.functional.gelu(layer(x))
        return x.square().mean()


class Attention(Layers):
    """Scores of each row with each: bytes grow with the square."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The loss of rows float32[n, 64]."""
        scores = (x @ x.T).softmax(-1).view(-1)
        return super().forward(scores.view(len(x), -1) @ self.layers[0](x)) + scores.sum()


class Padded(Layers):
    """Rows are padded to multiples of 8."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The loss of rows float32[n, 64]."""
        missing = -len(x) % 8
        return super().forward(torch.cat([x, x.new_zeros(missing, WIDTH)]) if missing else x)


class Branch(Layers):
    """Many rows go through one op more."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The loss of rows float32[n, 64]."""
        return super().forward(x.sin() if len(x) > 50 else x)


class Limited(Layers):
    """Takes no more than 40 rows."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The loss of rows float32[n, 64]."""
        if len(x) > 40:
            raise ValueError("at most 40 rows")
        return super().forward(x)


class Fixed(Layers):
    """Whatever comes in, the step is of two rows."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The loss of rows float32[n, 64]."""
        return super().forward(x.new_ones(2, WIDTH))


class Normed(Layers):
    """A norm over the rows, which refuses a single one."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The loss of rows float32[n, 64]."""
        return super().forward(self.norm(x))


@cache
def step_of(model: type[nn.Module], size: int) -> MemoryPlan:
    """The plan of a training step of so many rows, on a CPU."""
    return tmmu.plan(model(), torch.zeros(size, WIDTH, device="meta"), training=True, optimizer="sgd", device="cpu")
