"""Straight-line code: operator calls bound to the tensors that they read and write, ready to run in order."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeAlias

import torch

from tmmu.errors import InternalError
from tmmu.ir.program import Switches, has_formulas, is_formula
from tmmu.kernel_switches import with_switches
from tmmu.runtime.kernels.scalars import COMPUTE_BYTES, canonical_arguments
from tmmu.runtime.memory.slab import is_same_view
from tmmu.torch_private import GRAD_MODE_RESULTS, c_function_of, schema_of

Runnable: TypeAlias = Callable[..., object]
"""Called without arguments, or with the tensors that it takes in place of those it was compiled for."""
Arguments: TypeAlias = Mapping[str, Any]
"""The arguments of one call by the names of the operator's schema."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Instruction:
    """A call with every argument of its schema, in order.

    ``into`` has a destination for each tensor that the call returns, which is copied there; ``None`` drops the result.
    A call that writes through an ``out=`` argument, or in place, has an empty ``into``.
    """

    operator: Any
    args: tuple[Any, ...]
    into: tuple[torch.Tensor | None, ...] = ()
    switches: Switches | None = None
    """The kernel switches to set around the call; ``None`` leaves those under which the program runs."""
    computes_numbers: bool = False
    """Whether a number among its arguments is computed from tensors each time it runs."""
    waits: bool = False
    """Whether the call is over, of all ranks, before the next begins: what it returns is waited for."""


Code: TypeAlias = tuple[Instruction, ...]


def instruction(operator: Any, *args: Any, into: Sequence[torch.Tensor | None] = (), **kwargs: Any) -> Instruction:
    """The call with these arguments; the schema's defaults for the others."""
    return make_instruction(operator, args, kwargs, into=into)


def make_instruction(
    operator: Any, args: Sequence[Any], kwargs: Mapping[str, Any], *, into: Sequence[torch.Tensor | None] = ()
) -> Instruction:
    """``instruction`` for arguments in a sequence and a mapping."""
    arguments = schema_of(operator).arguments
    named = dict(zip((argument.name for argument in arguments), args, strict=False)) | dict(kwargs)
    complete = tuple(named.get(argument.name, argument.default_value) for argument in arguments)
    canonical = canonical_arguments(operator, complete)
    operator = _scalar_overload(operator, dict(zip((argument.name for argument in arguments), canonical, strict=True)))
    computes = has_formulas(canonical)
    return Instruction(operator=operator, args=canonical, into=tuple(into), computes_numbers=computes)


def _scalar_overload(operator: Any, named: Mapping[str, Any]) -> Any:
    """For an operator in place whose ``other`` is a number, the overload that takes numbers, where it has the bits."""
    is_number = isinstance(named.get("other"), (bool, int, float))
    if not is_number or schema_of(operator).overload_name != "Tensor" or not schema_of(operator).name.endswith("_"):
        return operator
    # mul_.Scalar rounds the number to a short float before it multiplies; mul_.Tensor, which eager calls, does not.
    if schema_of(operator).name == "aten::mul_" and named["self"].itemsize < COMPUTE_BYTES:
        return operator
    scalar = getattr(operator.overloadpacket, "Scalar", None)
    return scalar if scalar is not None and _argument_names(scalar) == _argument_names(operator) else operator


def _argument_names(operator: Any) -> list[str]:
    return [argument.name for argument in schema_of(operator).arguments]


def needs_grad_mode(instr: Instruction) -> bool:
    """Whether the kernel leaves a result out, which is read here, unless gradients are on."""
    result = GRAD_MODE_RESULTS.get(instr.operator)
    return result is not None and bool(instr.into) and instr.into[result] is not None


def with_tensors(code: Code, exchanged: Mapping[int, torch.Tensor]) -> Code:
    """The code with other tensors in place of some, by the ``id`` of those that it was compiled for."""

    def exchange(value: Any) -> Any:
        if isinstance(value, (list, tuple)) and not isinstance(value, torch.Size):
            items = [exchange(item) for item in value]
            return items if isinstance(value, list) else tuple(items)
        return exchanged.get(id(value), value)

    return tuple(
        replace(instr, args=tuple(map(exchange, instr.args)), into=tuple(map(exchange, instr.into))) for instr in code
    )


def tensors_of(code: Code) -> list[torch.Tensor]:
    """Every tensor that the code reads or writes, once, in the order of first use."""
    found = [leaf for instr in code for leaf in leaves([*instr.args, *instr.into]) if isinstance(leaf, torch.Tensor)]
    return list({id(tensor): tensor for tensor in found}.values())


def runnable_with_arguments(code: Code, arguments: Sequence[torch.Tensor]) -> Runnable:
    """``runnable_of`` for code that takes a tensor in place of each of ``arguments``, in that order."""
    if not arguments:
        return runnable_of(code)

    def run(*tensors: torch.Tensor) -> None:
        exchanged = {id(own): tensor for own, tensor in zip(arguments, tensors, strict=True)}
        runnable_of(with_tensors(code, exchanged))()

    return run


def runnable_of(code: Code) -> Runnable:
    """A callable that makes the calls one after another."""
    runnables = tuple(_runnable_of(instr) for instr in code)
    if len(runnables) == 1:
        return runnables[0]

    def run() -> None:
        for runnable in runnables:
            runnable()

    return run


def leaves(value: Any) -> list[Any]:
    """What an operator returned, with lists and tuples flattened."""
    if isinstance(value, (tuple, list)):
        return [leaf for item in value for leaf in leaves(item)]
    return [value]


def call_results(instr: Instruction) -> list[Any]:
    """Runs the call; the tensors that it returns, where the operator left them."""
    return leaves(_bind_call(instr)())


def run_and_drop_copies(instr: Instruction, check: Callable[[list[Any]], None] | None = None) -> Instruction:
    """Runs the instruction; the same one without the copies of results that were absent or in place already.

    ``check`` is given what the call returned before any of it is copied.
    """
    if not instr.into:
        _bind_call(instr)()
        return instr
    returned = leaves(_bind_call(instr)())
    if check is not None:
        check(returned)
    copied = _copy_results(returned, instr)
    into = tuple(place if was_copied else None for place, was_copied in zip(instr.into, copied, strict=True))
    return replace(instr, into=into if any(copied) else ())


def _runnable_of(instr: Instruction) -> Runnable:
    call = _bind_call(instr)
    if not instr.into:
        return call
    return lambda: _copy_results(call(), instr)


def waiting(call: Runnable) -> Runnable:
    """The call, which then waits for all that it returns."""

    def run() -> object:
        results = call()
        wait_for(leaves(results))
        return results

    return run


def wait_for(results: Iterable[Any]) -> None:
    """Wait until calls between ranks have written these results, and for those calls' handles among them."""
    for result in results:
        if isinstance(result, torch.Tensor):
            torch.ops._c10d_functional.wait_tensor.default(result)
        elif isinstance(result, torch.ScriptObject):
            torch.distributed.Work.unbox(result).wait()


def number_of(formula: Sequence[Any]) -> Any:
    """The number that a formula gives, from what its tensors hold now."""
    return formula[0].evaluate([tensor.item() for tensor in formula[1:]])


def _computed(value: Any) -> Any:
    """An argument with a number in place of each formula."""
    if is_formula(value):
        return number_of(value)
    return [_computed(item) for item in value] if isinstance(value, (list, tuple)) else value


def _bind_call(instr: Instruction) -> Runnable:
    arguments = schema_of(instr.operator).arguments
    positional = [value for value, argument in zip(instr.args, arguments, strict=True) if not argument.kwarg_only]
    named = {a.name: value for value, a in zip(instr.args, arguments, strict=True) if a.kwarg_only}
    function = c_function_of(instr.operator)
    call: Runnable = partial(function, *positional, **named)
    if instr.computes_numbers:

        def call() -> object:
            keywords = {name: _computed(value) for name, value in named.items()}
            return function(*map(_computed, positional), **keywords)

    if instr.waits:
        call = waiting(call)
    if instr.switches is not None:
        device = next((leaf.device.type for leaf in leaves(list(instr.args)) if isinstance(leaf, torch.Tensor)), "cpu")
        call = with_switches(call, instr.switches, device)
    return torch.enable_grad()(call) if needs_grad_mode(instr) else call


def _copy_results(returned: object, instr: Instruction) -> list[bool]:
    """Copies each result to its destination; for each, whether that took a copy."""
    results = leaves(returned)
    if len(results) != len(instr.into):
        raise InternalError(f"{instr.operator} returns {len(results)} results, not {len(instr.into)}")
    return [_copy_result(result, place) for result, place in zip(results, instr.into, strict=True)]


def _copy_result(result: torch.Tensor | None, target: torch.Tensor | None) -> bool:
    # A real kernel may return no tensor for a result that its mask leaves out, where a fake one returned a tensor.
    if result is None or target is None:
        return False
    index = unexpanded_index(target)
    result, target = (result[index], target[index]) if index else (result, target)
    if is_same_view(result, target):
        return False
    target.copy_(result)
    return True


def unexpanded_index(tensor: torch.Tensor) -> tuple[slice, ...]:
    """An index that selects each element of the memory once: the first along axes of stride 0; ``()`` selects all."""
    expanded = [n > 1 and not stride for n, stride in zip(tensor.shape, tensor.stride(), strict=True)]
    return tuple(slice(0, 1) if is_expanded else slice(None) for is_expanded in expanded) if any(expanded) else ()
