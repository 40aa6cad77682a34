"""A kernel's source for a group, as Inductor generates it (or ``row_product``), and what it is called with.

Inductor is given one group, with its own placing of buffers off, and asked for source alone. The function that it
writes to call the kernel is run on stand-ins, which says what each pointer is: an argument, a result, or scratch that
the kernel wants beside them. A group of which it makes anything but one kernel has no form.

For a plan the source is generated for one vector width and one thread, whatever this machine has, and only its form
is used: a plan is the same everywhere. For a run it is generated for this machine, and must have the same form.
"""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import torch

from tmmu import torch_private
from tmmu.fusion.call_form import (
    KernelForm,
    NotOneKernel,
    Pointer,
    Scratch,
    StandIn,
    argument_stand_ins,
    form_of,
    reinterpret,
)
from tmmu.fusion.functional_form import argument_tensors, functional_form
from tmmu.fusion.group import FusionGroup
from tmmu.fusion.row_product import RowProduct, row_product_of
from tmmu.passes.capture.replace import TRACE_LOCK, replace_attribute
from tmmu.runtime.kernels.kernel_calls import READ_POINTER, RESULT_POINTER
from tmmu.torch_private import FakeTensorMode


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelSource:
    """C++ of one kernel; ``types`` of its arguments."""

    form: KernelForm
    types: tuple[str, ...]
    text: str


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


def trace_group(group: FusionGroup, device: str) -> tuple[Any, Sequence[torch.Tensor]]:
    """A group as a graph of operators that Inductor takes, and fake arguments for it; under ``TRACE_LOCK``."""
    with FakeTensorMode():
        fakes = argument_tensors(group, partial(torch.empty_strided, device=device))
    table = torch_private.select_decomp_table()
    trace = torch_private.make_fx(functional_form(group), decomposition_table=table, tracing_mode="fake")
    return trace(*fakes), fakes


def _generate(group: FusionGroup, *, for_plan: bool) -> KernelSource:
    graph, fakes = trace_group(group, "cpu")
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
    options: dict[str, Any] = dict(SOURCE_OPTIONS) | {"cpp.threads": torch.get_num_threads()}
    with ExitStack() as block:
        block.enter_context(replace_attribute(torch_private.AsyncCompile, "cpp_pybinding", take_kernel))
        block.enter_context(replace_attribute(torch_private.GraphLowering, "compile_to_module", take_module))
        if for_plan:
            options["cpp.threads"] = 1
            for owner, name, value in _of_any_machine():
                block.enter_context(replace_attribute(owner, name, in_thread(thread, value, getattr(owner, name))))
        block.enter_context(torch_private.inductor_config.patch(options))
        yield generated


def _of_any_machine() -> Iterator[tuple[Any, str, Any]]:
    """(owner, name, what it returns) of functions that say what this machine has: vectors, a compiler."""
    vectors = torch_private.cpu_vec_isa.VecAVX2()
    for owner in (torch_private.cpu_vec_isa, torch_private.inductor_codecache):
        yield owner, "pick_vec_isa", vectors
    yield torch_private.cpp_builder, "get_cpp_compiler", "g++"


def in_thread(thread: int, value: Any, function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that returns ``value`` in one thread, and is itself in all others."""
    return lambda *args, **kwargs: value if threading.get_ident() == thread else function(*args, **kwargs)


SOURCE_OPTIONS: Final[Mapping[str, Any]] = {
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
"""Options of Inductor for source alone, which places nothing and times nothing."""


def _called_with(group: FusionGroup, module: Any, types: Sequence[str]) -> KernelForm:
    """The form of the one kernel of a generated module, from a run of its calling function on stand-ins."""
    scratch = Scratch()
    called: list[tuple[StandIn, ...]] = []
    names = vars(module) if not hasattr(module.call, "__func__") else module.call.__func__.__globals__
    for name, function in (("empty_strided_cpu", scratch.empty), ("reinterpret_tensor", reinterpret)):
        if name in names:
            names[name] = function
    for name in [name for name in names if name.startswith("cpp_fused")]:
        names[name] = lambda *tensors: called.append(tensors)
    returned = module.call(argument_stand_ins(group))
    if len(called) != 1 or any(not isinstance(tensor, StandIn) for tensor in called[0]):
        raise NotOneKernel("a kernel that is called with numbers")
    form = form_of(group, called[0], returned, scratch)
    if len(form.pointers) != len(types):
        raise NotOneKernel(f"{len(form.pointers)} pointers")
    _require_declared(form.pointers, types)
    return form


def _require_declared(pointers: Sequence[Pointer], types: Sequence[str]) -> None:
    """What a group only reads is constant for the kernel."""
    for (kind, place), declared in zip(pointers, types, strict=True):
        if not declared.strip().endswith("*"):
            raise NotOneKernel("a kernel that takes a number")
        if kind == READ_POINTER and not declared.strip().startswith("const"):
            raise NotOneKernel(f"a kernel that writes argument {place}")
