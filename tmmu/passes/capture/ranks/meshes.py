"""Device meshes are real while a model is traced: torch computes ranks in them outside of fake modes."""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product
from typing import Any

import torch

from tmmu.passes.capture.imports import outside_modes
from tmmu.passes.capture.replace import replace_attribute
from tmmu.torch_private import (
    DataDependentOutputException,
    FakeTensor,
    meshes_of_all_ranks,
)


@contextmanager
def real_meshes(device: str) -> Iterator[None]:
    """Block in which a mesh keeps its ranks in real tensors, whatever mode makes them, and is of kind ``device``.

    Ranks that a trace computes are constants, whose values it knows.
    """
    if not torch.distributed.is_available():
        yield
        return
    mesh_class = torch.distributed.device_mesh.DeviceMesh
    original = mesh_class.__init__

    def make(self: Any, device_type: str, mesh: Any = None, **options: Any) -> None:
        del device_type
        try:
            real_mesh, real_options = _real(mesh), {name: _real(value) for name, value in options.items()}
        except DataDependentOutputException:
            original(self, device, mesh, **options)  # which says what it looks at
            return
        with outside_modes():
            original(self, device, real_mesh, **real_options)

    with replace_attribute(mesh_class, "__init__", make):
        yield


def _real(value: Any) -> Any:
    """A tensor of ranks with its values; anything else as it is."""
    if not isinstance(value, FakeTensor):
        return value
    ranks = value.tolist()
    with outside_modes():
        return torch.tensor(ranks, dtype=value.dtype)


def coordinates_of_ranks(mesh: Any, world: int) -> list[tuple[int, ...] | None]:
    """Of each rank, its coordinates in the mesh, or in the one that it has in this one's place; ``None`` for neither.

    A mesh that was cut out of a larger one by the names of its dimensions has one of its kind for each group of ranks.
    """
    coordinates: list[tuple[int, ...] | None] = [None] * world
    with outside_modes():
        meshes = meshes_of_all_ranks(mesh)
        sizes, ranks = tuple(meshes.shape), meshes.flatten().tolist()
    for rank, place in zip(ranks, product(*map(range, sizes)), strict=True):
        coordinates[rank] = place[1:]
    return coordinates
