"""A model or step that is there as Python objects, copied with its bytes, to be run and thrown away."""

from typing import Any

import torch

from tmmu.passes.capture.targets.live_object import Twins, workload_of_copies
from tmmu.passes.capture.workload import Workload


def real_workload(target: Any, inputs: Any, *, is_step: bool) -> Workload:
    """The workload of a deep copy of all that is reached. Takes the bytes of every storage once more."""
    return workload_of_copies(target, inputs, _RealTwins(), is_step=is_step)


class _RealTwins(Twins):
    """The copy of each tensor on the copy of its storage."""

    def first_on_storage(self, tensor: torch.Tensor) -> torch.Tensor:
        """On a storage of its own with the same bytes."""
        return _window(_copy(tensor.untyped_storage()), tensor)

    def window_on(self, first: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
        """On the storage of ``first``, in any dtype."""
        return _window(first.untyped_storage(), tensor)


def _copy(storage: torch.UntypedStorage) -> torch.UntypedStorage:
    whole = torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage, 0, (storage.nbytes(),), (1,))
    return whole.clone().untyped_storage()


def _window(storage: torch.UntypedStorage, tensor: torch.Tensor) -> torch.Tensor:
    empty = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
    return empty.set_(storage, tensor.storage_offset(), tensor.shape, tensor.stride())
