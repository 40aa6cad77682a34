"""The tensors that a module keeps, looked up anew for each call, without a walk over all that it is."""

from collections.abc import Callable, Mapping
from functools import partial

import torch
from torch import nn

from tmmu.errors import InvalidConfig
from tmmu.passes.capture.call_form import plain_attributes
from tmmu.torch_private import buffer_table, cpp_address, parameter_table

Place = tuple[int, torch.Size, tuple[int, ...], torch.dtype]
"""Where a tensor lies and how: address, shape, strides, dtype."""


class ModelWeights:
    """Parameters and buffers under every name, and tensors that are plain attributes, as they are now.

    Where each is kept is noted once; modules that are exchanged afterwards, and names that are new, are not seen.
    """

    def __init__(self, module: nn.Module) -> None:
        self.parts = tuple(module.modules())
        self._tables: list[tuple[str, Mapping[str, torch.Tensor | None], str]] = []
        self._plain: list[Callable[[], dict[str, torch.Tensor]]] = []
        known = {id(tensor) for tensor in (*module.parameters(), *module.buffers())}
        for path, part in module.named_modules(remove_duplicate=False):
            for table in (parameter_table(part), buffer_table(part)):
                named = (key for key, tensor in table.items() if tensor is not None)
                self._tables += [(f"{path}.{key}" if path else key, table, key) for key in named]
        for path, part in module.named_modules():
            if plain_attributes(part, path, known):
                self._plain.append(partial(plain_attributes, part, path, known))
        self._plain_names = {name for look in self._plain for name in look()}

    def current(self) -> dict[str, torch.Tensor]:
        """By name; ``INVALID_CONFIG`` for one that is gone."""
        found = {name: table.get(key) for name, table, key in self._tables}
        for look in self._plain:
            found |= {name: tensor for name, tensor in look().items() if name in self._plain_names}
        missing = [name for name, tensor in found.items() if tensor is None]
        missing += sorted(self._plain_names - found.keys())
        if missing:
            raise InvalidConfig(f"{missing[0]} is gone", fix="compile the model again")
        return {name: tensor for name, tensor in found.items() if tensor is not None}


def places_of(weights: Mapping[str, torch.Tensor]) -> dict[str, Place]:
    """So that a tensor that was exchanged, or given other memory, is told."""
    return {name: (tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype) for name, tensor in weights.items()}


def storages_of(weights: Mapping[str, torch.Tensor]) -> dict[str, int]:
    """By name, a number for its storage; names with one number share it."""
    return {name: cpp_address(tensor.untyped_storage()) for name, tensor in weights.items()}
