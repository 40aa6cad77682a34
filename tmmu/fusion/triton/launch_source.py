"""The launches of a group on a GPU: Triton kernels as Inductor writes them, and what each is called with.

Inductor is given one group on fake tensors of a GPU and asked for source alone, as for a CPU; but it may make several
kernels of one, which run one after another, with scratch between them. It is told of one device, whatever this machine
has, and touches none: the source is the same on every machine of one version of torch, with a GPU and without, and
only Triton, which compiles it, sees the real one. The function that it writes to call the kernels is run on stand-ins.
"""

import ast
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Final

import torch

from tmmu import torch_private
from tmmu.fusion.call_form import (
    KernelForm,
    NotOneKernel,
    Scratch,
    StandIn,
    argument_stand_ins,
    form_of,
    reinterpret,
)
from tmmu.fusion.group import FusionGroup
from tmmu.fusion.kernel_source import SOURCE_OPTIONS, in_thread, trace_group
from tmmu.fusion.triton.launch_text import LaunchConfig, LaunchText, launch_config, parse_launch
from tmmu.passes.capture.replace import TRACE_LOCK, replace_attribute
from tmmu.runtime.kernels.kernel_calls import READ_POINTER, SCRATCH_POINTER

DEVICE: Final = "cuda:0"
CAPABILITY: Final = (8, 0)
"""Of the device that Inductor is told of: what it writes for it compiles for every later one."""
MULTIPROCESSORS: Final = 108
MAX_LAUNCHES: Final = 16
"""Kernels of one group; one of more is cut in halves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelLaunch:
    """One kernel of a group; ``places``: which of the form's pointers each of its pointers is."""

    text: LaunchText
    config: LaunchConfig
    places: tuple[int, ...]
    numbers: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchSource:
    """The kernels of a group in the order in which they run; the form has each tensor of theirs once.

    ``dtypes``: of each pointer of the form that is scratch, which a kernel takes typed; ``""`` for all others.
    """

    form: KernelForm
    dtypes: tuple[str, ...]
    launches: tuple[KernelLaunch, ...]


def generate_launches(group: FusionGroup) -> LaunchSource:
    """The kernels of a group. Needs neither Triton nor a GPU. Seconds of work. Errors: ``NotOneKernel``."""
    with TRACE_LOCK, torch.no_grad():
        try:
            return launches_of(group, _calling_module(group))
        except NotOneKernel:
            raise
        except Exception as error:  # whatever Inductor trips over: the group then runs as it is
            raise NotOneKernel(f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}") from error


class _Written(Exception):
    """The module that calls the kernels is written: nothing of it is to be loaded."""


def _calling_module(group: FusionGroup) -> str:
    """The text of the module that Inductor writes for a group."""
    texts: list[str] = []

    def take_module(lowering: Any) -> Any:
        texts.append(lowering.codegen()[0].value)
        raise _Written

    try:
        with _on_any_machine(take_module):
            torch_private.compile_fx_inner(*trace_group(group, DEVICE))
    except Exception:
        if len(texts) != 1:
            raise
    if len(texts) != 1:
        raise NotOneKernel("nothing to launch")
    return texts[0]


@contextmanager
def _on_any_machine(take_module: Callable[[Any], Any]) -> Iterator[None]:
    """Block in which Inductor writes, in this thread, for one device, and asks neither Triton nor CUDA for anything."""
    thread = threading.get_ident()
    compile_module = torch_private.GraphLowering.compile_to_module

    def compile_or_take(lowering: Any) -> Any:
        return take_module(lowering) if threading.get_ident() == thread else compile_module(lowering)

    with ExitStack() as block:
        block.enter_context(replace_attribute(torch_private.GraphLowering, "compile_to_module", compile_or_take))
        for owner, name, value in _of_one_device():
            replaced = in_thread(thread, value, getattr(owner, name))
            block.enter_context(replace_attribute(owner, name, replaced))
        block.enter_context(torch_private.inductor_config.patch(dict(SOURCE_OPTIONS) | _LAUNCH_OPTIONS))
        yield


def _of_one_device() -> Iterator[tuple[Any, str, Any]]:
    """(owner, name, what it returns) of functions that ask a machine for its GPU, or for Triton."""
    yield torch.cuda, "is_available", False
    yield torch.cuda, "get_device_capability", CAPABILITY
    yield (
        torch.cuda,
        "get_device_properties",
        SimpleNamespace(major=CAPABILITY[0], multi_processor_count=MULTIPROCESSORS),
    )
    yield torch_private.inductor_scheduler, "has_triton", True
    yield torch_private.triton_versions, "triton_hash_with_backend", ""
    properties = torch_private.DeviceProperties(
        type="cuda",
        index=0,
        multi_processor_count=MULTIPROCESSORS,
        cc=CAPABILITY[0] * 10 + CAPABILITY[1],
        major=CAPABILITY[0],
        regs_per_multiprocessor=65536,
        max_threads_per_multi_processor=2048,
        max_threads_per_block=1024,
        warp_size=32,
    )
    yield torch_private.DeviceProperties, "create", properties


_LAUNCH_OPTIONS: Final[dict[str, Any]] = {
    "comprehensive_padding": False,
    "split_reductions": True,
    "combo_kernels": False,
    "benchmark_fusion": False,
    "coordinate_descent_tuning": False,
    "graph_partition": False,
    "shape_padding": False,
    "max_autotune_pointwise": False,
    "triton.cudagraphs": False,
    "triton.autotune_pointwise": False,
    "triton.cooperative_reductions": False,
    "triton.mix_order_reduction": False,
    "triton.multi_kernel": 0,
    "triton.max_tiles": 2,
    "triton.use_block_ptr": False,
    "triton.use_tensor_descriptor": False,
    "triton.unique_kernel_names": True,
    "triton.descriptive_names": False,
}
"""Nothing is timed, nothing is padded, and no kernel waits for another one's programs. A long sum is two kernels."""


@dataclass(frozen=True, slots=True)
class _Kernel:
    """A kernel where the calling function is run: it notes what it is called with."""

    name: str
    called: list[tuple[str, tuple[Any, ...]]]

    def run(self, *arguments: Any, stream: int) -> None:
        del stream
        self.called.append((self.name, arguments))


class _NoDevice:
    """``torch`` where the calling function is run: its dtypes, and no device."""

    class cuda:  # noqa: N801 - as torch has it
        """What a calling function does with its device."""

        @staticmethod
        def _DeviceGuard(index: int) -> AbstractContextManager[None]:  # noqa: N802 - as torch has it
            del index
            return nullcontext()

        @staticmethod
        def set_device(index: int) -> None:
            """Nothing."""

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)


def launches_of(group: FusionGroup, module: str) -> LaunchSource:
    """The launches that a module of Inductor's text makes, and their form. Errors: ``NotOneKernel``."""
    tree = ast.parse(module)
    sources = dict(_kernel_sources(tree))
    called: list[tuple[str, tuple[Any, ...]]] = []
    scratch = Scratch()
    names = {
        "torch": _NoDevice(),
        "empty_strided_cuda": scratch.empty,
        "reinterpret_tensor": reinterpret,
        "copy_if_misaligned": lambda tensor: tensor,  # a launch takes what is there: Triton asks each pointer
        "get_raw_stream": lambda index: index,
        **{name: _Kernel(name, called) for name in sources},
    }
    returned = _run_calling_function(tree, names, argument_stand_ins(group))
    if not 0 < len(called) <= MAX_LAUNCHES:
        raise NotOneKernel(f"{len(called)} kernels")
    texts = [parse_launch(sources[name], str(place)) for place, (name, _) in enumerate(called)]
    calls = [_bound(text, arguments) for text, (_, arguments) in zip(texts, called, strict=True)]
    tensors = {tensor.pointer: tensor for pointers, _ in calls for tensor in pointers}
    place_of = {pointer: place for place, pointer in enumerate(tensors)}
    launches = [
        KernelLaunch(
            text=text,
            config=launch_config(text, dict(zip(text.numbers, numbers, strict=True))),
            places=tuple(place_of[tensor.pointer] for tensor in pointers),
            numbers=numbers,
        )
        for text, (pointers, numbers) in zip(texts, calls, strict=True)
    ]
    form = form_of(group, tuple(tensors.values()), returned, scratch)
    rows = zip(form.pointers, tensors.values(), strict=True)
    dtypes = tuple(str(tensor.dtype)[6:] if kind == SCRATCH_POINTER else "" for (kind, _), tensor in rows)
    return LaunchSource(form=form, dtypes=dtypes, launches=tuple(launches))


def _kernel_sources(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Name and source of each kernel that a module defines: ``name = async_compile.triton("name", "source", …)``."""
    for line in tree.body:
        call = line.value if isinstance(line, ast.Assign) else None
        if isinstance(call, ast.Call) and ast.unparse(call.func) == "async_compile.triton":
            name, source = (argument.value for argument in call.args if isinstance(argument, ast.Constant))
            yield str(name), str(source)


def _run_calling_function(tree: ast.Module, names: Mapping[str, Any], arguments: list[StandIn]) -> Sequence[StandIn]:
    """What the function ``call`` of a module returns where its names are these alone."""
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name == "call"]
    if len(functions) != 1:
        raise NotOneKernel("a module that is called otherwise")
    (function,) = functions
    is_method = function.args.args[0].arg == "self"
    scope = dict(names)
    exec(compile(ast.Module([function], []), "<calls>", "exec"), scope)
    returned: Sequence[StandIn] = scope["call"](None, arguments) if is_method else scope["call"](arguments)
    return returned


def _bound(text: LaunchText, arguments: Sequence[Any]) -> tuple[tuple[StandIn, ...], tuple[int, ...]]:
    """The tensors and numbers of a call. Errors: ``NotOneKernel``, also where it writes what is only read."""
    count = len(text.pointers)
    tensors, numbers = arguments[:count], arguments[count:]
    are_tensors = all(isinstance(tensor, StandIn) for tensor in tensors)
    if not are_tensors or len(numbers) != len(text.numbers) or any(type(number) is not int for number in numbers):
        raise NotOneKernel("a kernel that is called with something else")
    for name, tensor in zip(text.pointers, tensors, strict=True):
        if tensor.pointer[0] == READ_POINTER and not name.startswith("in_ptr"):
            raise NotOneKernel(f"a kernel that writes argument {tensor.pointer[1]}")
    return tuple(tensors), tuple(numbers)
