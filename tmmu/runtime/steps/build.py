"""Compiles a call to a step: code bound to planned tensors that leaves each result where the plan puts it.

The first of these ways that applies: the call as it is, for an operator that changes its arguments; a lowering in parts
or a lowering to other operators; the ``out=`` overload; else the fallback, which runs the operator and copies what it
allocated. A result that overlaps an argument is written directly only where both are the same view and the code reads
each element before it writes it.
"""

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import torch

from tmmu.ir.graph import FUSED_NAMESPACE
from tmmu.ir.program import Call, Switches, ValueRef
from tmmu.kernel_switches import fills_empty_memory
from tmmu.runtime.kernels.code import Code, instruction, leaves, make_instruction
from tmmu.runtime.kernels.collectives import (
    NOTHING_AWAITED,
    Awaited,
    code_between_ranks,
    is_awaited,
    is_between_ranks,
)
from tmmu.runtime.kernels.kernel_calls import Kernel, kernel_code
from tmmu.runtime.kernels.lowerings import IN_PARTS, LOWERINGS, SINGLE_PASS, is_empty_maker
from tmmu.runtime.kernels.overloads import arguments_by_name, default_of, out_overload
from tmmu.runtime.memory.slab import is_dense, is_same_view, may_overlap, with_lazy_bits
from tmmu.torch_private import OpOverload, schema_of

ViewOf = Callable[[int], torch.Tensor]
"""The planned tensor of a value; always the same object."""
BufferStart = Callable[[int], int]
"""The offset in its storage at which a value's buffer begins, in elements of the value."""
STORAGE_OFFSET: Final = "storage_offset"
MASKS: Final = (torch.bool, torch.uint8)
"""Dtypes of an index that selects by value."""
_CONTRACTED: Final = frozenset(
    {
        *("aten::mul", "aten::div", "aten::true_divide", "aten::addcmul", "aten::addcdiv", "aten::ldexp"),
        *("aten::sigmoid_backward", "aten::tanh_backward"),
    }
)
"""Kernels that have other bits in place where their numbers are complex.

The compiler makes two versions of the loop over what is left of a vector, or over strided elements, and takes the one
with fused products only where the result overlaps no argument.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledStep:
    """The code of one call, and ``fallback``, which runs the operator and copies: slower, and right by construction."""

    name: str
    code: Code
    fallback: Code
    results: tuple[torch.Tensor, ...]
    arguments: tuple[torch.Tensor, ...]
    needs_validation: bool = False
    """Whether ``code`` must be compared with ``fallback`` before it is used."""
    call: Call | None = None
    """What it was compiled from."""
    is_settled: bool = False
    """Whether it has run once, so that copies of results that are in place already are known and dropped."""
    depends_on_values: bool = False
    """Whether the shape of a result is decided by what the arguments hold."""
    runs_for_effect: bool = False
    """Whether it returns nothing and changes no tensor, as a check does: it runs with the model's data alone."""
    is_between_ranks: bool = False
    """Whether all ranks make the call together, which is neither tried nor captured."""


def compile_step(  # noqa: PLR0913 - a call, its tensors, and what each binding settles
    call: Call,
    view: ViewOf,
    *,
    switches: Switches | None = None,
    scratch: int = 0,
    unread: Container[int] = (),
    buffer_start: BufferStart | None = None,
    kernels: Mapping[str, Kernel] | None = None,
    awaited: Awaited = NOTHING_AWAITED,
) -> CompiledStep:
    """The step of one call on the tensors of ``view``. Without ``buffer_start`` every buffer begins its storage.

    It sets the kernel switches of its call where ``switches``, under which all steps run, are others. Operators that
    can only allocate run in parts that allocate about ``scratch`` bytes each; 0 runs them whole. Results that are
    ``unread`` are not copied out of what the operator allocated. ``awaited`` is what later calls wait for.
    """
    if call.operator.namespace == FUSED_NAMESPACE:
        return _compile_fused_step(call, view, unread, (kernels or {}).get(str(call.operator)))
    if is_between_ranks(call.operator):
        return _step_between_ranks(call, view, awaited)
    step = _compile_step(call, view, scratch=scratch, unread=unread, buffer_start=buffer_start)
    if switches is None or call.switches == switches:
        return step
    code = tuple(replace(instr, switches=call.switches) for instr in step.code)
    fallback = tuple(replace(instr, switches=call.switches) for instr in step.fallback)
    return replace(step, fallback=fallback, code=fallback if step.code is step.fallback else code)


def _compile_step(
    call: Call, view: ViewOf, *, scratch: int, unread: Container[int], buffer_start: BufferStart | None
) -> CompiledStep:
    args = tuple(_bind_argument(argument, view) for argument in call.args)
    kwargs = {name: _bind_argument(argument, view) for name, argument in call.kwargs}
    args, kwargs = _rebase_offset(call, args, kwargs, buffer_start)
    if not schema_of(call.operator).returns:
        return _step_without_results(call, args, kwargs)
    targets = [None if value is None else view(value) for value in call.results]
    into = [None if value is None or value in unread else view(value) for value in call.results]
    fallback = (make_instruction(call.operator, args, kwargs, into=into),)
    code: Code | None = None
    depends_on_values = values_decide_shape(call.operator, arguments_by_name(call.operator, args, kwargs))
    if not depends_on_values:
        parts = _code_in_parts(call, args, kwargs, into, scratch)
        code = _direct_code(call, args, kwargs, targets) if parts is None else parts
    return CompiledStep(
        name=str(call.operator),
        code=fallback if code is None else code,
        fallback=fallback,
        results=tuple(target for target in targets if target is not None),
        arguments=tuple(_tensor_arguments(args, kwargs)),
        needs_validation=bool(code) and not schema_of(call.operator).is_mutable and not _crosses_devices(args, targets),
        call=call,
        depends_on_values=depends_on_values,
    )


def _compile_fused_step(call: Call, view: ViewOf, unread: Container[int], kernel: Kernel | None) -> CompiledStep:
    """A fused operator: its kernel where there is one, which is compared with its members before it is used."""
    args = tuple(_bind_argument(argument, view) for argument in call.args)
    results = tuple(view(value) for value in call.results if value is not None)
    into = [None if value is None or value in unread else view(value) for value in call.results]
    fallback = (replace(make_instruction(call.operator, args, {}, into=into), switches=call.switches or None),)
    reads, changed, _ = args
    return CompiledStep(
        name=str(call.operator),
        code=fallback if kernel is None else kernel_code(kernel, reads, changed, results),
        fallback=fallback,
        results=results,
        arguments=tuple(_tensor_arguments(args, {})),
        needs_validation=kernel is not None,
        call=call,
    )


def _step_between_ranks(call: Call, view: ViewOf, awaited: Awaited) -> CompiledStep:
    args = tuple(_bind_argument(argument, view) for argument in call.args)
    kwargs = {name: _bind_argument(argument, view) for name, argument in call.kwargs}
    into = [None if value is None else view(value) for value in call.results]
    code = code_between_ranks(call, args, kwargs, into, is_awaited_later=is_awaited(call, awaited))
    return CompiledStep(
        name=str(call.operator),
        code=code,
        fallback=code,
        results=tuple(place for place in into if place is not None),
        arguments=tuple(_tensor_arguments(args, kwargs)),
        call=call,
        is_between_ranks=True,
    )


def _crosses_devices(args: Sequence[Any], targets: Sequence[torch.Tensor | None]) -> bool:
    """Whether it copies between host and device: one ``copy_``, which no trial on another device would be."""
    devices = {argument.device for argument in args if isinstance(argument, torch.Tensor)}
    return len(devices | {target.device for target in targets if target is not None}) > 1


def _step_without_results(call: Call, args: Sequence[Any], kwargs: Mapping[str, Any]) -> CompiledStep:
    """A call for its effect: on an argument, on a generator, or, where it returns nothing, whatever it is (a check).

    Operators of ours only keep their arguments alive, and one that returns a number is not asked again: no code.
    """
    schema = schema_of(call.operator)
    returns_nothing = not schema.returns and call.operator.namespace != "tmmu"
    is_random = torch.Tag.nondeterministic_seeded in call.operator.tags
    has_effect = schema.is_mutable or is_random or returns_nothing
    code = (make_instruction(call.operator, args, kwargs),) if has_effect else ()
    tensors = tuple(_tensor_arguments(args, kwargs))
    return CompiledStep(
        name=str(call.operator),
        code=code,
        fallback=code,
        results=(),
        arguments=tensors,
        runs_for_effect=returns_nothing and not schema.is_mutable and not is_random,
    )


def _rebase_offset(
    call: Call, args: tuple[Any, ...], kwargs: dict[str, Any], buffer_start: BufferStart | None
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """A ``storage_offset`` counts from the start of a storage: of the buffer's own at capture, of the slab's here."""
    arguments = arguments_by_name(call.operator, args, kwargs)
    names = [argument.name for argument in schema_of(call.operator).arguments]
    offset = arguments.get(STORAGE_OFFSET)
    if buffer_start is None or offset is None or STORAGE_OFFSET not in names or not isinstance(call.args[0], ValueRef):
        return args, kwargs
    return (), arguments | {STORAGE_OFFSET: offset + buffer_start(call.args[0].value)}


def _bind_argument(argument: Any, view: ViewOf) -> Any:
    if isinstance(argument, ValueRef):
        return with_lazy_bits(view(argument.value), conj=argument.conj, neg=argument.neg)
    if isinstance(argument, (list, tuple)) and not isinstance(argument, torch.Size):
        items = [_bind_argument(item, view) for item in argument]
        return items if isinstance(argument, list) else tuple(items)
    return argument


def _direct_code(
    call: Call, args: Sequence[Any], kwargs: Mapping[str, Any], targets: Sequence[torch.Tensor | None]
) -> Code | None:
    """Code that writes the results directly; ``None`` where no way is right for these tensors."""
    operator = call.operator
    if all(r.alias_info is not None and r.alias_info.is_write for r in schema_of(operator).returns):
        return (make_instruction(operator, args, kwargs),)
    results = [target for target in targets if target is not None]
    arguments = arguments_by_name(operator, args, kwargs)
    shared = [t for t in _tensor_arguments(args, kwargs) if any(may_overlap(t, result) for result in results)]
    in_place = all(is_same_view(t, result) for t in shared for result in results)
    is_contracted = schema_of(operator).name in _CONTRACTED and any(result.is_complex() for result in results)
    if len(results) != len(targets) or not all(map(is_dense, results)) or (shared and is_contracted):
        return None
    lowering = None if _fills(call) else LOWERINGS.get(str(operator))
    if lowering is not None and len(results) == 1 and (not shared or (in_place and str(operator) in SINGLE_PASS)):
        lowered = lowering(arguments, results[0])
        if lowered is not None:
            return lowered
    out = out_overload(operator)
    if out is None or len(out.results) != len(results):
        return None
    # A loss that is reduced writes the unreduced tensor to its result first, beyond the bytes of the planned one.
    # A trace leaves out arguments that have their default, and that of a loss is to reduce.
    reduction = arguments.get("reduction", default_of(operator, "reduction"))
    outgrows_result = reduction and not any(result.dim() for result in results)
    if outgrows_result or (shared and not (in_place and torch.Tag.pointwise in operator.tags)):
        return None
    return (instruction(out.operator, **out.arguments(arguments, results)),)


def _fills(call: Call) -> bool:
    """Whether it makes empty memory which deterministic algorithms fill: then it is the operator that does so."""
    return is_empty_maker(str(call.operator)) and fills_empty_memory(call.switches)


def values_decide_shape(operator: OpOverload, arguments: Mapping[str, Any]) -> bool:
    """Whether the shape of a result depends on what is in the arguments: a planned one holds for one shape.

    Then the operator allocates its result, which is copied: a result of another shape is an error, where an ``out=``
    variant would take memory of its own. Nor can such a call be tried on random numbers.
    """
    if torch.Tag.dynamic_output_shape not in operator.tags:
        return False
    indices = arguments.get("indices")
    return indices is None or any(index is not None and index.dtype in MASKS for index in indices)


def _code_in_parts(
    call: Call, args: Sequence[Any], kwargs: Mapping[str, Any], into: Sequence[torch.Tensor | None], scratch: int
) -> Code | None:
    """The call in parts; ``None`` where it has no such lowering, or where a result overlaps an argument."""
    lowering = IN_PARTS.get(str(call.operator))
    if lowering is None or scratch == 0:
        return None
    results = [target for target in into if target is not None]
    if any(may_overlap(t, result) for t in _tensor_arguments(args, kwargs) for result in results):
        return None
    return lowering(arguments_by_name(call.operator, args, kwargs), into, scratch)


def _tensor_arguments(args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[torch.Tensor]:
    return [leaf for leaf in leaves([*args, *kwargs.values()]) if isinstance(leaf, torch.Tensor)]
