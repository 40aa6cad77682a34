"""What a caller gives: each input by its name, of the shape, dtype and device that the plan was made for."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from tmmu.errors import InvalidConfig, UnsupportedOp
from tmmu.ir.graph import Graph


@dataclass(frozen=True, slots=True, kw_only=True)
class Input:
    """One input: its value in the graph, and what a tensor for it must look like."""

    name: str
    value: int
    shape: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device


def inputs_of(graph: Graph, device: torch.device) -> tuple[Input, ...]:
    """The inputs in the graph's order; one that has no name, or another's, is ``input_N`` by its position."""
    taken: set[str] = set()
    homes: set[int] = set()
    found = []
    for position, value in enumerate(graph.inputs):
        buffer = graph.values.buffer[value]
        if buffer in homes:
            raise UnsupportedOp("two inputs share their storage", fix="pass the whole, and take views in the model")
        name = graph.notes.buffers[buffer]
        name = name if name and name not in taken else f"input_{position}"
        taken.add(name)
        homes.add(buffer)
        dtype = getattr(torch, graph.values.dtype[value])
        found.append(Input(name=name, value=value, shape=graph.values.shape[value], dtype=dtype, device=device))
    return tuple(found)


def external_buffers(
    graph: Graph, external: Mapping[str, torch.Tensor], device: torch.device
) -> dict[int, torch.Tensor]:
    """By buffer, the tensors in which inputs of these names lie; ``INVALID_CONFIG`` for one that does not fit."""
    wanted = {one.name: one for one in inputs_of(graph, device)}
    _require_names(external, tuple(wanted))
    found = {}
    for name in external:
        one = wanted[name]
        tensor = _checked(one, external)
        if tensor.stride() != graph.values.stride[one.value]:
            raise InvalidConfig(
                f"input {name} has strides {tensor.stride()}, and the plan is for {graph.values.stride[one.value]}",
                fix="plan for this one",
                name=name,
            )
        found[graph.values.buffer[one.value]] = tensor
    return found


def check_inputs(wanted: Sequence[Input], given: Mapping[str, object]) -> list[torch.Tensor]:
    """The tensors in the order of ``wanted``; ``INVALID_CONFIG`` that names the first thing wrong with them."""
    if type(given) is not dict or len(given) != len(wanted) or any(one.name not in given for one in wanted):
        _require_names(given, tuple(one.name for one in wanted))
    return [_checked(one, given) for one in wanted]


def _require_names(given: object, names: Sequence[str]) -> None:
    """``INVALID_CONFIG`` unless it is a mapping from some of these names."""
    fix = f"the inputs are {', '.join(names)}" if names else "there are no inputs"
    if not isinstance(given, Mapping):
        raise InvalidConfig(f"the inputs are a {type(given).__name__}, not a mapping from names to tensors", fix=fix)
    for name in given:
        if not isinstance(name, str):
            raise InvalidConfig(f"the name of an input is a {type(name).__name__}, not text", fix=fix)
        if name not in names:
            raise InvalidConfig(f"no input is called {name!r}", fix=fix, name=name)


def _checked(one: Input, given: Mapping[str, object]) -> torch.Tensor:
    if one.name not in given:
        raise InvalidConfig(f"input {one.name} is missing", fix=f"give {one.name}={_shown(one)}", name=one.name)
    tensor = given[one.name]
    if not isinstance(tensor, torch.Tensor) or not _holds_numbers(tensor):
        kind = type(tensor).__name__
        raise InvalidConfig(f"input {one.name} is no dense tensor ({kind})", fix=f"give {_shown(one)}", name=one.name)
    if tensor.shape != one.shape or tensor.dtype != one.dtype or tensor.device != one.device:
        raise _misfit(one, tensor)
    return tensor


def _misfit(one: Input, tensor: torch.Tensor) -> InvalidConfig:
    what = next(what for what in ("shape", "dtype", "device") if getattr(one, what) != getattr(tensor, what))
    wanted, found = getattr(one, what), getattr(tensor, what)
    found = tuple(found) if what == "shape" else found
    return InvalidConfig(
        f"input {one.name} has {what} {found}, and the plan is for {wanted}",
        fix=f"give {_shown(one)}, or plan for this one",
        name=one.name,
        wanted=str(wanted),
        found=str(found),
    )


def _holds_numbers(tensor: torch.Tensor) -> bool:
    """Whether it is dense, and stands for no other tensor: fake ones do, and those inside ``torch.func``."""
    own = type(tensor).__torch_dispatch__ is torch.Tensor.__torch_dispatch__
    plain = own and not torch._C._functorch.is_functorch_wrapped_tensor(tensor)
    return plain and tensor.layout is torch.strided and not tensor.is_nested


def _shown(one: Input) -> str:
    return f"{str(one.dtype)[6:]}[{','.join(map(str, one.shape))}]"
