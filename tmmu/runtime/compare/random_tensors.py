"""Random inputs and weights, a function of seed, name and, of inputs, what reads them."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final

import torch
from blake3 import blake3

from tmmu.errors import InvalidConfig
from tmmu.ir.graph import CONSTANT, PARAMETER, STATE, Graph
from tmmu.ir.program import Program
from tmmu.runtime.compare.input_rules import Below, InputRule, Lengths, Offsets, Shares, input_rules
from tmmu.runtime.execute.inputs import InputSpec
from tmmu.runtime.memory.slab import PACKED

WEIGHT_SCALE: Final = 0.05
"""Standard deviation of random weights: small enough that deep models stay finite."""


def random_inputs(
    specs: Sequence[InputSpec], seed: int, rules: Mapping[str, InputRule] = MappingProxyType({})
) -> dict[str, torch.Tensor]:
    """A random tensor for each input, by name; ``rules``: what the program asks of some."""
    return {spec.name: _draw_input(spec, seed, rules.get(spec.name)).to(spec.device) for spec in specs}


def valid_inputs(
    program: Program, specs: Sequence[InputSpec], seed: int, file_values: Mapping[str, torch.Tensor]
) -> dict[str, torch.Tensor]:
    """A tensor for each input that the program can run on; rows of another length than ``file_values`` are not drawn.

    What reads offsets or lengths may have been traced for those of the file: the longest row is a size.
    """
    by_buffer = input_rules(program)
    buffers = {spec.name: program.graph.values.buffer[spec.value] for spec in specs}
    rules = {name: by_buffer[buffer] for name, buffer in buffers.items() if buffer in by_buffer}
    rows = {name for name, rule in rules.items() if isinstance(rule, (Offsets, Lengths))}
    values = {spec.name: file_values[spec.name].to(spec.device) for spec in specs if spec.name in rows & {*file_values}}
    return random_inputs(specs, seed, rules) | values


def random_weights(
    graph: Graph, names: Sequence[str], forms: Mapping[str, torch.Tensor], seed: int
) -> dict[str, torch.Tensor]:
    """By name, a flat random tensor of each of these weights that is read; ``INVALID_CONFIG`` for an integral one.

    Its dtype is that of ``forms``, which the model has; of another name, that of its first reader.
    """
    dtypes: dict[int, str] = {}
    for buffer, reader in zip(graph.values.buffer, graph.values.dtype, strict=True):
        dtypes.setdefault(buffer, reader)
    weights: dict[str, torch.Tensor] = {}
    wanted_names = frozenset(names)
    for buffer, name in zip(graph.buffers.ids, graph.notes.buffers, strict=True):
        is_weight = graph.buffers.role[buffer] in (PARAMETER, CONSTANT, STATE)  # an input may have the same name
        if not is_weight or name not in wanted_names or buffer not in dtypes:
            continue
        dtype: torch.dtype = forms[name].dtype if name in forms else getattr(torch, dtypes[buffer])
        if not (dtype.is_floating_point or dtype.is_complex):
            raise InvalidConfig(f"{name} is {dtype} and depends on more than numbers", fix="give it with --weights")
        count = graph.buffers.bytes[buffer] // dtype.itemsize
        weights[name] = _draw(f"weight:{name}", (count,), dtype, seed)
    return weights


def _draw_input(spec: InputSpec, seed: int, rule: InputRule | None) -> torch.Tensor:
    """As the rule says where it can be followed in the input's dtype and shape; rows are of equal length, nearly."""
    is_integral = not (spec.dtype.is_floating_point or spec.dtype.is_complex)
    drawn = _draw(f"input:{spec.name}", spec.shape, spec.dtype, seed)
    match rule:
        case Offsets() | Lengths() if is_integral and spec.shape:
            return _rows(rule, spec.shape[-1]).to(spec.dtype).expand(spec.shape).clone()
        case Below() if is_integral:
            return drawn.clamp(max=max(rule.limit - 1, 0))
        case Shares() if spec.dtype.is_floating_point:
            return drawn.double().sigmoid().to(spec.dtype)
    return drawn


def _rows(rule: Offsets | Lengths, size: int) -> torch.Tensor:
    """``int64[size]``: offsets, or lengths, of rows of a total."""
    closed = isinstance(rule, Lengths) or rule.closed
    rows = size if isinstance(rule, Lengths) or not closed else size - 1
    offsets = torch.arange(rows + 1) * rule.total // max(rows, 1)
    return offsets.diff() if isinstance(rule, Lengths) else offsets[:size]


def _draw(name: str, shape: tuple[int, ...], dtype: torch.dtype, seed: int) -> torch.Tensor:
    """Normal around 0; 0 or 1 for integral dtypes, which may index something."""
    digest = blake3(f"{seed}:{name}".encode()).digest(length=8)
    # 63 bits of the digest: a generator's seed is a signed 64-bit number.
    generator = torch.Generator().manual_seed(int.from_bytes(digest, "little") >> 1)
    if dtype in PACKED:
        return torch.randint(0, 256, shape, generator=generator, dtype=torch.uint8).view(dtype)
    if dtype.is_floating_point or dtype.is_complex:
        scale = 1.0 if name.startswith("input:") else WEIGHT_SCALE
        draw_dtype = torch.complex64 if dtype.is_complex else torch.float32
        return (torch.randn(shape, generator=generator, dtype=draw_dtype) * scale).to(dtype)
    return torch.randint(0, 2, shape, generator=generator).to(dtype)
