"""Milliseconds to bind small compiled models, and the part of it that validates steps: ``python -m benchmarks.bind``.

One thread, the least of five binds of each; plans are traced anew each time and are not counted.
"""

import time
from collections.abc import Callable
from typing import Any, Final

import torch
from torch import nn

from tmmu.runtime.execute import bind, step_memory

REPEATS: Final = 5


class Block(nn.Module):
    """A transformer block of a width, with four heads."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.out = nn.LayerNorm(width), nn.Linear(width, width)
        self.heads = nn.Linear(width, 3 * width)
        self.mlp = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """``float32[batch, tokens, width]``, as ``x``."""
        batch, tokens, width = x.shape
        parts = self.heads(self.norm(x)).view(batch, tokens, 3, 4, width // 4).permute(2, 0, 3, 1, 4)
        seen = nn.functional.scaled_dot_product_attention(*parts, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).reshape(batch, tokens, width))
        return x + self.mlp(x)


MODELS: Final[dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]]] = {
    "mlp": (lambda: nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 8)), (4, 16)),
    "2 blocks of 64": (lambda: nn.Sequential(Block(64), Block(64)), (2, 16, 64)),
    "2 blocks of 512": (lambda: nn.Sequential(Block(512), Block(512)), (2, 128, 512)),
    "convolutions": (
        lambda: nn.Sequential(nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 32, 3), nn.SiLU()),
        (2, 3, 32, 32),
    ),
}


def main() -> None:
    """Prints a row for each model, in inference and in training."""
    torch.set_num_threads(1)
    spent = {"bind": 0.0, "validate": 0.0}
    bind.validate_steps = _timed(bind.validate_steps, spent, "validate")
    step_memory.bind_program = _timed(step_memory.bind_program, spent, "bind")
    for name, (make, shape) in MODELS.items():
        for trains in (False, True):
            model, rows = make().requires_grad_(trains), []
            for _ in range(REPEATS):
                torch._dynamo.reset()
                spent.update(bind=0.0, validate=0.0)
                torch.compile(model, backend="tmmu")(torch.randn(shape))
                rows.append((spent["bind"], spent["validate"]))
            whole, trial = min(rows)
            print(f"{name:16} {'training' if trains else 'inference':9} {whole:8.1f} ms, validating {trial:8.1f} ms")


def _timed(function: Callable[..., Any], spent: dict[str, float], key: str) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Any:
        start = time.perf_counter()
        try:
            return function(*args, **kwargs)
        finally:
            spent[key] += 1e3 * (time.perf_counter() - start)

    return run


if __name__ == "__main__":
    main()
