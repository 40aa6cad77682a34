"""Which ranks do the same is told by where a trace's distributed tensors lie, without a trace of each."""

import importlib
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tmmu.passes.capture.program import RankKinds
from tmmu.passes.capture.ranks.layouts import Layouts
from tmmu.passes.capture.ranks.process_group import process_group, stand_ins_by_identity
from tmmu.torch_private import FakeTensorMode, local_shape_of

tensors = pytest.importorskip("torch.distributed.tensor")
WORLD = 8


@pytest.fixture(autouse=True)
def _rank() -> Iterator[None]:
    with process_group(WORLD, 0):
        yield


def mesh_of(*shape: int) -> torch.distributed.device_mesh.DeviceMesh:
    return torch.distributed.device_mesh.init_device_mesh(
        "cpu", shape, mesh_dim_names=("rows", "columns")[: len(shape)]
    )


def kinds_of(size: int, mesh: object, *placements: object) -> tuple[int, ...]:
    """Kinds of all ranks by one tensor of ``size`` rows."""
    layouts = Layouts()
    layouts.note([tensors.DTensor.from_local(torch.zeros(1, 2), mesh, placements, shape=(size, 2), stride=(2, 1))])
    return layouts.kinds(WORLD).kind_of


@pytest.mark.parametrize(
    ("size", "kinds"),
    [(16, (0,) * 8), (15, (0, 0, 0, 0, 0, 0, 0, 1)), (9, (0, 0, 0, 0, 1, 2, 2, 2)), (5, (0, 0, 0, 0, 0, 1, 1, 1))],
    ids=["even", "the last has one row less", "two rows each, one, none", "one row each, none"],
)
def test_ranks_with_as_many_rows_are_of_one_kind(size: int, kinds: tuple[int, ...]) -> None:
    assert kinds_of(size, mesh_of(8), tensors.Shard(0)) == kinds


def test_a_dimension_that_is_cut_twice_is_cut_from_left_to_right() -> None:
    """Of 7 rows two halves have 4 and 3, whose fourths are 1, 1, 1, 1 and 1, 1, 1, 0."""
    assert kinds_of(7, mesh_of(2, 4), tensors.Shard(0), tensors.Shard(0)) == (0, 0, 0, 0, 0, 0, 0, 1)


def test_a_mesh_that_is_cut_out_of_a_larger_one_is_each_ranks_own() -> None:
    assert kinds_of(3, mesh_of(4, 2)["columns"], tensors.Shard(0)) == (0, 1) * 4
    assert kinds_of(3, mesh_of(4, 2)["rows"], tensors.Shard(0)) == (0, 0, 0, 0, 0, 0, 1, 1)


def test_ranks_that_are_in_no_mesh_are_a_kind() -> None:
    mesh = torch.distributed.device_mesh.DeviceMesh("cpu", [0, 1, 2, 3, 4, 5])
    assert kinds_of(6, mesh, tensors.Shard(0)) == (0, 0, 0, 0, 0, 0, 1, 1)


def test_a_place_that_the_program_asks_for_makes_kinds_and_its_rank_of_all_is_said() -> None:
    layouts, mesh = Layouts(), mesh_of(4, 2)
    with layouts.watch_reads(lambda: "train.py:7"):
        mesh.get_local_rank("columns")
        assert layouts.kinds(WORLD) == RankKinds((0, 1) * 4)
        torch.distributed.get_rank()
    assert layouts.kinds(WORLD) == RankKinds((0, 1) * 4, ("train.py:7",))
    torch.distributed.get_rank()
    mesh.get_rank()
    assert layouts.kinds(WORLD).reads == ("train.py:7",), "the block is over"


def test_its_rank_of_all_is_said_by_a_mesh_and_by_a_function_of_before_too() -> None:
    layouts, lines, get_rank = Layouts(), iter(("train.py:1", "train.py:2")), torch.distributed.get_rank
    with layouts.watch_reads(lambda: next(lines)):
        assert mesh_of(8).get_rank() == stand_ins_by_identity()[id(get_rank)]() == 0
    assert layouts.kinds(WORLD).reads == ("train.py:1", "train.py:2")


class CountedCalls(TorchDispatchMode):
    """A mode as a trace has some: each call on tensors goes through it."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        return func(*args, **(kwargs or {}))


def test_shapes_of_other_ranks_are_counted_outside_of_the_trace() -> None:
    strided = importlib.import_module("torch.distributed.tensor.placement_types")._StridedShard
    placements = (strided(0, split_factor=2), tensors.Shard(0))
    with FakeTensorMode(), CountedCalls() as calls:
        shapes = [local_shape_of((10, 3), (3, 2), (row, column), placements) for row in range(3) for column in (0, 1)]
    assert sum(shape[0] for shape in shapes) == 10
    assert calls.count == 0
