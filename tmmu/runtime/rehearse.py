"""A program run once in its plan, with weights and inputs of a seed or of a file, and held against a plain run."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch
from blake3 import blake3

from tmmu.errors import InvalidConfig, PlanUnsound
from tmmu.ir.calls import Program
from tmmu.ir.graph import STATE, Graph
from tmmu.ir.plan import Plan
from tmmu.runtime.bind import bind
from tmmu.runtime.executor import Executor
from tmmu.runtime.places import extents
from tmmu.runtime.reference import Plain
from tmmu.runtime.sizing import require_free
from tmmu.runtime.unplanned import Unplanned

SPREAD: Final = 0.05
"""Of random weights: small enough that deep models stay finite."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rehearsal:
    """What a run showed: the outputs' types, the bytes taken, what was allocated beside them.

    ``checked`` counts the outputs and states that were compared, 0 where none were.
    """

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    steps: int
    peak_bytes: Mapping[str, int]
    input_bytes: int
    unplanned: tuple[Unplanned, ...]
    checked: int


def rehearse(  # noqa: PLR0913 - what is run, with what, and how closely
    program: Program,
    plan: Plan,
    *,
    token: bytes,
    names: Sequence[str],
    constants: Mapping[str, torch.Tensor],
    seed: int,
    weights: Path | None = None,
    check: bool = False,
) -> Rehearsal:
    """Bound and run once, a value for each of ``names``. With ``check``, ``PLAN_UNSOUND`` unless outputs and states
    have the bits of a plain run.
    """
    require_free(sum(extents(plan).bytes.values()), torch.device("cpu"))
    unknown = [name for name in names if name not in constants]
    given = dict(constants) | (read_weights(weights) if weights else random_weights(program.graph, unknown, seed))
    executor = bind(program, plan, token=token, weights=given)
    inputs = {one.name: _drawn(f"input:{one.name}", one.shape, one.dtype, seed) for one in executor.inputs}
    torch.manual_seed(seed)
    outputs = executor.run({name: tensor.clone() for name, tensor in inputs.items()})
    checked = _checked(program, executor, given, inputs, outputs, seed) if check else 0
    return Rehearsal(
        inputs=tuple(f"{one.name} {_type(inputs[one.name])}" for one in executor.inputs),
        outputs=tuple(map(_type, outputs)),
        steps=len(plan.order),
        peak_bytes={name: usage.peak for name, usage in executor.segments.usage.items()},
        input_bytes=sum(tensor.numel() * tensor.element_size() for tensor in inputs.values()),
        unplanned=executor.unplanned,
        checked=checked,
    )


def random_weights(graph: Graph, names: Sequence[str], seed: int) -> dict[str, torch.Tensor]:
    """A value by (seed, name) for each of these buffers that is read; ``INVALID_CONFIG`` for an integer one."""
    dtypes: dict[int, str] = {}
    for buffer, dtype in zip(graph.values.buffer, graph.values.dtype, strict=True):
        dtypes.setdefault(buffer, dtype)
    found: dict[str, torch.Tensor] = {}
    wanted = frozenset(names)
    for buffer, name in enumerate(graph.notes.buffers):
        if name not in wanted or buffer not in dtypes:
            continue
        dtype = getattr(torch, dtypes[buffer])
        if not dtype.is_floating_point:
            raise InvalidConfig(f"{name} is {dtype} and depends on more than numbers", fix="give it with --weights")
        count = graph.buffers.bytes[buffer] // dtype.itemsize
        found[name] = _drawn(f"weight:{name}", (count,), dtype, seed)
    return found


def read_weights(path: Path) -> dict[str, torch.Tensor]:
    """Every tensor of a safetensors file, or of all such files in a folder, by name."""
    try:
        from safetensors.torch import load_file  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise InvalidConfig("safetensors is not installed", fix="pip install 'tmmu[hf]'") from error
    files = sorted(path.glob("*.safetensors")) if path.is_dir() else [path]
    if not files or not all(file.is_file() for file in files):
        raise InvalidConfig(f"no safetensors file at {path}", fix="name a file, or a folder that has some")
    found: dict[str, torch.Tensor] = {}
    for file in files:
        try:
            found.update(load_file(file))
        except Exception as error:
            said = " ".join(str(error).split())[:200]
            raise InvalidConfig(f"{file} is no safetensors file: {said}", fix="check the path") from error
    return found


def _drawn(name: str, shape: tuple[int, ...], dtype: torch.dtype, seed: int) -> torch.Tensor:
    """Normal around 0 for weights and floating inputs; 0 or 1 for whole numbers, which index something."""
    digest = blake3(f"{seed}:{name}".encode()).digest(length=8)
    generator = torch.Generator().manual_seed(int.from_bytes(digest, "little") >> 1)
    if dtype.is_floating_point or dtype.is_complex:
        scale = 1.0 if name.startswith("input:") else SPREAD
        return (torch.randn(shape, generator=generator) * scale).to(dtype)
    return torch.randint(0, 2, shape, generator=generator).to(dtype)


def _checked(  # noqa: PLR0913, PLR0917
    program: Program,
    executor: Executor,
    weights: Mapping[str, torch.Tensor],
    inputs: Mapping[str, torch.Tensor],
    outputs: tuple[torch.Tensor, ...],
    seed: int,
) -> int:
    plain = Plain(program, weights)
    torch.manual_seed(seed)
    plain.run(executor.order, inputs)
    for position, (found, value) in enumerate(zip(outputs, executor.outputs, strict=True)):
        _demand(f"output {position}", found.contiguous(), plain.value(value).contiguous())
    states = [buffer for buffer, role in enumerate(program.graph.buffers.role) if role == STATE]
    for buffer in states:
        name = program.graph.notes.buffers[buffer]
        _demand(f"state {name}", executor.state(name), plain.bytes(buffer))
    return len(outputs) + len(states)


def _demand(what: str, found: torch.Tensor, wanted: torch.Tensor) -> None:
    one, other = (tensor.reshape(-1).view(torch.uint8) for tensor in (found, wanted))
    if not one.equal(other):
        raise PlanUnsound(
            f"{what} is not what a plain run gives: {int((one != other).sum())} of {one.numel()} bytes differ",
            fix="please report it, with the model",
        )


def _type(tensor: torch.Tensor) -> str:
    return f"{str(tensor.dtype)[6:]}[{','.join(map(str, tensor.shape))}]"
