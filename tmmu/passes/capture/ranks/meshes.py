"""Device meshes are real while a model is traced: torch computes ranks in them outside of fake modes."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from tmmu.passes.capture.replace import replace_attribute
from tmmu.torch_private import DataDependentOutputException, FakeTensor, disable_current_modes


@contextmanager
def real_meshes() -> Iterator[None]:
    """Block in which a mesh keeps its ranks in real tensors, whatever mode makes them.

    Ranks that a trace computes are constants, whose values it knows.
    """
    if not torch.distributed.is_available():
        yield
        return
    mesh_class = torch.distributed.device_mesh.DeviceMesh
    original = mesh_class.__init__

    def make(self: Any, device_type: str, mesh: Any = None, **options: Any) -> None:
        try:
            real_mesh, real_options = _real(mesh), {name: _real(value) for name, value in options.items()}
        except DataDependentOutputException:
            original(self, device_type, mesh, **options)  # which says what it looks at
            return
        with disable_current_modes():
            original(self, device_type, real_mesh, **real_options)

    with replace_attribute(mesh_class, "__init__", make):
        yield


def _real(value: Any) -> Any:
    """A tensor of ranks with its values; anything else as it is."""
    if not isinstance(value, FakeTensor):
        return value
    ranks = value.tolist()
    with disable_current_modes():
        return torch.tensor(ranks, dtype=value.dtype)
