"""A group as a function without effects, which Inductor makes a kernel of.

What a member changes in place is a new tensor here, which is copied back at the end. Products of one row and attention
of few rows are sums of elementwise products, so that they are loops like the rest. Each result is contiguous, its axes
in the order in which its window lies in memory.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import torch

from tmmu.fusion.group import FusionGroup, GroupMember, TensorRef, bind_arguments, device_of, dtype_of
from tmmu.fusion.window_views import apply_views, memory_order, view_steps
from tmmu.torch_private import OpOverload, schema_of

_aten: Final[Any] = torch.ops.aten


def functional_form(group: FusionGroup) -> Callable[..., list[torch.Tensor]]:
    """A function of what the group reads, then of what it changes, to its results."""

    def run(*arguments: torch.Tensor) -> list[torch.Tensor]:
        places = (*group.reads, *group.changed)
        tensors = dict(zip(places, arguments, strict=True))
        for member in group.members:
            _run_member(group, member, tensors)
        results = [_in_memory_order(group, base, tensors[base]) for base in group.results]
        for base, argument in zip(group.changed, arguments[len(group.reads) :], strict=True):
            _aten.copy_.default(argument, tensors[base])  # the method asks for the device, which a fake has not
        return results

    return run


def _run_member(group: FusionGroup, member: GroupMember, tensors: dict[int, torch.Tensor]) -> None:
    device = device_of(tensors.values())
    args, kwargs = bind_arguments(member, lambda ref: _window_of(group, tensors, ref), device)
    changed = _changed_argument(member)
    if changed is not None:
        before = tensors[changed.base]
        after = _without_effect(member.operator)(*args, **kwargs)
        tensors[changed.base] = after.to(before.dtype).expand(changed.window.shape).reshape(before.shape)
        return
    returned = _FORMS.get(str(member.operator), member.operator)(*args, **kwargs)
    leaves = returned if isinstance(returned, (list, tuple)) else (returned,)
    tensors.update((base, leaf) for base, leaf in zip(member.results, leaves, strict=False) if base is not None)


def _window_of(group: FusionGroup, tensors: Mapping[int, torch.Tensor], ref: TensorRef) -> torch.Tensor:
    steps = view_steps(group.bases[ref.base].window, ref.window)
    assert steps is not None  # the region took it
    return apply_views(tensors[ref.base], steps) if steps else tensors[ref.base]


def _in_memory_order(group: FusionGroup, base: int, tensor: torch.Tensor) -> torch.Tensor:
    whole, window = group.bases[base].window, group.bases[base].result
    laid = tensor.expand(whole.shape).to(dtype_of(window)).reshape(window.shape)
    return laid.permute(memory_order(window.shape, window.stride)).contiguous()


def _changed_argument(member: GroupMember) -> TensorRef | None:
    """What a member changes in place."""
    schema = schema_of(member.operator)
    names = [argument.name for argument in schema.arguments]
    arguments = dict(zip(names, member.args, strict=False)) | dict(member.kwargs)
    for argument in schema.arguments:
        if argument.alias_info is not None and argument.alias_info.is_write:
            ref = arguments[argument.name]
            return ref if isinstance(ref, TensorRef) else None
    return None


def _without_effect(operator: OpOverload) -> Callable[..., torch.Tensor]:
    """The function that returns what an operator would leave in its first argument."""
    schema = schema_of(operator)
    name = schema.name.partition("::")[2]
    own = _FILLS.get(name) or _FORMS.get(str(operator))
    if own is not None:
        return own
    packet = getattr(_aten, name.removesuffix("_"))
    function: Callable[..., torch.Tensor] = getattr(packet, schema.overload_name or "default")
    return function


def _copy(self: torch.Tensor, source: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:  # noqa: FBT001, FBT002
    del non_blocking
    return source.to(self.dtype).expand(self.shape)


_FILLS: Final[Mapping[str, Callable[..., torch.Tensor]]] = {
    "copy_": _copy,
    "fill_": _aten.full_like.default,
    "zero_": lambda self: _aten.full_like.default(self, 0),
}


def _mm(row: torch.Tensor, matrix: torch.Tensor) -> torch.Tensor:
    """``[1, k]`` by ``[k, n]``."""
    return (row.transpose(0, 1) * matrix).sum(0, keepdim=True)


def _addmm(bias: torch.Tensor, row: torch.Tensor, matrix: torch.Tensor) -> torch.Tensor:
    return bias + _mm(row, matrix)


def _bmm(rows: torch.Tensor, matrices: torch.Tensor) -> torch.Tensor:
    """``[b, 1, k]`` by ``[b, k, n]``."""
    return (rows.transpose(1, 2) * matrices).sum(1, keepdim=True)


def _bmm_out(rows: torch.Tensor, matrices: torch.Tensor, *, out: torch.Tensor) -> torch.Tensor:
    del out
    return _bmm(rows, matrices)


def _mm_out(row: torch.Tensor, matrix: torch.Tensor, *, out: torch.Tensor) -> torch.Tensor:
    del out
    return _mm(row, matrix)


def _attention(  # noqa: PLR0913 - the operator's own arguments
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    dropout_p: float = 0.0,
    is_causal: bool = False,  # noqa: FBT001, FBT002
    *,
    attn_mask: torch.Tensor | None = None,
    scale: float | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """``[b, h, q, d]`` to the same, and the logarithm of each row's sum, ``[b, h, q]``."""
    del dropout_p, is_causal
    factor = query.shape[-1] ** -0.5 if scale is None else scale
    scores = (query.unsqueeze(3) * key.unsqueeze(2)).sum(-1) * factor
    if attn_mask is not None:
        scores = scores + attn_mask
    highest = scores.amax(-1, keepdim=True)
    highest = torch.where(highest == -torch.inf, 0, highest)  # a row without a key is zeros, as the kernel's
    weights = (scores - highest).exp()
    total = weights.sum(-1, keepdim=True)
    divisor = torch.where(total == 0, 1, total)
    result = ((weights / divisor).unsqueeze(-1) * value.unsqueeze(2)).sum(-2)
    return result, (divisor.log() + highest).squeeze(-1)


_FORMS: Final[Mapping[str, Callable[..., Any]]] = {
    "aten.mm.default": _mm,
    "aten.addmm.default": _addmm,
    "aten.bmm.default": _bmm,
    "aten.bmm.out": _bmm_out,
    "aten.mm.out": _mm_out,
    "aten._scaled_dot_product_flash_attention_for_cpu.default": _attention,
}
"""Operators that are sums here."""


def argument_tensors(group: FusionGroup, make: Callable[..., torch.Tensor]) -> Sequence[torch.Tensor]:
    """A tensor for each argument, made by ``make(shape, stride, dtype=)``."""
    windows = [group.bases[base].window for base in (*group.reads, *group.changed)]
    return [make(window.shape, window.stride, dtype=dtype_of(window)) for window in windows]
