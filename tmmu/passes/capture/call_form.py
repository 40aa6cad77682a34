"""What a model is called with and returns, without the tensors: so that others can be put in their places.

Arguments are compared as forms: nested tuples of types, names and plain values, in which a tensor is the number of its
window. Results are templates: copies in which a ``Place`` stands for each tensor.
"""

import copy
import inspect
import weakref
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import wraps
from typing import Any, Final

import torch
from torch import nn

from tmmu.errors import InternalError, InvalidConfig, UnsupportedOp
from tmmu.passes.capture.record.places import is_on_host
from tmmu.passes.capture.record.unseen_tensors import is_subclass
from tmmu.passes.capture.replace import replace_attribute
from tmmu.passes.capture.tree import named_tensors
from tmmu.passes.capture.workload import OwnedTensor, Workload, inputs_by_name
from tmmu.torch_private import cpp_address

_MAX_DEPTH: Final = 12
OUTPUT: Final = "output"
INPUT: Final = "input"
WEIGHT: Final = "weight"
_TENSOR_OF: Final = "tensor_of"
"""Key of a deep copy's memo, whose others are ids."""


@dataclass(frozen=True, slots=True)
class Place:
    """Stands for a tensor: an ``output`` by its number, the very ``input`` of that number, a ``weight`` by name.

    ``on_host``: of an output, whether the model returns it in the host's memory, and runs on another device.
    """

    kind: str
    key: int | str
    on_host: bool = False

    def __deepcopy__(self, memo: dict[Any, Any]) -> Any:
        """The tensor that takes this place in the copy under way, if one does."""
        tensor_of = memo.get(_TENSOR_OF)
        return self if tensor_of is None else tensor_of(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class CallForm:
    """``arguments``: what a call must be form, ``template``: what it returns; ``outputs``: places that are filled."""

    arguments: Any
    inputs: int
    template: Any
    outputs: int


class FormNote:
    """Notes the form of the one call of a workload's module that a trace makes.

    Tensors that are plain attributes of its modules are declared by their paths, so that each call can find them.
    ``exchanged``: the names of those, and of parameters and buffers, that are other tensors after the call.
    """

    def __init__(self) -> None:
        self.form: CallForm | None = None
        self.exchanged: frozenset[str] = frozenset()

    def around(self, workload: Workload) -> Workload:
        """The workload, whose call is noted. Nothing of it is held afterwards."""
        module = workload.module
        if module is None:
            raise InternalError("a call is noted of a module alone")

        @wraps(module.forward)
        def run(*args: Any, **kwargs: Any) -> Any:
            inputs = distinct_inputs(replace(workload, args=args, kwargs=kwargs))
            expected = form_of(every_argument(module, args, kwargs), inputs)
            kept = {name: weakref.ref(tensor) for name, tensor in _kept_by(module)}
            results = module(*args, **kwargs)
            if form_of(every_argument(module, args, kwargs), inputs) != expected:
                raise UnsupportedOp(
                    "the model puts other tensors into an argument", fix="return them, and pass them to the next call"
                )
            self.form = _form(expected, inputs, module, results)
            self.exchanged = frozenset(kept) - {
                n for n, tensor in _kept_by(module) if n in kept and kept[n]() is tensor
            }
            return results

        owned = tuple(OwnedTensor(role="constant", name=path, tensor=tensor) for path, tensor in _plain_of(module))
        args, kwargs = in_order(module, workload.args, workload.kwargs)
        return replace(workload, run=run, owned=(*workload.owned, *owned), args=args, kwargs=kwargs)


def in_order(
    module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The same call with its arguments in the order of the parameters, so that it does not matter which are named.

    As they are where the model cannot be called so, of which the call itself says more.
    """
    try:
        bound = inspect.signature(module.forward).bind(*args, **kwargs)
    except (TypeError, ValueError):
        return args, dict(kwargs)
    return bound.args, bound.kwargs


def every_argument(module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """By parameter, those with a default among them."""
    try:
        bound = inspect.signature(module.forward).bind(*args, **kwargs)
    except (TypeError, ValueError):
        return args, dict(kwargs)
    bound.apply_defaults()
    return dict(bound.arguments)


def _form(arguments: Any, inputs: Sequence[torch.Tensor], module: nn.Module, results: Any) -> CallForm:
    places = {id(tensor): Place(INPUT, number) for number, tensor in enumerate(inputs)}
    owned = (*module.named_parameters(), *module.named_buffers())
    places |= {id(tensor): Place(WEIGHT, name) for name, tensor in owned}
    numbers: dict[tuple[Any, ...], int] = {}
    for _, tensor in named_tensors(results):
        if is_subclass(type(tensor)):
            raise UnsupportedOp(f"a result is a {type(tensor).__name__}", fix="return plain tensors")
        number = numbers.setdefault(window_key(tensor), len(numbers))
        places.setdefault(id(tensor), Place(OUTPUT, number, on_host=is_on_host(tensor)))
    template = _copied(results, lambda tensor: places.get(id(tensor)))
    return CallForm(arguments=arguments, inputs=len(inputs), template=template, outputs=len(numbers))


def _copied(value: Any, place: Callable[[torch.Tensor], Place | None]) -> Any:
    """A deep copy with a place for each tensor."""

    def place_of(tensor: torch.Tensor, _: dict[int, Any]) -> Place:
        found = place(tensor)
        if found is None:
            raise UnsupportedOp("a result is held where no tensor is looked for", fix="return it in a dict or a tuple")
        return found

    with (
        replace_attribute(torch.Tensor, "__deepcopy__", place_of),
        replace_attribute(nn.Parameter, "__deepcopy__", place_of),
    ):
        return copy.deepcopy(value)


def filled(template: Any, tensor_of: Callable[[Place], torch.Tensor]) -> Any:
    """A new copy of a template with tensors in their places."""
    memo: dict[Any, Any] = {_TENSOR_OF: tensor_of}
    return copy.deepcopy(template, memo)


def _plain_of(module: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Of all modules, each tensor once."""
    known = {id(tensor) for tensor in (*module.parameters(), *module.buffers())}
    for path, part in module.named_modules():
        for name, tensor in plain_attributes(part, path, known).items():
            if id(tensor) not in known:
                known.add(id(tensor))
                yield name, tensor


def _kept_by(module: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """All tensors that modules keep, under every name."""
    yield from module.named_parameters(remove_duplicate=False)
    yield from module.named_buffers(remove_duplicate=False)
    yield from _plain_of(module)


def plain_attributes(part: nn.Module, path: str, known: Container[int]) -> dict[str, torch.Tensor]:
    """By path, the tensors in a module's own attributes that are neither parameters nor buffers (``known`` ids)."""
    plain = {name: value for name, value in vars(part).items() if not name.startswith("_")}
    named = named_tensors(plain) if plain else ()
    return {f"{path}.{name}" if path else name: tensor for name, tensor in named if id(tensor) not in known}


def distinct_inputs(workload: Workload) -> list[torch.Tensor]:
    """The tensors of a call, each window once, in a graph's order."""
    distinct: dict[tuple[Any, ...], torch.Tensor] = {}
    for _, tensor in named_tensors(inputs_by_name(workload)):
        distinct.setdefault(window_key(tensor), tensor)
    return list(distinct.values())


def window_key(tensor: torch.Tensor) -> tuple[Any, ...]:
    """What a graph tells tensors apart by."""
    if tensor.layout is not torch.strided:
        return tensor.layout, id(tensor)
    layout = (tensor.storage_offset(), tuple(tensor.shape), tensor.stride(), tensor.dtype)
    return cpp_address(tensor.untyped_storage()), *layout, tensor.is_conj(), tensor.is_neg()


def form_of(value: Any, inputs: Sequence[torch.Tensor]) -> Any:
    """Nested tuples that are equal for calls that do the same but for the tensors' elements."""
    numbers = {window_key(tensor): number for number, tensor in enumerate(inputs)}
    return _form_of(value, numbers, 0)


def _form_of(value: Any, numbers: Mapping[tuple[Any, ...], int], depth: int) -> Any:
    if isinstance(value, torch.Tensor):
        return "tensor", numbers.get(window_key(value), -1)
    if isinstance(value, (str, bytes, int, float, complex, bool, type(None), torch.dtype, torch.device)):
        return type(value).__name__, repr(value)
    if depth > _MAX_DEPTH:
        raise InvalidConfig("an argument is nested deeper than tensors are looked for", fix="pass tensors by name")
    if isinstance(value, Mapping):
        return type(value).__name__, tuple(
            (repr(key), _form_of(item, numbers, depth + 1)) for key, item in value.items()
        )
    if isinstance(value, (list, tuple)):
        return type(value).__name__, tuple(_form_of(item, numbers, depth + 1) for item in value)
    if callable(value) or not hasattr(value, "__dict__"):
        return type(value).__name__, id(value)
    return type(value).__name__, _form_of(vars(value), numbers, depth + 1)


def form_difference(planned: Any, found: Any) -> str:
    """The first argument in which a call of form ``found`` is otherwise than ``planned``, and how."""
    if planned[0] != "dict" or found[0] != "dict":
        return "its arguments do not fit the parameters of forward"
    before = dict(planned[1])
    for name, form in found[1]:
        if before.get(name) != form:
            return _form_difference(before[name], form, name.strip("'")) if name in before else f"{name} is new"
    return "an argument is missing"


def _form_difference(planned: Any, found: Any, path: str) -> str:
    (kind, before), (other, after) = planned, found
    if kind != other:
        return f"{path} is a {_type_text(other)}, and was planned as a {_type_text(kind)}"
    if kind == "tensor":
        return f"{path} shares its tensor with another argument otherwise than planned"
    if isinstance(before, str):
        return f"{path} is {after:.80}, and was planned as {before:.80}"
    if not isinstance(before, tuple) or (len(before) == 2 and isinstance(before[0], str)):
        return f"{path} is another {_type_text(kind)} than planned"
    return _items_difference(before, after, path)


def _items_difference(before: Any, after: Any, path: str) -> str:
    old, new = _items_by_name(before), _items_by_name(after)
    for name in dict.fromkeys((*old, *new)):
        if name not in new or name not in old:
            return f"{path}[{name}] is {'missing' if name in old else 'new'}"
        if old[name] != new[name]:
            return _form_difference(old[name], new[name], f"{path}[{name}]")
    return f"{path} has its items in another order"


def _items_by_name(items: Any) -> dict[Any, Any]:
    """Of a mapping by key, whose text is quoted; of a sequence by place."""
    is_mapping = all(item[0].startswith(("'", '"')) for item in items)
    return dict(items) if is_mapping else dict(enumerate(items))


def _type_text(kind: str) -> str:
    return "value None" if kind == "NoneType" else kind
