"""Where weights go: each into the bytes of its buffer, as it lies in memory."""

from collections.abc import Container, Mapping
from typing import Final

import torch

from tmmu.errors import InvalidConfig
from tmmu.ir.graph import CONSTANT, PARAMETER, STATE, Graph
from tmmu.runtime.slab import is_dense

_SHOWN = 5
_PAIRS: Final = {"complex32": "float16", "complex64": "float32", "complex128": "float64"}
"""What a tensor may be whose every reader takes it for complex numbers."""


def check_weights(
    graph: Graph, weights: Mapping[str, torch.Tensor], *, elsewhere: Container[int] = ()
) -> dict[int, torch.Tensor]:
    """By buffer, the ``uint8[bytes]`` that it starts with; ``INVALID_CONFIG`` for what is missing or does not fit.

    Parameters and constants must be given, but those whose bytes come from ``elsewhere``. State that is not given
    starts as zeros. Names that the graph does not have (a second name of a tied weight) are left out.
    """
    dtypes: dict[int, set[str]] = {}
    for buffer, dtype in zip(graph.values.buffer, graph.values.dtype, strict=True):
        dtypes.setdefault(buffer, set()).add(dtype)
    found: dict[int, torch.Tensor] = {}
    missing: list[str] = []
    for buffer, role in enumerate(graph.buffers.role):
        name, size = graph.notes.buffers[buffer], graph.buffers.bytes[buffer]
        if role not in (PARAMETER, CONSTANT, STATE) or buffer in elsewhere:
            continue
        if name in weights:
            found[buffer] = _image(name, weights[name], size, dtypes.get(buffer, set()))
        elif role != STATE and size and buffer in dtypes:
            missing.append(name)
    if missing:
        more = f" and {len(missing) - _SHOWN} more" if len(missing) > _SHOWN else ""
        raise InvalidConfig(
            f"no value is given for {', '.join(missing[:_SHOWN])}{more}",
            fix="give every parameter and constant by its name in the graph",
            missing=list(missing),
        )
    return found


def _image(name: str, weight: torch.Tensor, size: int, dtypes: set[str]) -> torch.Tensor:
    """The bytes of a weight in the order of its memory; the whole storage where that is what the buffer holds."""
    dtype = str(weight.dtype)[6:]
    if dtypes and dtype not in dtypes and not any(_PAIRS.get(one) == dtype for one in dtypes):
        raise InvalidConfig(
            f"{name} is {dtype}, and the graph was captured with {', '.join(sorted(dtypes))}",
            fix="convert the weight, or plan again with its dtype",
            name=name,
        )
    weight = weight.detach()
    storage = weight.untyped_storage()
    if storage.nbytes() == size:
        return torch.empty(0, dtype=torch.uint8, device=weight.device).set_(storage, 0, (size,), (1,))
    if weight.numel() * weight.element_size() != size:
        raise InvalidConfig(
            f"{name} has {weight.numel() * weight.element_size()} bytes, and its buffer {size}",
            fix="give the weight in the shape and dtype that the model was captured with",
            name=name,
            bytes=size,
        )
    if is_dense(weight):
        return weight.as_strided((weight.numel(),), (1,)).view(torch.uint8)
    return weight.contiguous().view(-1).view(torch.uint8)
