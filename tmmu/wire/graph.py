"""A recorded graph as it travels: calls of operators on windows of contents. Numbers and names alone, no torch.

A *content* is a storage on the server: so many bytes, seen by nobody but through windows. A graph numbers the contents
that it touches: its inputs first, then those that its calls make. Views are no calls, they are windows. Equal
recordings have equal graphs, whatever contents they ran on, and a graph is named by the hash of its encoding.
"""

from typing import Annotated, Final, TypeAlias

import msgspec
from blake3 import blake3

from tmmu.wire.interface import RequestHeader, WireHeader
from tmmu.wire.limits import MOST_DIMENSIONS

MOST_CALLS: Final = 4096
"""Of one graph; a recording runs before it has more."""
MOST_CONTENTS: Final = 16_384
"""Inputs and results of one graph, windows, and contents that one request names."""
NO_CONTENT: Final = -1
"""Stands for a result that is no new content: an argument that was written, or nothing."""

Natural: TypeAlias = Annotated[int, msgspec.Meta(ge=0, lt=1 << 62)]
Hash: TypeAlias = Annotated[bytes, msgspec.Meta(min_length=32, max_length=32)]
Name: TypeAlias = Annotated[str, msgspec.Meta(max_length=100)]
Sizes: TypeAlias = Annotated[tuple[Natural, ...], msgspec.Meta(max_length=MOST_DIMENSIONS)]
Numbers: TypeAlias = Annotated[tuple[Natural, ...], msgspec.Meta(max_length=MOST_CONTENTS)]


class TensorSlot(msgspec.Struct, frozen=True, array_like=True, tag="t", forbid_unknown_fields=True):
    """Stands for a tensor among arguments: the window with this position in ``GraphCall.tensors``."""

    position: Natural


class NamedConstant(msgspec.Struct, frozen=True, array_like=True, tag="n", forbid_unknown_fields=True):
    """A dtype, layout, memory format or device; ``kind`` says which, ``name`` is torch's without ``torch.``."""

    kind: Name
    name: Name


class ComplexNumber(msgspec.Struct, frozen=True, array_like=True, tag="z", forbid_unknown_fields=True):
    """A complex number."""

    real: float
    imaginary: float


class ArgumentList(msgspec.Struct, frozen=True, array_like=True, tag="l", forbid_unknown_fields=True):
    """A list of arguments, which has no lists in it."""

    items: Annotated["tuple[PlainArgument, ...]", msgspec.Meta(max_length=MOST_CONTENTS)]


PlainArgument: TypeAlias = bool | int | float | Name | TensorSlot | NamedConstant | ComplexNumber | None
Argument: TypeAlias = bool | int | float | Name | TensorSlot | NamedConstant | ComplexNumber | ArgumentList | None


class OperatorForm(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """An operator such as ``aten.add.Tensor`` and its arguments, without saying which tensors."""

    operator: Name
    args: Annotated[tuple[Argument, ...], msgspec.Meta(max_length=64)]
    kwargs: Annotated[tuple[tuple[Name, Argument], ...], msgspec.Meta(max_length=64)]


class ContentWindow(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A strided view of a content; ``offset``, ``shape`` and ``stride`` in elements."""

    content: Natural
    offset: Natural
    shape: Sizes
    stride: Sizes
    dtype: Name


class GraphCall(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A call: the number of its form, and of the windows that it reads; ``results``: those of new contents.

    ``results`` has an entry per leaf of what the operator returns, ``NO_CONTENT`` for what is none.
    """

    form: Natural
    tensors: Numbers
    results: Annotated[tuple[Annotated[int, msgspec.Meta(ge=-1)], ...], msgspec.Meta(max_length=MOST_CONTENTS)]


class RecordedGraph(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Calls in their order. ``inputs`` and ``results``: bytes of each content; ``outputs``: those that outlive the run.

    ``forms`` are hashes of call forms.
    """

    inputs: Numbers
    results: Numbers
    windows: Annotated[tuple[ContentWindow, ...], msgspec.Meta(max_length=MOST_CONTENTS)]
    forms: Annotated[tuple[Hash, ...], msgspec.Meta(max_length=MOST_CALLS)]
    calls: Annotated[tuple[GraphCall, ...], msgspec.Meta(max_length=MOST_CALLS)]
    outputs: Numbers


class ContentUpload(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A new content whose bytes are the payload at the same position; ``hash``: BLAKE3 of them."""

    content: Natural
    bytes: Natural
    hash: Hash


class DeviceOpened(WireHeader, frozen=True):
    """``epoch`` names this opening: references from another one are stale. ``torch``: the server's version."""

    epoch: Hash
    torch: Name


class OpenDevice(RequestHeader, frozen=True, tag="graphs.open"):
    """Begins recording on this connection; ``seed`` is that of the session's generator."""

    answer = DeviceOpened

    torch: Name
    seed: Annotated[int, msgspec.Meta(ge=-(1 << 63), le=(1 << 63) - 1)]


class RunFailure(WireHeader, frozen=True):
    """Why a run ended before its end: nothing of it is kept, and contents that it wrote are half written."""

    code: Name
    what: str
    fix: str


class GraphAnswer(WireHeader, frozen=True):
    """What ran, or what the server lacks to run it: the graph's body, or forms by hash. Payloads: what was fetched.

    ``planned``: whether it ran inside a plan. ``windows`` are those of results whose shapes nobody knew before.
    ``failure``: of the run; uploads are there all the same, and what was to be freed is free.
    """

    lacks_graph: bool = False
    lacks_forms: tuple[Hash, ...] = ()
    planned: bool = False
    windows: tuple[ContentWindow, ...] = ()
    failure: RunFailure | None = None


class RunGraph(RequestHeader, frozen=True, tag="graphs.run"):
    """Uploads, runs a graph, fetches and frees, in this order.

    ``inputs`` and ``outputs``: contents by reference, in the graph's order. ``body`` and ``forms``: what the server may
    lack. ``seed``: of the generator, before the run. ``fetched``: windows whose elements come back, row-major.
    ``is_sized``: one call, whose results have the sizes that the values decide; the answer says them.
    """

    answer = GraphAnswer

    epoch: Hash
    graph: Hash | None = None
    inputs: Numbers = ()
    outputs: Numbers = ()
    body: RecordedGraph | None = None
    forms: Annotated[tuple[OperatorForm, ...], msgspec.Meta(max_length=MOST_CALLS)] = ()
    uploads: Annotated[tuple[ContentUpload, ...], msgspec.Meta(max_length=MOST_CONTENTS)] = ()
    freed: Numbers = ()
    seed: Annotated[int, msgspec.Meta(ge=-(1 << 63), le=(1 << 63) - 1)] | None = None
    fetched: Annotated[tuple[ContentWindow, ...], msgspec.Meta(max_length=MOST_CONTENTS)] = ()
    is_sized: bool = False


class UploadsTaken(WireHeader, frozen=True):
    """``lacks``: what of it is not there whole; then none was taken."""

    lacks: tuple[Hash, ...] = ()


class TakeUploads(RequestHeader, frozen=True, tag="graphs.take"):
    """Contents of bytes that the client has uploaded before (``uploads.put``), which do not travel again."""

    answer = UploadsTaken

    epoch: Hash
    uploads: Annotated[tuple[ContentUpload, ...], msgspec.Meta(max_length=MOST_CONTENTS)]


def form_hash(form: OperatorForm) -> bytes:
    """32 bytes that name a call form: BLAKE3 of its encoding."""
    return blake3(msgspec.msgpack.encode(form)).digest()


def graph_hash(graph: RecordedGraph) -> bytes:
    """32 bytes that name a graph: BLAKE3 of its encoding, hashes of its forms included."""
    return blake3(msgspec.msgpack.encode(graph)).digest()
