"""Recorded graphs by hand, and a connection that sends them."""

from collections.abc import Sequence
from itertools import count
from typing import Any

import torch
from blake3 import blake3

from tmmu.passes.capture.replace import TRACE_LOCK
from tmmu.server.graphs.graph_limits import GraphLimits
from tmmu.server.graphs.graph_service import GraphService
from tmmu.wire.graph import (
    ContentUpload,
    ContentWindow,
    GraphAnswer,
    GraphCall,
    OpenDevice,
    OperatorForm,
    RecordedGraph,
    RunGraph,
    TensorSlot,
    form_hash,
    graph_hash,
)
from tmmu.wire.in_process import InProcessConnection
from tmmu.wire.service_table import ServiceTable

ADD = OperatorForm("aten.add.Tensor", (TensorSlot(0), TensorSlot(1)), ())
RELU = OperatorForm("aten.relu.default", (TensorSlot(0),), ())
FOUR = (0, (4,), (1,), "float32")


def window(content: int, *place: Any) -> ContentWindow:
    return ContentWindow(content, *(place or FOUR))


def sum_graph() -> RecordedGraph:
    """``relu(a + b)`` of four numbers each; the sum is not kept."""
    return RecordedGraph(
        inputs=(16, 16),
        results=(16, 16),
        windows=(window(0), window(1), window(2), window(3)),
        forms=(form_hash(ADD), form_hash(RELU)),
        calls=(GraphCall(0, (0, 1), (2,)), GraphCall(1, (2,), (3,))),
        outputs=(3,),
    )


class Peer:
    """A client that speaks the wire by hand."""

    def __init__(self, service: GraphService | None = None, *, client: str = "anybody", **limits: Any) -> None:
        self.service = service or GraphService(GraphLimits(**limits))
        self.connection = InProcessConnection(ServiceTable([self.service]), client=client)
        opened, _ = self.connection.request(OpenDevice(torch=str(torch.__version__), seed=0))
        self.epoch: bytes = opened.epoch
        self._numbers = count()

    def send(self, payloads: Sequence[bytes] = (), **fields: Any) -> tuple[GraphAnswer, list[bytes]]:
        header = RunGraph(**({"epoch": self.epoch} | fields))
        answer, beside = self.connection.request(header, [memoryview(data) for data in payloads])
        return answer, [bytes(data) for data in beside]

    def upload(self, data: bytes) -> int:
        number = next(self._numbers)
        self.send([data], uploads=(ContentUpload(number, len(data), blake3(data).digest()),))
        return number

    def number(self) -> int:
        return next(self._numbers)

    def run(
        self, graph: RecordedGraph, inputs: Sequence[int], *forms: OperatorForm, **fields: Any
    ) -> tuple[GraphAnswer, list[int]]:
        outputs = [self.number() for _ in graph.outputs]
        answer, _ = self.send(
            graph=graph_hash(graph), body=graph, forms=forms, inputs=tuple(inputs), outputs=tuple(outputs), **fields
        )
        return answer, outputs

    def fetch(self, number: int, *place: Any) -> torch.Tensor:
        shown = window(number, *place)
        answer, (data,) = self.send(fetched=(shown,))
        assert answer.failure is None
        return torch.frombuffer(bytearray(data), dtype=getattr(torch, shown.dtype))


def floats(*numbers: float) -> bytes:
    return torch.tensor(numbers, dtype=torch.float32).numpy().tobytes()


def sum_inputs(peer: Peer) -> list[int]:
    """What ``sum_graph`` adds."""
    return [peer.upload(floats(1, 2, 3, 4)), peer.upload(floats(1, 1, 1, -9))]


def sum_of_two(peer: Peer) -> list[float]:
    _, (result,) = peer.run(sum_graph(), sum_inputs(peer), ADD, RELU)
    return [float(number) for number in peer.fetch(result)]


def relu_graph() -> RecordedGraph:
    return RecordedGraph(
        inputs=(16,),
        results=(16,),
        windows=(window(0), window(1)),
        forms=(form_hash(RELU),),
        calls=(GraphCall(0, (0,), (1,)),),
        outputs=(1,),
    )


def try_lock() -> bool:
    is_free = TRACE_LOCK.acquire(blocking=False)
    if is_free:
        TRACE_LOCK.release()
    return is_free


def chain_of(forms: Sequence[OperatorForm], calls: int) -> RecordedGraph:
    """Calls one behind the other, which take turns with the forms."""
    return RecordedGraph(
        inputs=(16,),
        results=(16,) * calls,
        windows=tuple(window(content) for content in range(calls + 1)),
        forms=tuple(map(form_hash, forms)),
        calls=tuple(GraphCall(number % len(forms), (number,), (number + 1,)) for number in range(calls)),
        outputs=(calls,),
    )


def plus(number: int) -> tuple[RecordedGraph, OperatorForm]:
    form = OperatorForm("aten.add.Tensor", (TensorSlot(0), number), ())
    return chain_of([form], 1), form
