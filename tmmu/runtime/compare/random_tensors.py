"""Random inputs and weights, a function of seed and name alone."""

from collections.abc import Mapping, Sequence
from typing import Final

import torch
from blake3 import blake3

from tmmu.errors import InvalidConfig
from tmmu.ir.graph import CONSTANT, PARAMETER, STATE, Graph
from tmmu.runtime.execute.inputs import InputSpec
from tmmu.runtime.memory.slab import PACKED

WEIGHT_SCALE: Final = 0.05
"""Standard deviation of random weights: small enough that deep models stay finite."""


def random_inputs(specs: Sequence[InputSpec], seed: int) -> dict[str, torch.Tensor]:
    """A random tensor for each input, by name."""
    return {spec.name: _draw(f"input:{spec.name}", spec.shape, spec.dtype, seed).to(spec.device) for spec in specs}


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
