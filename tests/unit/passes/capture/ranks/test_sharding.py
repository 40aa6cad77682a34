"""Torch finds out once how equal tensors of a list are sharded: the trace is what it was, and the work is not."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest
import torch
from torch import nn

from tmmu.ir.graph import Graph
from tmmu.passes.capture import recording
from tmmu.passes.capture.ranks.process_group import process_group
from tmmu.passes.capture.ranks.sharding import distinct_columns
from tmmu.passes.capture.request import CaptureRequest
from tmmu.passes.capture.trace import capture_live
from tmmu.passes.pipeline import lower_program
from tmmu.torch_private import STRIDED_FLAG

tensors = pytest.importorskip("torch.distributed.tensor")
propagation: Any = pytest.importorskip("torch.distributed.tensor._sharding_prop")
schemas: Any = pytest.importorskip("torch.distributed.tensor._op_schema")
LAYERS = 12


def sharded() -> nn.Module:
    """Layers of two kinds, cut in columns and then sharded: a dimension is cut twice."""
    from torch.distributed.fsdp import fully_shard  # noqa: PLC0415 - it takes a while
    from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module  # noqa: PLC0415

    mesh = torch.distributed.device_mesh.init_device_mesh("cuda", (2, 2), mesh_dim_names=("shards", "columns"))
    net = nn.Sequential(*(nn.Linear(16, 16, bias=index % 3 == 0) for index in range(LAYERS)))
    for layer in net:
        parallelize_module(layer, mesh["columns"], ColwiseParallel(output_layouts=tensors.Replicate()))
        fully_shard(layer, mesh=mesh["shards"])
    return fully_shard(net, mesh=mesh["shards"])  # type: ignore[no-any-return]


def traced(monkeypatch: pytest.MonkeyPatch) -> tuple[Graph, int]:
    """The graph of a training step, and how many strategies torch looked at whole lists for."""
    calls = []
    original = getattr(propagation, STRIDED_FLAG)

    def count(strategy: Any, op_schema: Any) -> None:
        if "_foreach_" in str(op_schema.op):
            calls.append(strategy)
        original(strategy, op_schema)

    monkeypatch.setattr(propagation, STRIDED_FLAG, count)
    request = CaptureRequest(model="", mode="backward", loss="sum", optimizer="adamw", world=4, rank=0)
    graph = lower_program(capture_live(sharded, (torch.zeros(2, 16),), request)).graph
    monkeypatch.undo()
    return graph, len(calls)


def test_a_trace_is_the_same_with_less_work(monkeypatch: pytest.MonkeyPatch) -> None:
    graph, once = traced(monkeypatch)
    monkeypatch.setattr(recording, "equal_shards_once", nullcontext)
    each_graph, each = traced(monkeypatch)
    assert graph.ir_hash == each_graph.ir_hash
    assert graph.notes == each_graph.notes
    kinds, weights = 2, LAYERS + LAYERS // 3
    lists = each // (weights + kinds)  # of all weights, and before that of one of each kind, whose states all take
    assert each == lists * (weights + kinds) > 0
    assert once == lists * (kinds + kinds)


@contextmanager
def columns_of(*placements: tuple[Any, Any]) -> Iterator[Any]:
    """A call on two lists of tensors with these placements."""
    with process_group(2, 0):
        mesh = torch.distributed.device_mesh.init_device_mesh("cpu", (2,))
        meta = tensors.DTensor.from_local(torch.zeros(1), mesh, (tensors.Replicate(),))._spec.tensor_meta

        def strategy(placement: Any) -> Any:
            return schemas.OpStrategy([schemas.OpSpec(type(spec)(mesh, (placement,), tensor_meta=meta))])

        spec = tensors.DTensor.from_local(torch.zeros(1), mesh, (tensors.Replicate(),))._spec
        lists = [schemas.TupleStrategy([strategy(column[row]) for column in placements]) for row in range(2)]
        yield schemas.OpSchema(torch.ops.aten._foreach_add.List, tuple(lists), {})


def test_columns_are_equal_where_all_their_tensors_are() -> None:
    cut, whole = tensors.Shard(0), tensors.Replicate()
    with columns_of((cut, cut), (cut, whole), (cut, cut), (whole, cut), (cut, whole)) as schema:
        columns = distinct_columns(schema, None)
        assert columns is not None
        assert columns.kind_of == (0, 1, 0, 2, 1)
        assert [len(argument.children) for argument in columns.schema.args_schema] == [3, 3]
        spread = columns.spread(schemas.TupleStrategy(["a", "b", "c"]))
        assert spread.children == ["a", "b", "a", "c", "b"]
        metas = distinct_columns(schema, ["x", "x", "y", "x", "x"])
        assert metas is not None
        assert (metas.kind_of, metas.metas) == ((0, 1, 2, 3, 1), ["x", "x", "y", "x"])
    with columns_of((cut, cut), (cut, whole)) as schema:
        assert distinct_columns(schema, None) is None, "there is nothing to spare"
        assert distinct_columns(schemas.OpSchema(schema.op, (3.0,), {}), None) is None
