"""A kernel's source for a group, as Inductor generates it (or ``row_product``), and what it is called with.

Inductor is given one group, with its own placing of buffers off, and asked for source alone. The function that it
writes to call the kernel is run on stand-ins, which says what each pointer is: an argument, a result, or scratch that
the kernel wants beside them. A group of which it makes anything but one kernel has no form.

For a plan the source is generated for one vector width and one thread, whatever this machine has, and only its form
is used: a plan is the same everywhere. For a run it is generated for this machine, and must have the same form.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from math import prod
from typing import Any, Final, TypeAlias

import torch

from tmmu import torch_private
from tmmu.fusion.functional_form import argument_tensors, functional_form
from tmmu.fusion.group import FusionGroup, dtype_of
from tmmu.fusion.row_product import RowProduct, row_product_of
from tmmu.fusion.window_views import memory_order
from tmmu.passes.capture.replace import TRACE_LOCK, replace_attribute
from tmmu.runtime.kernels.kernel_calls import (
    CHANGED_POINTER,
    READ_POINTER,
    RESULT_POINTER,
    SCRATCH_POINTER,
)
from tmmu.torch_private import FakeTensorMode

Pointer: TypeAlias = tuple[str, int]
"""What an argument of a kernel points to: (kind, which of that kind)."""
MAX_POINTERS: Final = 400
SCRATCH_ALIGNMENT: Final = 64


class NotOneKernel(Exception):
    """Inductor makes something else of the group than one kernel; the text says what."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelForm:
    """What a kernel is called with, in the order of its arguments; ``scratch``: bytes of each piece beside them."""

    pointers: tuple[Pointer, ...]
    scratch: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelSource:
    """C++ of one kernel; ``types`` of its arguments."""

    form: KernelForm
    types: tuple[str, ...]
    text: str


@dataclass(frozen=True, slots=True, eq=False)
class _StandIn:
    """A tensor where the generated function is run: what it points to, and how it lies there."""

    pointer: Pointer
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype

    @property
    def bytes(self) -> int:
        reach = sum((n - 1) * s for n, s in zip(self.shape, self.stride, strict=True))
        return (reach + 1) * self.dtype.itemsize if 0 not in self.shape else 0


def scratch_places(form: KernelForm) -> tuple[tuple[tuple[int, int], ...], int]:
    """(offset, bytes) of each piece in one tensor of scratch, and the bytes of all."""
    places, end = [], 0
    for size in form.scratch:
        places.append((end, size))
        end += -(-size // SCRATCH_ALIGNMENT) * SCRATCH_ALIGNMENT
    return tuple(places), end


def generate_kernel(group: FusionGroup, *, for_plan: bool) -> KernelSource:
    """The kernel of a group. Seconds of work. Errors: ``NotOneKernel``."""
    product = row_product_of(group)
    if product is not None:
        return _source_of_product(group, product)
    with TRACE_LOCK, torch.no_grad():
        try:
            generated = _generate(group, for_plan=for_plan)
        except NotOneKernel:
            raise
        except Exception as error:  # whatever Inductor trips over: the group then runs as it is
            raise NotOneKernel(f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}") from error
    return generated


def _source_of_product(group: FusionGroup, product: RowProduct) -> KernelSource:
    pointers = (*((READ_POINTER, group.reads.index(base)) for base in product.bases), (RESULT_POINTER, 0))
    text = product.text(torch.get_num_threads())
    return KernelSource(form=KernelForm(pointers=pointers, scratch=()), types=product.types, text=text)


@dataclass(slots=True)
class _Generated:
    """What the patched Inductor was asked to compile: (types, source) of each kernel, and its calling modules."""

    kernels: list[tuple[tuple[str, ...], str]]
    modules: list[Any]


def _generate(group: FusionGroup, *, for_plan: bool) -> KernelSource:
    with FakeTensorMode():
        fakes = argument_tensors(group, torch.empty_strided)
    table = torch_private.select_decomp_table()
    trace = torch_private.make_fx(functional_form(group), decomposition_table=table, tracing_mode="fake")
    graph = trace(*fakes)
    with _source_alone(for_plan=for_plan) as generated:
        torch_private.compile_fx_inner(graph, fakes)
    if len(generated.kernels) != 1 or len(generated.modules) != 1:
        raise NotOneKernel(f"{len(generated.kernels)} kernels")
    (types, text), (module,) = generated.kernels[0], generated.modules
    form = _called_with(group, module, types)
    return KernelSource(form=form, types=types, text=text)


@contextmanager
def _source_alone(*, for_plan: bool) -> Iterator[_Generated]:
    """Block in which Inductor generates, in this thread, and compiles nothing."""
    generated, thread = _Generated([], []), threading.get_ident()
    compile_kernel = torch_private.AsyncCompile.cpp_pybinding
    compile_module = torch_private.GraphLowering.compile_to_module

    def take_kernel(compiler: Any, types: Sequence[str], source: str, *args: Any, **kwargs: Any) -> Any:
        if threading.get_ident() != thread:
            return compile_kernel(compiler, types, source, *args, **kwargs)
        generated.kernels.append((tuple(types), source))
        return lambda *_: None

    def take_module(graph: Any) -> Any:
        module = compile_module(graph)
        if threading.get_ident() == thread:
            generated.modules.append(module)
        return module

    # A number of threads is always said: arrays of partial sums have a place for each.
    options: dict[str, Any] = dict(_OPTIONS) | {"cpp.threads": torch.get_num_threads()}
    with ExitStack() as block:
        block.enter_context(replace_attribute(torch_private.AsyncCompile, "cpp_pybinding", take_kernel))
        block.enter_context(replace_attribute(torch_private.GraphLowering, "compile_to_module", take_module))
        if for_plan:
            options["cpp.threads"] = 1
            for owner, name, value in _of_any_machine():
                block.enter_context(replace_attribute(owner, name, _in_thread(thread, value, getattr(owner, name))))
        block.enter_context(torch_private.inductor_config.patch(options))
        yield generated


def _of_any_machine() -> Iterator[tuple[Any, str, Any]]:
    """(owner, name, what it returns) of functions that say what this machine has: vectors, a compiler."""
    vectors = torch_private.cpu_vec_isa.VecAVX2()
    for owner in (torch_private.cpu_vec_isa, torch_private.inductor_codecache):
        yield owner, "pick_vec_isa", vectors
    yield torch_private.cpp_builder, "get_cpp_compiler", "g++"


def _in_thread(thread: int, value: Any, function: Callable[[], Any]) -> Callable[[], Any]:
    """A function that returns ``value`` in one thread, and is itself in all others."""
    return lambda: value if threading.get_ident() == thread else function()


_OPTIONS: Final = {
    "allow_buffer_reuse": False,
    "memory_planning": False,
    "fx_graph_cache": False,
    "compile_threads": 1,
    "size_asserts": False,
    "nan_asserts": False,
    "max_autotune": False,
    "freezing": False,
    "cpp_wrapper": False,
    "force_pointwise_cat": True,
}


def _called_with(group: FusionGroup, module: Any, types: Sequence[str]) -> KernelForm:
    """The form of the one kernel of a generated module, from a run of its calling function on stand-ins."""
    scratch: list[_StandIn] = []
    called: list[tuple[_StandIn, ...]] = []

    def empty(shape: Sequence[int], stride: Sequence[int], dtype: torch.dtype) -> _StandIn:
        scratch.append(_StandIn((SCRATCH_POINTER, len(scratch)), tuple(shape), tuple(stride), dtype))
        return scratch[-1]

    def reinterpret(tensor: _StandIn, shape: Sequence[int], stride: Sequence[int], offset: int = 0) -> _StandIn:
        if offset:
            raise NotOneKernel("a tensor that begins inside another")
        return _StandIn(tensor.pointer, tuple(shape), tuple(stride), tensor.dtype)

    names = vars(module) if not hasattr(module.call, "__func__") else module.call.__func__.__globals__
    for name, function in (("empty_strided_cpu", empty), ("reinterpret_tensor", reinterpret)):
        if name in names:
            names[name] = function
    for name in [name for name in names if name.startswith("cpp_fused")]:
        names[name] = lambda *tensors: called.append(tensors)
    returned = module.call(_argument_stand_ins(group))
    if len(called) != 1 or any(not isinstance(tensor, _StandIn) for tensor in called[0]):
        raise NotOneKernel("a kernel that is called with numbers")
    return _form_of(group, called[0], returned, scratch, types)


def _argument_stand_ins(group: FusionGroup) -> list[_StandIn]:
    rows = [(READ_POINTER, group.reads), (CHANGED_POINTER, group.changed)]
    return [
        _StandIn((kind, place), group.bases[base].window.shape, group.bases[base].window.stride, torch.float32)
        for kind, bases in rows
        for place, base in enumerate(bases)
    ]


def _form_of(
    group: FusionGroup,
    arguments: Sequence[_StandIn],
    returned: Sequence[_StandIn],
    scratch: Sequence[_StandIn],
    types: Sequence[str],
) -> KernelForm:
    results: dict[Pointer, Pointer] = {}
    if len(returned) != len(group.results) or any(not isinstance(tensor, _StandIn) for tensor in returned):
        raise NotOneKernel("other results than the group's")
    for place, (tensor, base) in enumerate(zip(returned, group.results, strict=True)):
        window = group.bases[base].result
        shape = tuple(window.shape[axis] for axis in memory_order(window.shape, window.stride))
        if tensor.pointer[0] != SCRATCH_POINTER or tensor.pointer in results or tensor.dtype != dtype_of(window):
            raise NotOneKernel("a result that is an argument, or another result")
        if tensor.shape != shape or not _is_contiguous(tensor):
            raise NotOneKernel("a result that lies otherwise than planned")
        results[tensor.pointer] = (RESULT_POINTER, place)
    pieces = [tensor for tensor in scratch if tensor.pointer not in results]
    number = {tensor.pointer: place for place, tensor in enumerate(pieces)}
    pointers: list[Pointer] = []
    for tensor in arguments:
        kind, place = tensor.pointer
        if kind == SCRATCH_POINTER:
            pointers.append(results.get(tensor.pointer) or (SCRATCH_POINTER, number[tensor.pointer]))
        else:
            pointers.append((kind, place))
    if len(pointers) > MAX_POINTERS or len(pointers) != len(types):
        raise NotOneKernel(f"{len(pointers)} pointers")
    _require_declared(pointers, types)
    missing = {(RESULT_POINTER, place) for place in range(len(group.results))} - set(pointers)
    if missing:
        raise NotOneKernel("a result that the kernel does not write")
    return KernelForm(pointers=tuple(pointers), scratch=tuple(tensor.bytes for tensor in pieces))


def _require_declared(pointers: Sequence[Pointer], types: Sequence[str]) -> None:
    """What a group only reads is constant for the kernel."""
    for (kind, place), declared in zip(pointers, types, strict=True):
        if not declared.strip().endswith("*"):
            raise NotOneKernel("a kernel that takes a number")
        if kind == READ_POINTER and not declared.strip().startswith("const"):
            raise NotOneKernel(f"a kernel that writes argument {place}")


def _is_contiguous(tensor: _StandIn) -> bool:
    steps = [prod(tensor.shape[axis + 1 :]) for axis in range(len(tensor.shape))]
    rows = zip(tensor.shape, tensor.stride, steps, strict=True)
    return all(n == 1 or stride == step for n, stride, step in rows)
