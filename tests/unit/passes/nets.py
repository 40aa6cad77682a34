"""A model with one of everything that a fingerprint looks at, made anew for each look."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from tmmu.ir.key import NoKey
from tmmu.passes.capture.fingerprint import Fingerprint, fingerprint
from tmmu.passes.capture.workload import Workload, module_of

SCALE = 2
SIZES = {"first": [1, 2], "second": [3]}


def scaled(x: Tensor) -> Tensor:
    return x * SCALE


class Config:
    def __init__(self) -> None:
        self.width = 4
        self.names = ["a", "b"]


class Net(nn.Module):
    factor = 3

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(4, 4)
        self.b = nn.Linear(4, 4)
        self.act = nn.ReLU()
        self.register_buffer("table", torch.arange(4.0))
        self.flag = True
        self.rate = 0.0
        self.sizes = [1, 2]
        self.config = Config()

    @property
    def doubled(self) -> int:
        return self.factor * 2

    def forward(self, x: Tensor) -> Tensor:
        return functional.softmax(self.b(self.act(self.a(scaled(x)))) + self.table, dim=-1)


def multiplier(factor: float) -> Callable[..., Any]:
    def hook(module: nn.Module, args: Any, result: Any) -> Any:
        return result * factor

    return hook


def loss(model: nn.Module, x: Tensor) -> Tensor:
    return model(x).sum()


def look(run: Any, *args: Any, training: bool = False, **changes: Any) -> Fingerprint | NoKey:
    """The fingerprint of a program and its arguments."""
    given: dict[str, Any] = {"name": "net", "folder": "", "loss": loss, "args": args} | changes
    return fingerprint(Workload(run=run, module=module_of(run), **given), None, training=training)


def digest(run: Any, *args: Any, **changes: Any) -> bytes:
    found = look(run, *(args or (torch.zeros(2, 4),)), **changes)
    assert isinstance(found, Fingerprint), found.why
    return found.parts[0].digest


def refusal(run: Any, *args: Any, **changes: Any) -> str:
    found = look(run, *(args or (torch.zeros(2, 4),)), **changes)
    assert isinstance(found, NoKey)
    return found.why


def function(source: str, **globals: Any) -> Callable[..., Any]:  # noqa: A002
    """A function made of text, with globals of its own."""
    scope = {"torch": torch, "functional": functional} | globals
    exec(compile(source, "<test>", "exec"), scope)
    found: Callable[..., Any] = scope["f"]
    return found


class Holder(nn.Module):
    """Holds something as an attribute."""

    def __init__(self, held: Any) -> None:
        super().__init__()
        self.held = held

    def forward(self, x: Tensor) -> Tensor:
        return x
