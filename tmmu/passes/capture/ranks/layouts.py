"""How the distributed tensors of a trace lie over all ranks: which ranks have shards of equal shapes."""

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import Any, Final

import torch

from tmmu.passes.capture.program import RankKinds
from tmmu.passes.capture.ranks.meshes import coordinates_of_ranks
from tmmu.passes.capture.replace import replace_attribute
from tmmu.passes.capture.sources import is_library
from tmmu.torch_private import local_shape_of

DISTRIBUTED_TENSORS: Final = "torch.distributed.tensor"
"""Imported by whatever makes one."""

TRANSFORMERS_THAT_ASK: Final = tuple(
    str(Path("transformers", "distributed", name)) for name in ("expert_parallel.py", "utils.py")
)
"""Where transformers masks the tokens of other ranks' experts, and where it asks which rank warns and saves."""


class Layouts:
    """State: the layouts that a trace has met, and where its program has asked for its rank."""

    def __init__(self) -> None:
        self._layouts: dict[tuple[Any, tuple[Any, ...], tuple[int, ...]], None] = {}
        self._places: dict[tuple[Any, int], None] = {}
        self._reads: dict[str, None] = {}
        self._groups: dict[str, tuple[Any, int]] = {}
        self._differs_by_rank = False

    def note(self, leaves: Iterable[Any]) -> None:
        """Note how the distributed tensors among these lie."""
        module = sys.modules.get(DISTRIBUTED_TENSORS)
        if module is None:
            return
        for leaf in leaves:
            if isinstance(leaf, module.DTensor):
                self._layouts.setdefault((leaf.device_mesh, tuple(leaf.placements), tuple(leaf.shape)))

    def note_group(self, group: Any, source: str) -> None:
        """Note that a rank does what its place in the group says; ``None`` is the group of all ranks."""
        if group is None or group.size() == torch.distributed.get_world_size():
            self._differs_by_rank = True
        elif group.group_name in self._groups:
            self._note_place(*self._groups[group.group_name], lambda: source)
        else:
            self._reads.setdefault(source)

    @contextmanager
    def watch_reads(self, source: Callable[[], str]) -> Iterator[None]:
        """Block in which it is noted where the program itself asks for its rank; ``source`` gives its line."""
        distributed = torch.distributed
        if not distributed.is_available():
            yield
            return
        mesh_class = distributed.device_mesh.DeviceMesh
        get_rank, get_local_rank = distributed.get_rank, mesh_class.get_local_rank
        get_coordinate, get_rank_by_mesh = mesh_class.get_coordinate, mesh_class.get_rank
        get_group = mesh_class.get_group
        # Dynamo's table of torch's functions, made while this block runs, has ``rank`` in it for good.
        watching = [(self._reads, source)]

        @wraps(get_rank)
        def rank(group: Any = None) -> int:
            if watching and not _does_the_same(sys._getframe(1).f_code.co_filename):
                reads, line = watching[0]
                reads.setdefault(line())
            return get_rank(group)

        def rank_by_mesh(mesh: Any) -> Any:
            if not is_library(sys._getframe(1).f_code.co_filename):
                self._reads.setdefault(source())
            return get_rank_by_mesh(mesh)

        def local_rank(mesh: Any, mesh_dim: Any = None) -> Any:
            place = get_local_rank(mesh, mesh_dim)
            if not _does_the_same(sys._getframe(1).f_code.co_filename):
                self._note_place(mesh, _number_of(mesh, mesh_dim), source)
            return place

        def coordinate(mesh: Any) -> Any:
            if not is_library(sys._getframe(1).f_code.co_filename):
                for dim in range(mesh.ndim):
                    self._note_place(mesh, dim, source)
            return get_coordinate(mesh)

        def group_of(mesh: Any, mesh_dim: Any = None) -> Any:
            group = get_group(mesh, mesh_dim)
            self._groups.setdefault(group.group_name, (mesh, _number_of(mesh, mesh_dim)))
            return group

        with (
            replace_attribute(mesh_class, "get_group", group_of),
            replace_attribute(distributed, "get_rank", rank),
            replace_attribute(mesh_class, "get_rank", rank_by_mesh),
            replace_attribute(mesh_class, "get_local_rank", local_rank),
            replace_attribute(mesh_class, "get_coordinate", coordinate),
        ):
            try:
                yield
            finally:
                watching.clear()

    def kinds(self, world: int) -> RankKinds:
        """The kinds of the ranks, numbered in the order of their first ranks."""
        rows = [*self._shape_rows(world), *self._place_rows(world)]
        rows += [list(range(world))] if self._differs_by_rank else []
        numbers: dict[tuple[Any, ...], int] = {}
        signatures = zip(*rows, strict=True) if rows else (() for _ in range(world))
        kind_of = tuple(numbers.setdefault(signature, len(numbers)) for signature in signatures)
        return RankKinds(kind_of, tuple(self._reads))

    def _note_place(self, mesh: Any, dim: int, source: Callable[[], str]) -> None:
        if mesh.size(dim) == torch.distributed.get_world_size():
            self._reads.setdefault(source())
        else:
            self._places.setdefault((mesh, dim))

    def _shape_rows(self, world: int) -> Iterator[list[Any]]:
        """Per layout that ranks may see unlike, the local shape of each rank."""
        meshes = dict.fromkeys(mesh for mesh, _, _ in self._layouts)
        coordinates = {mesh: coordinates_of_ranks(mesh, world) for mesh in meshes}
        yield from ([coordinate is None for coordinate in row] for row in coordinates.values() if None in row)
        for mesh, placements, shape in self._layouts:
            if not _is_even(mesh, placements, shape):
                shapes = {place: local_shape_of(shape, mesh.shape, place, placements) for place in coordinates[mesh]}
                yield [shapes[place] for place in coordinates[mesh]]

    def _place_rows(self, world: int) -> Iterator[list[Any]]:
        for mesh, dim in self._places:
            yield [None if place is None else place[dim] for place in coordinates_of_ranks(mesh, world)]


def _does_the_same(filename: str) -> bool:
    """Whether a rank's place decides no memory in this file: a library's, or one of transformers."""
    return is_library(filename) or filename.endswith(TRANSFORMERS_THAT_ASK)


def _is_even(mesh: Any, placements: tuple[Any, ...], shape: tuple[int, ...]) -> bool:
    """Whether each dimension that is cut is a multiple of the number of its parts."""
    parts = [1] * len(shape)
    for dim, placement in enumerate(placements):
        if hasattr(placement, "dim"):
            parts[placement.dim] *= mesh.size(dim)
    return not any(size % count for size, count in zip(shape, parts, strict=True))


def _number_of(mesh: Any, dim: Any) -> int:
    if isinstance(dim, str):
        return int(mesh.mesh_dim_names.index(dim))
    return dim or 0
