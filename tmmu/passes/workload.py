"""What is traced: a model, its inputs, and how it is trained; made on fake tensors."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """``run(*args, **kwargs)`` is the program; ``loss`` (of the model and the inputs) trains it.

    ``states`` are tensors that outlive a step and that the model does not own as parameters or buffers: KV caches.
    """

    name: str
    folder: str
    run: Callable[..., Any]
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    loss: Callable[..., Any] | None = None
    states: tuple[tuple[str, torch.Tensor], ...] = ()

    @property
    def module(self) -> torch.nn.Module | None:
        """The program as a module, where it is one."""
        return self.run if isinstance(self.run, torch.nn.Module) else None
