"""From a call to a step: code, without arguments, that leaves the results where the plan puts them.

The best of four ways that is right for the call: as it is, for an operator that changes its arguments; a lowering of
ours; the ``out=`` overload; else run, and copy out of what the operator allocated.
"""

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch

from tmmu.ir.program import Call, ValueRef
from tmmu.runtime.kernels.code import Code, instruction, leaves, make_instruction
from tmmu.runtime.kernels.lowerings import IN_PARTS, LOWERINGS, SINGLE_PASS
from tmmu.runtime.kernels.overloads import arguments_by_name, out_overload
from tmmu.runtime.memory.slab import is_dense, is_same_view

ViewOf = Callable[[int], torch.Tensor]
BufferStart = Callable[[int], int]
STORAGE_OFFSET: Final = "storage_offset"


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledStep:
    """``code`` does it; ``copying`` does the same the slow way that is always right, where ``code`` is another."""

    name: str
    code: Code
    fallback: Code
    results: tuple[torch.Tensor, ...]
    arguments: tuple[torch.Tensor, ...]
    needs_validation: bool = False
    """Whether ``code`` is to be held against ``copying`` before it is used."""
    call: Call | None = None
    """What it was compiled from."""
    is_settled: bool = False
    """Whether it ran once, so that what it returns is known."""


def compile_step(
    call: Call, view: ViewOf, *, scratch: int = 0, unread: Container[int] = (), buffer_start: BufferStart | None = None
) -> CompiledStep:
    """The step of one call; ``view`` gives the tensor of a value, always the same one.

    ``start`` says where, in elements of it, a value's buffer begins in its storage; 0 where it is not given.

    Operators that can only allocate are asked for parts of at most ``scratch`` bytes where a part has the bits of the
    whole; 0 asks for the whole. Of what they return, values that are ``unread`` are left where they are.
    """
    args = tuple(_bind_argument(argument, view) for argument in call.args)
    kwargs = {name: _bind_argument(argument, view) for name, argument in call.kwargs}
    args, kwargs = _rebase_offset(call, args, kwargs, buffer_start)
    if not call.operator._schema.returns:
        return _step_without_results(call, args, kwargs)
    targets = [None if value is None else view(value) for value in call.results]
    into = [None if value is None or value in unread else view(value) for value in call.results]
    copying = (make_instruction(call.operator, args, kwargs, into=into),)
    parts = _code_in_parts(call, args, kwargs, into, scratch)
    code = _direct_code(call, args, kwargs, targets) if parts is None else parts
    return CompiledStep(
        name=str(call.operator),
        code=copying if code is None else code,
        fallback=copying,
        results=tuple(target for target in targets if target is not None),
        arguments=tuple(_tensor_arguments(args, kwargs)),
        needs_validation=bool(code) and not call.operator._schema.is_mutable,
        call=call,
    )


def _step_without_results(call: Call, args: Sequence[Any], kwargs: Mapping[str, Any]) -> CompiledStep:
    """A call for what it changes, an argument or a generator; any other only says what is needed until here."""
    has_effect = call.operator._schema.is_mutable or torch.Tag.nondeterministic_seeded in call.operator.tags
    code = (make_instruction(call.operator, args, kwargs),) if has_effect else ()
    tensors = tuple(_tensor_arguments(args, kwargs))
    return CompiledStep(name=str(call.operator), code=code, fallback=code, results=(), arguments=tensors)


def _rebase_offset(
    call: Call, args: tuple[Any, ...], kwargs: dict[str, Any], buffer_start: BufferStart | None
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """An offset that counts from where a storage begins counts from where the buffer does, which has it to itself."""
    names = [argument.name for argument in call.operator._schema.arguments]
    offset = arguments_by_name(call.operator, args, kwargs).get(STORAGE_OFFSET)
    if buffer_start is None or offset is None or STORAGE_OFFSET not in names or not isinstance(call.args[0], ValueRef):
        return args, kwargs
    rebased = arguments_by_name(call.operator, args, kwargs) | {
        STORAGE_OFFSET: offset + buffer_start(call.args[0].value)
    }
    return (), rebased


def _bind_argument(argument: Any, view: ViewOf) -> Any:
    if isinstance(argument, ValueRef):
        return view(argument.value)
    if isinstance(argument, (list, tuple)) and not isinstance(argument, torch.Size):
        items = [_bind_argument(item, view) for item in argument]
        return items if isinstance(argument, list) else tuple(items)
    return argument


def _direct_code(
    call: Call,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    targets: Sequence[torch.Tensor | None],
) -> Code | None:
    """The call without copying its whole results, where there is a way that is right for these tensors."""
    operator = call.operator
    if all(r.alias_info is not None and r.alias_info.is_write for r in operator._schema.returns):
        return (make_instruction(operator, args, kwargs),)
    results = [target for target in targets if target is not None]
    if len(results) != len(targets) or not all(map(is_dense, results)):
        return None
    arguments = arguments_by_name(operator, args, kwargs)
    shared = [t for t in _tensor_arguments(args, kwargs) if any(_may_overlap(t, result) for result in results)]
    in_place = all(is_same_view(t, result) for t in shared for result in results)
    lowering = LOWERINGS.get(str(operator))
    if lowering is not None and len(results) == 1 and (not shared or (in_place and str(operator) in SINGLE_PASS)):
        lowered = lowering(arguments, results[0])
        if lowered is not None:
            return lowered
    out = out_overload(operator)
    if (
        out is None
        or (
            arguments.get("reduction") and not any(result.dim() for result in results)
        )  # the whole is written, then reduced
        or len(out.results) != len(results)
        or (shared and not (in_place and torch.Tag.pointwise in operator.tags))
    ):
        return None
    return (instruction(out.operator, **out.arguments(arguments, results)),)


def _code_in_parts(
    call: Call, args: Sequence[Any], kwargs: Mapping[str, Any], into: Sequence[torch.Tensor | None], scratch: int
) -> Code | None:
    """The call some of its results at a time, where it is one that allows that and none of them lies on an argument."""
    lowering = IN_PARTS.get(str(call.operator))
    results = [target for target in into if target is not None]
    if (
        lowering is None
        or scratch == 0
        or any(_may_overlap(t, result) for t in _tensor_arguments(args, kwargs) for result in results)
    ):
        return None
    return lowering(arguments_by_name(call.operator, args, kwargs), into, scratch)


def _may_overlap(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors may have bytes in common: their extents on one storage meet."""
    if a.untyped_storage()._cdata != b.untyped_storage()._cdata:
        return False
    (low, high), (begin, end) = byte_range(a), byte_range(b)
    return low < end and begin < high


def byte_range(tensor: torch.Tensor) -> tuple[int, int]:
    """The bytes of its storage that a tensor spans, half-open."""
    low = int(tensor.storage_offset()) * tensor.element_size()
    if tensor.numel() == 0:
        return low, low
    reach = sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
    return low, low + (reach + 1) * tensor.element_size()


def _tensor_arguments(args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[torch.Tensor]:
    return [leaf for leaf in leaves([*args, *kwargs.values()]) if isinstance(leaf, torch.Tensor)]
