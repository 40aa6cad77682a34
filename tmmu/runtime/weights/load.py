"""Loads weights into the bytes of their buffers, from tensors or straight from files, never twice in host memory."""

from collections.abc import Container, Iterator, Mapping
from typing import Final, TypeAlias

import torch
from blake3 import blake3

from tmmu.errors import InvalidConfig
from tmmu.ir.graph import CONSTANT, PARAMETER, STATE, Graph
from tmmu.runtime.memory.slab import Location, Slab, is_dense
from tmmu.runtime.weights.safetensors_files import StoredTensor, read_stored
from tmmu.runtime.weights.sources import FileSource, ModelTensor, Source, TensorSource, require_size, tensor_source

Weight: TypeAlias = torch.Tensor | ModelTensor | StoredTensor | FileSource
"""A tensor, the model's own (``ModelTensor``) or another; or one in a file, row-major as there (``StoredTensor``) or in
another memory order (``FileSource``)."""
CHUNK_BYTES: Final = 64 << 20
"""Bytes of a file read at a time on their way to another device, which bounds the host memory that this takes."""
_MAX_NAMES = 5
_REAL_DTYPE: Final = {"complex32": "float16", "complex64": "float32", "complex128": "float64"}
"""By complex dtype, that of its pairs: a weight may be stored as real pairs where every reader views it as complex."""


def check_weights(graph: Graph, weights: Mapping[str, Weight], *, skip: Container[int] = ()) -> dict[int, Source]:
    """By buffer, the source of its initial bytes; ``INVALID_CONFIG`` for one that is missing or does not fit.

    Parameters and constants must be given, except buffers to ``skip``. State that is not given starts as zeros. Names
    that the graph does not have (a second name of a tied weight) are ignored.
    """
    dtypes: dict[int, set[str]] = {}
    for buffer, dtype in zip(graph.values.buffer, graph.values.dtype, strict=True):
        dtypes.setdefault(buffer, set()).add(dtype)
    sources: dict[int, Source] = {}
    missing: list[str] = []
    for buffer, role in zip(graph.buffers.ids, graph.buffers.role, strict=True):
        name, size = graph.notes.buffers[buffer], graph.buffers.bytes[buffer]
        if role not in (PARAMETER, CONSTANT, STATE) or buffer in skip:
            continue
        if name in weights:
            sources[buffer] = _source_of(name, weights[name], size, dtypes.get(buffer, set()))
        elif role != STATE and size and buffer in dtypes:
            missing.append(name)
    if missing:
        more = f" and {len(missing) - _MAX_NAMES} more" if len(missing) > _MAX_NAMES else ""
        raise InvalidConfig(
            f"no value is given for {', '.join(missing[:_MAX_NAMES])}{more}",
            fix="give every parameter and constant by its name in the graph",
            missing=list(missing),
        )
    return sources


def adopt_weights(graph: Graph, weights: Mapping[str, Weight], device: torch.device) -> dict[int, Location]:
    """Locations of all parameters and constants: the caller's own tensor, where that is on the device.

    A weight in a file, or on another device, is loaded into memory of its own.
    """
    locations = {}
    for buffer, source in check_weights(graph, weights).items():
        if graph.buffers.role[buffer] != STATE:
            image = source.image if isinstance(source, TensorSource) else None
            # An image of the caller's own storage is adopted as it is, so that his changes are seen.
            if image is None or image.device != device:
                image = torch.empty(source.size, dtype=torch.uint8, device=device)
                load_into(source, image)
            locations[buffer] = (Slab.over(image), 0)
    return locations


def load_into(source: Source, target: torch.Tensor) -> None:
    """Copies the bytes of ``source`` into ``target``, a ``uint8[size]`` on any device."""
    if isinstance(source, TensorSource):
        target.copy_(source.image)
    elif target.device.type == "cpu":
        source.read(target, 0)
    else:
        for start, part in source_chunks(source):
            target[start : start + len(part)].copy_(part)


def content_key(source: Source | None, size: int) -> bytes:
    """32 bytes that name ``size`` bytes of content, those of ``source`` or zeros: BLAKE3 over their number and them."""
    content = blake3(size.to_bytes(8, "little"))
    if source is None:
        return content.update(b"zeros").digest()
    for _, part in source_chunks(source):
        content.update(part.numpy())  # type: ignore[arg-type]
    return content.digest()


def source_chunks(source: Source) -> Iterator[tuple[int, torch.Tensor]]:
    """(byte offset, ``uint8[n]`` on the host) in order; each chunk reuses the memory of the one before."""
    if isinstance(source, TensorSource):
        yield 0, source.image.cpu()
        return
    step = min(CHUNK_BYTES, source.size) if source.is_divisible else source.size
    buffer = torch.empty(step, dtype=torch.uint8)
    for start in range(0, source.size, max(step, 1)):
        part = buffer[: min(step, source.size - start)]
        source.read(part, start)
        yield start, part


def load_tensor(weight: Weight) -> torch.Tensor:
    """The weight as a tensor, read from its file if it is in one, in the shape that it has there."""
    if isinstance(weight, torch.Tensor):
        return weight
    if isinstance(weight, ModelTensor):
        return weight.tensor
    if isinstance(weight, FileSource):
        return load_tensor(weight.stored)
    data = torch.empty(weight.size, dtype=torch.uint8)
    read_stored(weight, data.numpy().data)
    return data.view(getattr(torch, weight.dtype)).view(weight.shape)


class LazyTensors(Mapping[str, torch.Tensor]):
    """Weights as tensors by name, each loaded when it is looked up and not kept."""

    def __init__(self, weights: Mapping[str, Weight]) -> None:
        self._weights = weights

    def __getitem__(self, name: str) -> torch.Tensor:
        return load_tensor(self._weights[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self._weights)

    def __len__(self) -> int:
        return len(self._weights)


def _source_of(name: str, weight: Weight, size: int, dtypes: set[str]) -> Source:
    if isinstance(weight, StoredTensor):
        return _source_of(name, FileSource(weight), size, dtypes)
    if isinstance(weight, FileSource):
        if not weight.has_model_dtype:
            _require_dtype(f"{name} in {weight.stored.path.name}", weight.stored.dtype, dtypes)
        require_size(weight, size)
        return weight
    if isinstance(weight, ModelTensor):
        weight = weight.tensor
    else:
        _require_dtype(name, str(weight.dtype)[6:], dtypes)
    whole = weight.untyped_storage().nbytes() == size
    return tensor_source(name, weight if whole or is_dense(weight) else weight.contiguous(), size)


def _require_dtype(name: str, dtype: str, dtypes: set[str]) -> None:
    as_real = {_REAL_DTYPE[name] for name in dtypes if name in _REAL_DTYPE}
    is_read = dtype in dtypes | as_real or _REAL_DTYPE.get(dtype) in dtypes  # view_as_complex, view_as_real
    if dtypes and not is_read:
        raise InvalidConfig(
            f"{name} is {dtype}, and the graph was captured with {', '.join(sorted(dtypes))}",
            fix="convert the weight, or plan again with its dtype",
            name=name,
        )
