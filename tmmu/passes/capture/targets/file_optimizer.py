"""An optimizer that a file has made of its model's parameters, as a function that makes it of others."""

from collections import defaultdict
from collections.abc import Iterable

import torch

from tmmu.errors import CaptureFailed


class FileInstance:
    """Called with parameters, gives an optimizer like the file's: its class and options, group by group, without state.

    The first call has the file's own parameters, which say who is in which group; a later one has others in their
    order. Parameters without a gradient are in no call. ``CAPTURE_FAILED`` where the model has one that is in no group.
    """

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer = optimizer
        self._group_of = {id(p): row for row, group in enumerate(optimizer.param_groups) for p in group["params"]}
        self._rows: tuple[int | None, ...] = ()

    def has_any(self, parameters: Iterable[torch.Tensor]) -> bool:
        """Whether the optimizer is of one of these at least."""
        return any(id(parameter) in self._group_of for parameter in parameters)

    def __call__(self, parameters: list[torch.Tensor]) -> torch.optim.Optimizer:
        """An optimizer of these parameters."""
        rows = tuple(self._group_of.get(id(parameter)) for parameter in parameters)
        if any(row is not None for row in rows) or not self._rows:
            self._rows = rows
        if len(self._rows) != len(parameters) or None in self._rows:
            raise CaptureFailed(
                "`optimizer` has other parameters than those of the model that get a gradient",
                fix="define optimizer(params) that makes it, freeze the others, or plan your own step: FILE.py:step",
            )
        twin = object.__new__(type(self._optimizer))
        twin.__dict__.update(vars(self._optimizer))
        twin.state = defaultdict(dict)
        twin.param_groups = [
            group | {"params": [p for p, own in zip(parameters, self._rows, strict=True) if own == row]}
            for row, group in enumerate(self._optimizer.param_groups)
        ]
        return twin
