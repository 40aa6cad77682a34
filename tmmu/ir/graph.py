"""The graph: buffers, values and ops as columns; an id is a position in a column (docs/spec/ir.md).

A *buffer* is a storage. A *value* is a window on one buffer. An *op* reads values and writes values.
Views are not ops: the op that last changed a buffer writes, beside its own result, every window of that
buffer that is read before the next change; windows of inputs, parameters, constants and state that no op
has changed yet are defined from the start. An op that changes part of a buffer reads what it leaves alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final, TypeAlias, cast

from blake3 import blake3

from tmmu.ir.encoding import cbor
from tmmu.ir.encoding.columns import column_map
from tmmu.ir.ids import BufferId, Bytes, OpId, ValueId
from tmmu.ir.lifetimes import OPTIONAL, STREAM, EagerRun, Lifetimes

FORMAT: Final = "tmmu.ir"
VERSION: Final = 2
"""Of a graph with calls; one without is written, and hashed, as version 1."""
CALL_FREE_VERSION: Final = 1

PARAMETER: Final = "parameter"
CONSTANT: Final = "constant"
INPUT: Final = "input"
STATE: Final = "state"
ACTIVATION: Final = "activation"
GRADIENT: Final = "gradient"
SCRATCH: Final = "scratch"
HOST: Final = "host"
ROLES: Final = (PARAMETER, CONSTANT, INPUT, STATE, ACTIVATION, GRADIENT, SCRATCH, HOST)
PERSISTENT_ROLES: Final = frozenset({PARAMETER, CONSTANT, INPUT, STATE})
UNPLACED_ROLES: Final = frozenset({INPUT, HOST})
"""Of buffers that no arena holds: the caller's, and those in host memory, each in bytes of its own."""
HOST_COPY: Final = "aten.clone.default"
"""The call of an op that copies to the host or back from it."""
FUSED_NAMESPACE: Final = "tmmu_fused"
"""Of operators that stand for groups of ops: ``(Tensor[] reads, Tensor[] changed, int[] scratch) -> Tensor[]``."""

UPDATE_MODULE: Final = "torch.optim:"
"""Before the optimizer's text, the module of ops that update: ``torch.optim:adamw:foreach``."""
FILE_OPTIMIZER: Final = "optimizer(params)"
"""The text of an optimizer that the model's file makes."""
LOSS_MODULE: Final = "loss:"
"""Before a loss of tmmu's own, the module of its ops: ``loss:mse``, ``loss:cross_entropy:dim=2``."""
STAGES: Final = ("forward", "backward", "update")
TARGETS: Final = ("cuda", "cpu")
PHASES: Final = (
    "unknown",
    "forward",
    "llm_prefill",
    "llm_decode",
    "vision_encoding",
    "vision_decoding",
    "multimodal_fusion",
    "training",
    "text_encoding",
    "audio_encoding",
    "audio_decoding",
)
MODALITIES: Final = ("text", "vision", "audio", "fusion", "unknown", "tabular")

DTYPE_BYTES: Final = {
    "bool": 1,
    "uint8": 1,
    "int8": 1,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
    "float8_e4m3fnuz": 1,
    "float8_e5m2fnuz": 1,
    "float8_e8m0fnu": 1,
    "float4_e2m1fn_x2": 1,
    "uint16": 2,
    "int16": 2,
    "float16": 2,
    "bfloat16": 2,
    "uint32": 4,
    "int32": 4,
    "float32": 4,
    "complex32": 4,
    "uint64": 8,
    "int64": 8,
    "float64": 8,
    "complex64": 8,
    "complex128": 16,
}

Overwrite: TypeAlias = tuple[ValueId, ValueId]
"""(written value, read value) of one op, which may be computed in the same bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Buffers:
    """Storages: size in bytes and role."""

    bytes: tuple[Bytes, ...]
    role: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.bytes)

    @property
    def ids(self) -> Sequence[BufferId]:
        """Every id, ascending."""
        return cast("Sequence[BufferId]", range(len(self)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Values:
    """Windows: ``offset`` in bytes from the start of ``buffer``; ``shape`` and ``stride`` in elements."""

    buffer: tuple[BufferId, ...]
    offset: tuple[Bytes, ...]
    shape: tuple[tuple[int, ...], ...]
    stride: tuple[tuple[int, ...], ...]
    dtype: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.buffer)

    @property
    def ids(self) -> Sequence[ValueId]:
        """Every id, ascending."""
        return cast("Sequence[ValueId]", range(len(self)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Ops:
    """Operator calls. ``overwrites`` are (written value, read value) pairs that may share their bytes."""

    target: tuple[str, ...]
    reads: tuple[tuple[ValueId, ...], ...]
    writes: tuple[tuple[ValueId, ...], ...]
    overwrites: tuple[tuple[Overwrite, ...], ...]
    saves: tuple[tuple[ValueId, ...], ...]
    recompute: tuple[bool, ...]
    stage: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.target)

    @property
    def ids(self) -> Sequence[OpId]:
        """Every id, ascending."""
        return cast("Sequence[OpId]", range(len(self)))


@dataclass(frozen=True, slots=True, kw_only=True)
class OpNotes:
    """Annotations of ops, which the planner does not read. ``source`` is ``file:line``, relative to the model."""

    phase: tuple[str, ...]
    modality: tuple[str, ...]
    flops: tuple[int, ...]
    module: tuple[str, ...]
    source: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OpCalls:
    """The call behind each op, one row per op: what makes it again without tracing.

    ``call`` is a row of ``texts`` (``call_text.py``), ``operands`` the values in its places, arguments before results.
    ``effect``: what comes of an op beside its values. ``numbers``: number inputs of the step, such as a learning rate,
    which are notes: neither a hash nor a plan depends on them.
    """

    texts: tuple[bytes, ...]
    call: tuple[int, ...]
    operands: tuple[tuple[ValueId, ...], ...]
    effect: tuple[str, ...]
    numbers: tuple[tuple[bytes, ...], ...]

    def __len__(self) -> int:
        return len(self.call)


PURE: Final = "pure"
RANDOM: Final = "random"
STATEFUL: Final = "state"
ONCE: Final = "once"
EFFECTS: Final = (PURE, RANDOM, STATEFUL, ONCE)
"""An op that may run again or not at all; one that draws; one that writes what outlives the step; one whose effects
nobody knows, which runs exactly once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Notes:
    """Annotations; no plan byte depends on them. ``eager``: what the model holds when it is run as it is."""

    name: str
    buffers: tuple[str, ...]
    ops: OpNotes
    eager: EagerRun | None = None


@dataclass(frozen=True, kw_only=True)
class Graph:
    """A program over memory: what is stored, which windows exist, which ops read and write them."""

    target: str
    buffers: Buffers
    values: Values
    ops: Ops
    inputs: tuple[ValueId, ...]
    outputs: tuple[ValueId, ...]
    notes: Notes
    calls: OpCalls | None = None
    """``None`` for a graph of version 1, and while passes rewrite it."""

    @property
    def version(self) -> int:
        """Of the file that it is written to."""
        return CALL_FREE_VERSION if self.calls is None else VERSION

    @cached_property
    def ir_hash(self) -> bytes:
        """32 bytes: BLAKE3 of the canonical encoding without ``notes``."""
        return blake3(cbor.encode(semantic_map(self))).digest()


def semantic_map(graph: Graph) -> dict[str, object]:
    """The map that ``ir_hash`` covers: all that the planner reads, and the calls."""
    ops, calls = column_map(graph.ops), graph.calls
    table: dict[str, object] = {
        "format": FORMAT,
        "version": graph.version,
        "target": graph.target,
        "buffers": column_map(graph.buffers),
        "values": column_map(graph.values),
        "ops": ops,
        "inputs": graph.inputs,
        "outputs": graph.outputs,
    }
    if calls is None:
        return table
    ops |= {"call": calls.call, "operands": calls.operands, "effect": calls.effect}
    return table | {"calls": calls.texts}


def notes_map(graph: Graph) -> dict[str, object]:
    """The key ``notes`` of an IR file."""
    notes, ops = graph.notes, column_map(graph.notes.ops)
    table: dict[str, object] = {"name": notes.name, "buffers": {"name": notes.buffers}, "ops": ops}
    if graph.calls is None:
        return table
    ops["numbers"] = graph.calls.numbers
    return table if notes.eager is None else table | {"eager": eager_map(notes.eager)}


def eager_map(eager: EagerRun) -> dict[str, object]:
    """The key ``notes.eager`` of an IR file."""
    columns = column_map(eager) | {"storages": lifetimes_map(eager.storages), "host": lifetimes_map(eager.host)}
    return {key: column for key, column in columns.items() if key not in OPTIONAL or getattr(eager, key)}


def lifetimes_map(table: Lifetimes) -> dict[str, object]:
    """The columns of a table of ``notes.eager``."""
    return {name: column for name, column in column_map(table).items() if name != STREAM or column}


def encode_graph(graph: Graph) -> bytes:
    """The bytes of an IR file."""
    return cbor.encode(semantic_map(graph) | {"notes": notes_map(graph)})


def blank_notes(graph: Graph) -> Graph:
    """The same graph with every annotation at its neutral value; number inputs stay, as calls need them."""
    n = len(graph.ops)
    ops = OpNotes(phase=("unknown",) * n, modality=("unknown",) * n, flops=(0,) * n, module=("",) * n, source=("",) * n)
    return replace(graph, notes=Notes(name="", buffers=("",) * len(graph.buffers), ops=ops))
