"""``tmmu.plan(world=)``: a function makes the sharded model, and what it closes over stays as it is."""

import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import tmmu
from tmmu.errors import TmmuError
from tmmu.passes.capture.ranks.process_group import process_group

distributed = pytest.importorskip("torch.distributed")
get_rank, init_process_group = distributed.get_rank, distributed.init_process_group
BATCH = torch.zeros(4, 64)
NET = nn.Sequential(nn.Linear(64, 257), nn.ReLU(), nn.Linear(257, 64))


def sharded() -> nn.Module:
    """A plain model of before, sharded over all ranks."""
    from torch.distributed.fsdp import fully_shard  # noqa: PLC0415 - it takes a while

    mesh = distributed.device_mesh.init_device_mesh("cuda", (distributed.get_world_size(),))
    return fully_shard(NET, mesh=mesh)  # type: ignore[no-any-return]


def test_the_fullest_rank_is_planned_beside_all_kinds_and_nothing_is_changed() -> None:
    before = [(type(parameter), parameter.data_ptr()) for parameter in NET.parameters()]
    plan = tmmu.plan(sharded, BATCH, world=8, loss="sum")
    assert [kind.ranks for kind in plan.ranks] == [(0, 1, 2, 3, 4, 5, 6), (7,)]
    assert plan.eager.total_bytes == max(kind.needed for kind in plan.ranks)
    assert plan.graph.notes.name == "sharded, rank 0 of 8"
    assert [(type(parameter), parameter.data_ptr()) for parameter in NET.parameters()] == before
    assert not distributed.is_initialized()


def test_one_rank_is_planned_by_its_number() -> None:
    plan = tmmu.plan(sharded, BATCH, world=2, rank="last")
    assert (plan.graph.notes.name, plan.ranks) == ("sharded, rank 1 of 2", ())


def said_once() -> nn.Module:
    """The same, whose first rank says so."""
    if get_rank() == 0:
        warnings.warn("sharded", stacklevel=1)
    return sharded()


def test_where_the_program_asks_for_its_rank_is_known_of_the_plan_of_all() -> None:
    (line,) = tmmu.plan(said_once, BATCH, world=8).rank_reads
    assert line == f"{Path(__file__).name}:{said_once.__code__.co_firstlineno + 2}"
    assert tmmu.plan(sharded, BATCH, world=2).rank_reads == ()


def sharded_by(backend: str) -> nn.Module:
    """The same in a group that the program makes, by a name that it has from before."""
    init_process_group(backend)
    return sharded()


class Maker:
    """What makes it, as an object and as its method."""

    def __call__(self) -> nn.Module:
        return sharded()

    def make(self) -> nn.Module:
        return sharded()


@pytest.mark.parametrize("maker", [partial(sharded_by, backend="nccl"), Maker(), Maker().make])
def test_whatever_makes_the_model_has_copies_of_what_it_reaches(maker: Callable[[], nn.Module]) -> None:
    before = type(NET), [(type(parameter), parameter.data_ptr()) for parameter in NET.parameters()]
    plan = tmmu.plan(maker, BATCH, world=8, rank=0)
    assert plan.eager.total_bytes == tmmu.plan(sharded, BATCH, world=8, rank=0).eager.total_bytes
    assert (type(NET), [(type(parameter), parameter.data_ptr()) for parameter in NET.parameters()]) == before


def test_a_class_with_its_arguments_makes_the_model() -> None:
    assert tmmu.plan(partial(nn.Linear, 64, 3), BATCH, world=8, rank=0).graph.notes.name == "Linear, rank 0 of 8"


@pytest.mark.parametrize(
    ("target", "options", "said"),
    [
        (sharded, {"rank": 3}, "INVALID_CONFIG: rank=3 is one of a world"),
        (sharded, {"world": 2, "rank": 2}, "INVALID_CONFIG: rank 2 is none of 2"),
        (sharded, {"world": True}, "INVALID_CONFIG: world True is not in"),
        (NET, {"world": 2}, "INVALID_CONFIG: with world, a Sequential is made too early"),
        (lambda: 3, {"world": 2, "rank": 0}, "CAPTURE_FAILED: <lambda> makes a int, no module"),
    ],
)
def test_what_is_no_rank_or_makes_no_model_is_refused(target: object, options: dict[str, object], said: str) -> None:
    with pytest.raises(TmmuError) as refused:
        tmmu.plan(target, BATCH, **options)  # type: ignore[arg-type]
    assert str(refused.value).startswith(said)


def in_columns(net: nn.Module, mesh: Any) -> nn.Module:
    """With the columns of its layer cut."""
    from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module  # noqa: PLC0415 - takes a while

    return parallelize_module(net, mesh, {"0": ColwiseParallel()})


def in_shards(net: nn.Module, mesh: Any) -> nn.Module:
    """With shards of its weights."""
    from torch.distributed.fsdp import fully_shard  # noqa: PLC0415 - it takes a while

    return fully_shard(net, mesh=mesh)  # type: ignore[no-any-return]


@pytest.mark.parametrize("cut", [in_columns, in_shards])
@pytest.mark.parametrize("way", [tmmu.plan, tmmu.compile])
def test_a_model_that_is_sharded_already_is_refused_by_its_weight(
    cut: Callable[[nn.Module, Any], nn.Module], way: Callable[..., object]
) -> None:
    with process_group(2, 0):
        mesh = distributed.device_mesh.init_device_mesh("cpu", (2,))
        model = cut(nn.Sequential(nn.Linear(64, 64)), mesh).eval()
        with pytest.raises(TmmuError, match=r"UNSUPPORTED_OP: 0.weight is sharded already, and a live model"):
            way(model, (BATCH,))
