"""What means harm: operators that may not run, sizes that values decide, and graphs and headers that are broken."""

import random

import msgspec
import pytest
import torch

from tests.unit.server.graphs.recordings import ADD, RELU, Peer, sum_graph, sum_inputs, window
from tmmu.errors import (
    InvalidRequest,
    TmmuError,
    UnsupportedOp,
)
from tmmu.passes.operators.schema import argument_schema
from tmmu.server.graphs.call_forms import operator_named
from tmmu.torch_private import OpOverloadPacket
from tmmu.wire.graph import (
    ArgumentList,
    GraphCall,
    OperatorForm,
    RecordedGraph,
    RunGraph,
    TensorSlot,
    form_hash,
    graph_hash,
)
from tmmu.wire.graph_operators import GRAPH_OPERATORS


@pytest.mark.parametrize(
    ("form", "divisors"),
    [
        (OperatorForm("aten.div.Tensor_mode", (TensorSlot(0), TensorSlot(1)), (("rounding_mode", "trunc"),)), (-1, 2)),
        (OperatorForm("aten.div_.Tensor_mode", (TensorSlot(0), TensorSlot(1)), (("rounding_mode", "trunc"),)), (-1, 2)),
        (OperatorForm("aten.div.Scalar_mode", (TensorSlot(0), -1), (("rounding_mode", "trunc"),)), (-1, -1)),
    ],
    ids=["tensors", "in place", "a number"],
)
def test_no_division_of_whole_numbers_ends_the_process(form: OperatorForm, divisors: tuple[int, int]) -> None:
    least, pair = -(1 << 63), (0, (2,), (1,), "int64")
    is_in_place, has_tensors = "div_" in form.operator, TensorSlot(1) in form.args
    graph = RecordedGraph(
        inputs=(16, 16)[: 1 + has_tensors],
        results=() if is_in_place else (16,),
        windows=tuple(window(content, *pair) for content in range(3))[: 1 + has_tensors + (not is_in_place)],
        forms=(form_hash(form),),
        calls=(GraphCall(0, (0, 1)[: 1 + has_tensors], (-1 if is_in_place else 1 + has_tensors,)),),
        outputs=() if is_in_place else (1 + has_tensors,),
    )
    peer = Peer()
    divisor = peer.upload(torch.tensor(divisors).numpy().tobytes())
    for is_planned in (False, True):
        dividend = peer.upload(torch.tensor([least, 6]).numpy().tobytes())
        answer, outputs = peer.run(graph, [dividend, divisor][: 1 + has_tensors], form)
        assert (answer.failure, answer.planned) == (None, is_planned)
        assert peer.fetch((*outputs, dividend)[0], *pair).tolist() == [least, 6 // divisors[1]]


@pytest.mark.parametrize(
    ("form", "places", "error"),
    [
        (
            OperatorForm("aten.masked_select.default", (TensorSlot(0), TensorSlot(1)), ()),
            [(0, (1 << 20, 1), (0, 0), "float32"), (0, (1, 1 << 20), (0, 0), "bool")],
            "QUOTA_EXCEEDED",
        ),
        (
            OperatorForm("aten.masked_select.default", (TensorSlot(0), TensorSlot(1)), ()),
            [(0, (1 << 12, 1), (0, 0), "float32"), (0, (1, 1 << 12), (0, 0), "bool")],
            "QUOTA_EXCEEDED",
        ),
        (
            OperatorForm("aten.index.Tensor", (TensorSlot(1), ArgumentList((TensorSlot(0),))), ()),
            [(0, (1, 1 << 12), (0, 0), "int64"), (0, (1, 1 << 12), (0, 0), "bool")],
            "INVALID_REQUEST",
        ),
        (
            OperatorForm("aten.index.Tensor_hacked_twin", (TensorSlot(0), ArgumentList((TensorSlot(1),))), ()),
            [(0, (1, 1 << 12), (0, 0), "float32"), (0, (1 << 12,), (0,), "int64")],
            "INVALID_REQUEST",
        ),
    ],
    ids=["more elements than a window", "more bytes than a quota", "an index for a mask", "another overload"],
)
def test_a_sized_call_looks_at_no_more_than_its_client_may(
    form: OperatorForm, places: list[tuple[object, ...]], error: str
) -> None:
    graph = RecordedGraph(
        inputs=(8, 8),
        results=(),
        windows=tuple(window(content, *place) for content, place in enumerate(places)),
        forms=(form_hash(form),),
        calls=(GraphCall(0, (0, 1), ()),),
        outputs=(),
    )
    peer = Peer(bytes=16 << 20)
    numbers = tuple(peer.upload(bytes(8)) for _ in range(2))
    answer, _ = peer.send(body=graph, forms=(form,), inputs=numbers, outputs=(99,), is_sized=True)
    assert answer.failure is not None
    assert answer.failure.code == error
    assert peer.service.usage_of("anybody").bytes == 16


def test_every_operator_of_the_table_is_torchs_and_takes_nothing_but_values() -> None:
    allowed = 0
    for name in GRAPH_OPERATORS:
        packet_name, _, overload = name.partition(".")
        packet_name += "" if hasattr(torch.ops.aten, packet_name) else "_"
        packet = getattr(torch.ops.aten, packet_name)
        assert isinstance(packet, OpOverloadPacket), name
        for overload_name in [overload] if overload else packet.overloads():
            try:
                operator = operator_named(f"aten.{packet_name}.{overload_name}")
            except UnsupportedOp:
                continue
            kinds = " ".join(kind for _, kind, _ in argument_schema(operator))
            assert not any(word in kinds for word in ("Storage", "Stream", "Any", "Dict", "t[]", "Tuple"))
            allowed += 1
    assert allowed > 500
    for name in ("add.t", "sort.str", "copy.Dict_str", "pow.int", "index.str", "add.str"):
        with pytest.raises(UnsupportedOp):
            operator_named(f"aten.{name}")
    refused = "empty from_file set_ resize_ _embedding_bag _grouped_mm _standard_gamma bincount as_strided lstm gru"
    assert not set(refused.split()) & GRAPH_OPERATORS


def mutate(value: object, draw: random.Random) -> object:
    """The same nested value with one leaf, or one length, changed."""
    if isinstance(value, (list, tuple)):
        items = list(value)
        if items and draw.random() < 0.85:
            at = draw.randrange(len(items))
            items[at] = mutate(items[at], draw)
        elif draw.random() < 0.5 and items:
            del items[draw.randrange(len(items))]
        else:
            items.append(draw.choice([0, 1, items[-1] if items else 2, -1, "x", None]))
        return items
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return draw.choice([value + 1, value - 1, 0, 1 << 40, (1 << 62) - 1, -1, 1.5])
    if isinstance(value, str):
        return draw.choice(["aten.zeros.default", "aten.mm.default", "float64", "bool", "", "n" * 200, value[:-1]])
    return draw.choice([0, None, "x", [], value])


def test_mutated_graphs_are_refused_or_run_and_never_break_the_session() -> None:
    draw = random.Random(0)
    peer = Peer(bytes=1 << 20)
    inputs = sum_inputs(peer)
    usage = peer.service.usage_of("anybody")
    outcomes = {"run": 0, "refused": 0}
    for _ in range(1500):
        body = msgspec.to_builtins(sum_graph(), builtin_types=(bytes,))
        forms = msgspec.to_builtins((ADD, RELU))
        for _ in range(draw.randint(1, 3)):
            body, forms = (mutate(body, draw), forms) if draw.random() < 0.7 else (body, mutate(forms, draw))
        try:
            graph = msgspec.convert(body, RecordedGraph, builtin_types=(bytes,))
            known = msgspec.convert(forms, tuple[OperatorForm, ...])
            answer, outputs = peer.run(graph, inputs, *known)
        except (TmmuError, msgspec.ValidationError):
            outcomes["refused"] += 1
        else:
            outcomes["run" if answer.failure is None and not answer.lacks_forms else "refused"] += 1
            peer.send(freed=tuple(outputs))
        assert usage.bytes <= 1 << 20
    assert min(outcomes.values()) > 5, outcomes
    answer, (output,) = peer.run(sum_graph(), inputs, ADD, RELU)
    assert answer.failure is None
    assert peer.fetch(output).shape == (4,)


def test_mutated_headers_are_refused() -> None:
    draw = random.Random(1)
    peer = Peer()
    inputs, graph = sum_inputs(peer), sum_graph()
    header = RunGraph(
        epoch=peer.epoch, graph=graph_hash(graph), body=graph, forms=(ADD, RELU), inputs=tuple(inputs), outputs=(7,)
    )
    encoded = msgspec.msgpack.encode(header)
    table = peer.connection._table
    for _ in range(2000):
        data = bytearray(encoded)
        for _ in range(draw.randint(1, 4)):
            data[draw.randrange(len(data))] = draw.randrange(256)
        try:
            table.decode(bytes(data))
        except InvalidRequest:
            continue


def test_a_list_has_a_few_numbers_for_each_dimension() -> None:
    shifts = ArgumentList((1,) * 129)
    with pytest.raises(InvalidRequest, match="a list of more than 128 numbers"):
        Peer().send(forms=(OperatorForm("aten.roll.default", (TensorSlot(0), shifts, shifts), ()),))
