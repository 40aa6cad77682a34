"""Messages about sessions: opened, read, generated in, forked, kept, looked at and closed, from afar.

A session is named by 128 random bits, and belongs to the key that opened it. What a client looks at is *numbered*: the
logits of a session, and each value that it keeps, have an epoch, which grows whenever they change.
"""

from typing import Annotated, Literal, TypeAlias

import msgspec

from tmmu.wire.interface import RequestHeader, WireHeader
from tmmu.wire.limits import Whole
from tmmu.wire.model_messages import ModelText
from tmmu.wire.tensor_forms import TensorForm

SessionText: TypeAlias = Annotated[str, msgspec.Meta(min_length=32, max_length=32)]
NameText: TypeAlias = Annotated[str, msgspec.Meta(max_length=128)]
QosText: TypeAlias = Literal["realtime", "interactive", "batch"]
Seconds: TypeAlias = Annotated[float, msgspec.Meta(gt=0, le=1e6)]
Index: TypeAlias = Annotated[int, msgspec.Meta(ge=-(1 << 62), le=1 << 62)]
MOST_STEPS = 8
"""Of one look at a value."""


class Done(WireHeader, frozen=True):
    """It was done."""


class SessionState(WireHeader, frozen=True):
    """A session. ``length``: tokens in its state; ``capacity``: for how many there is room. ``lease``: seconds."""

    session: str
    model: str
    length: int
    capacity: int
    arena_bytes: int
    epoch: int
    """Of its logits; of what was never computed it is 0."""
    lease: float


class OpenSession(RequestHeader, frozen=True, tag="sessions.open"):
    """A session of a model. ``tokens``: for how many there is room, ``source``: of the longest source that it encodes;
    ``None``: the longest. ``keep``: bytes for values by name. ``lease``: seconds that it outlives its connection.
    ``deadline``: seconds in which each request is to begin its last step.
    """

    answer = SessionState
    model: ModelText
    tokens: Whole | None = None
    source: Whole | None = None
    keep: Whole = 0
    lease: Seconds | None = None
    qos: QosText | None = None
    priority: Annotated[int, msgspec.Meta(ge=0, le=9)] = 0
    deadline: Seconds | None = None


class AttachSession(RequestHeader, frozen=True, tag="sessions.attach"):
    """Goes on with a session, from another connection of the same key."""

    answer = SessionState
    session: SessionText


class ReadTokens(RequestHeader, frozen=True, tag="sessions.read"):
    """Has tokens read; they are the payload, int64. ``is_source``: by the encoder."""

    answer = SessionState
    session: SessionText
    is_source: bool = False


class ForwardTokens(RequestHeader, frozen=True, tag="sessions.forward"):
    """Opens a session with room for the tokens that are the payload, int64, and has them read."""

    answer = SessionState
    model: ModelText
    lease: Seconds | None = None
    qos: QosText | None = None
    deadline: Seconds | None = None


class TokenPart(WireHeader, frozen=True):
    """A token, as soon as it is chosen."""

    token: int


class GenerationEnd(WireHeader, frozen=True):
    """The end of a text; ``state``: of the session then."""

    tokens: int
    reason: Literal["stop", "length"]
    state: SessionState


class GenerateTokens(RequestHeader, frozen=True, tag="sessions.generate"):
    """Has tokens follow a prompt, which is the payload, int64; without one, what was read. ``stop``: tokens that end
    the text, ``None``: the model's own.
    """

    answer = GenerationEnd
    part = TokenPart
    session: SessionText
    count: Annotated[int, msgspec.Meta(ge=1, le=1 << 31)]
    temperature: Annotated[float, msgspec.Meta(ge=0, le=1e6)] = 0.0
    top_k: Annotated[int, msgspec.Meta(ge=0, le=1 << 31)] = 0
    top_p: Annotated[float, msgspec.Meta(gt=0, le=1)] = 1.0
    seed: Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)] | None = None
    stop: Annotated[tuple[Whole, ...], msgspec.Meta(max_length=64)] | None = None


class ForkSession(RequestHeader, frozen=True, tag="sessions.fork"):
    """A session that has read the same."""

    answer = SessionState
    session: SessionText


class CloseSession(RequestHeader, frozen=True, tag="sessions.close"):
    """Ends a session; again it does nothing."""

    answer = Done
    session: SessionText


class IndexStep(WireHeader, frozen=True, tag="index"):
    """An item of a dimension, which goes."""

    dim: Index
    index: Index


class SliceStep(WireHeader, frozen=True, tag="slice"):
    """Items of a dimension."""

    dim: Index
    start: Index | None
    stop: Index | None
    step: Annotated[int, msgspec.Meta(ge=1, le=1 << 62)] = 1


class ReduceStep(WireHeader, frozen=True, tag="reduce"):
    """A dimension, or all, become one value. Without a dimension ``keepdim`` is false."""

    name: Literal["argmax", "argmin", "amax", "amin", "sum", "mean", "norm"]
    dim: Index | None = None
    keepdim: bool = False


class TopStep(WireHeader, frozen=True, tag="topk"):
    """The largest values of a dimension and their places; the last step, with two payloads."""

    k: Annotated[int, msgspec.Meta(ge=1, le=1 << 31)]
    dim: Index = -1


ValueStep: TypeAlias = IndexStep | SliceStep | ReduceStep | TopStep


class TensorsAnswer(WireHeader, frozen=True):
    """Tensors, each a payload. ``value_bytes``: of the value that was looked at.

    ``is_operand``: ``topk``, the last step, would make more bytes than it reads, which this is.
    """

    forms: tuple[TensorForm, ...]
    value_bytes: Whole
    is_operand: bool = False


class LookAtValue(RequestHeader, frozen=True, tag="values.look"):
    """What ``steps`` make of the logits of a session, or of a value that it keeps under ``name``. They run there."""

    answer = TensorsAnswer
    session: SessionText
    epoch: Whole
    name: NameText = ""
    steps: Annotated[tuple[ValueStep, ...], msgspec.Meta(max_length=MOST_STEPS)] = ()


class KeptEntry(WireHeader, frozen=True):
    """A value that a session keeps."""

    name: str
    epoch: int
    form: TensorForm


class KeptList(WireHeader, frozen=True):
    """What a session keeps, in the order in which it was set."""

    values: tuple[KeptEntry, ...]


class KeepValue(RequestHeader, frozen=True, tag="values.keep"):
    """Keeps the payload under a name; without a form, the logits of ``epoch``, which do not travel."""

    answer = KeptList
    session: SessionText
    name: Annotated[str, msgspec.Meta(min_length=1, max_length=128)]
    form: TensorForm | None = None
    epoch: Whole = 0


class ListKept(RequestHeader, frozen=True, tag="values.list"):
    """What a session keeps."""

    answer = KeptList
    session: SessionText


class DropValue(RequestHeader, frozen=True, tag="values.drop"):
    """Keeps a value no longer."""

    answer = KeptList
    session: SessionText
    name: NameText
