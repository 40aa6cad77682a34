"""Every private name of torch that tmmu uses, why, and the torch versions for which it is known to hold.

``Holds: 2.11, 2.13`` after a name: tmmu was run with these two versions. 2.12, between them, is untried, and so is
what comes later. Operators (``torch.ops.aten._softmax``) are part of a graph's format and none of this.
``tests/unit/test_torch_private.py`` refuses a private name anywhere else in ``tmmu``, and one here without versions.

A function of C is bound here once, so that a caller pays one look-up in its own module. What ``import torch`` does not
load by itself (Dynamo, the partitioners, the archive reader) is loaded when its name is first taken.
"""

import os
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import cache
from importlib import import_module
from operator import attrgetter
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any, Final

import torch
import torch._dispatch.python
import torch._guards
import torch._ops
import torch._prims.rng_prims
import torch._prims_common
import torch._subclasses.fake_tensor
import torch.overrides
import torch.utils._device
import torch.utils._foreach_utils
import torch.utils._python_dispatch
import torch.utils._pytree
import torch.utils.backend_registration
from torch import nn

# -- operators

OpOverload = torch._ops.OpOverload
"""The type of an operator's overload: ``torch.ops.aten.add.Tensor``. Holds: 2.11, 2.13."""
OpOverloadPacket = torch._ops.OpOverloadPacket
"""The type of an operator with all its overloads: ``torch.ops.aten.add``. Holds: 2.11, 2.13."""
HigherOrderOperator = torch._ops.HigherOrderOperator
"""The type of operators that take graphs, which no plan models. Holds: 2.11, 2.13."""
DispatchKey = torch._C.DispatchKey
"""Where ``OpOverload.py_kernels`` keeps a rule written in Python. Holds: 2.11, 2.13."""
enable_python_dispatcher = torch._dispatch.python.enable_python_dispatcher
"""Block in which ``py_kernels`` come before C++ kernels. Holds: 2.11, 2.13."""
rng_prims = torch._prims.rng_prims
"""AOTAutograd's operators that save a random state or run in one. Holds: 2.11, 2.13."""

destroy_library: Final[Callable[[torch.library.Library], None]] = torch.library.Library._destroy
"""Takes back the kernels of a library, at once and not when it is collected. Holds: 2.11, 2.13."""

schema_of: Final[Callable[[Any], Any]] = attrgetter("_schema")
"""An overload's schema: what it takes, returns and writes. Holds: 2.11, 2.13."""
c_function_of: Final[Callable[[Any], Callable[..., Any]]] = attrgetter("_op")
"""The C function of an overload, a microsecond a call cheaper than the overload. Holds: 2.11, 2.13."""
convolution_backend: Final[Callable[..., Any]] = torch._C._select_conv_backend
"""The kernel that a convolution takes, by the device that its tensors say. Holds: 2.13."""
convolution_format: Final[Callable[..., torch.memory_format]] = torch._C._conv_determine_backend_memory_format
"""The memory format in which that kernel works on an image and a weight. Holds: 2.13."""
is_opaque_value: Final[Callable[[Any], bool]] = getattr(
    getattr(torch._library, "opaque_object", None), "is_opaque_value", lambda _: False
)
"""Whether a wrapper tensor names an object as its part that is no tensor: a device mesh. Holds: 2.13."""
suggest_memory_format = torch._prims_common.suggest_memory_format
"""The memory format that C++ kernels take a tensor to be in. Holds: 2.11, 2.13."""


def forget_kernels(ops: Iterable[torch._ops.OpOverload]) -> None:
    """Make the operators look up their kernels again, after ``py_kernels`` changed. Holds: 2.11, 2.13."""
    for op in ops:
        op._dispatch_cache.clear()


# -- identity

cpp_address: Final[Callable[[torch.UntypedStorage | torch.Generator], int]] = attrgetter("_cdata")
"""The C++ object behind a storage or generator, for which Python makes many wrappers. Holds: 2.11, 2.13."""

storage_use_count: Final[Callable[[int], int]] = torch._C._storage_Use_Count
"""How many tensors and Python storages hold the C++ storage at this address. Holds: 2.11, 2.13."""

SHARDING_MODULE: Final = "torch.distributed.tensor._sharding_prop"
"""Where torch finds out how a call on distributed tensors is sharded. Holds: 2.13."""
SHARDING_PROPAGATION: Final = "_propagate_tensor_meta_non_cached"
"""The method of its ``ShardingPropagator`` that calls an operator to learn shapes. Holds: 2.13."""
LIST_STRATEGY: Final = "_expand_single_dim_strategy_to_mesh"
"""The function of that module that finds out how each tensor of a call is sharded, by mesh, call, rule and metas, as a
function of operator and arguments. Holds: 2.13."""
STRIDED_FLAG: Final = "_propagate_use_strided_shard_flag"
"""The function of that module that sets a flag in the result of that, by all tensors of the call. Holds: 2.13."""


def meshes_of_all_ranks(mesh: Any) -> torch.Tensor:
    """``int32[groups, *mesh]``: this mesh and those that other ranks have in its place, which are cut out of one larger
    mesh. Holds: 2.13.
    """
    meshes: torch.Tensor = mesh._layout.remap_to_tensor(mesh._rank_map)
    return meshes


def local_shape_of(
    shape: Sequence[int], mesh_shape: Sequence[int], coordinate: tuple[int, ...] | None, placements: Sequence[Any]
) -> tuple[int, ...] | None:
    """The shape of the shard at a place of a mesh; ``None`` for none.

    Torch counts with tensors of indices, of which a trace would make fake ones. Holds: 2.13.
    """
    if coordinate is None:
        return None
    utilities = import_module("torch.distributed.tensor._utils")
    with disable_current_modes(), DisableTorchFunction():
        shapes = utilities._compute_local_shape_and_global_offset(
            shape, mesh_shape, coordinate, placements, skip_offset=True
        )
    return tuple(shapes[0])


def queue_backward_callback(callback: Callable[[], None]) -> None:
    """Have the function called at the end of the backward pass that is under way. Holds: 2.11, 2.13."""
    torch.autograd.Variable._execution_engine.queue_callback(callback)


REDUCER_FUNCTIONS: Final = {
    "verify": "_verify_params_across_processes",
    "broadcast": "_broadcast_coalesced",
    "hook": "_register_comm_hook",
    "builtin_hook": "_register_builtin_comm_hook",
}
"""Functions of ``torch.distributed`` by which ``DistributedDataParallel`` calls C++. Holds: 2.13."""


def bucket_assignment(
    tensors: Sequence[torch.Tensor], limits: Sequence[int], numbers: Sequence[int] = ()
) -> list[list[int]]:
    """How ``DistributedDataParallel`` packs tensors: the numbers of each bucket; ``limits`` are bytes of the first, and
    of others. Holds: 2.13.
    """
    distributed: Any = torch.distributed
    sparse = [False] * len(numbers)
    assignment, _ = distributed._compute_bucket_assignment_by_size(list(tensors), list(limits), sparse, list(numbers))
    return assignment  # type: ignore[no-any-return]


def know_static_graph(wrapper: Any) -> None:
    """Make a ``DistributedDataParallel`` of a static graph do what it does from the second step on. Holds: 2.13."""
    wrapper._static_graph_delay_allreduce_enqueued = True


PIPELINE_SCHEDULES: Final = "torch.distributed.pipelining.schedules"
"""Where torch has the schedules of a pipeline. Holds: 2.13."""
PIPELINE_SCHEDULE: Final = "_PipelineSchedule"
"""The class of that module that all schedules are of. Holds: 2.13."""
PIPELINE_AGREEMENT: Final = "_warmup_p2p"
"""Its method in which stages agree by messages whether all know what they receive and send. Holds: 2.13."""


def agree_on_shapes(stage: Any, *, has_backward: bool) -> bool:
    """Whether the ``PipelineStage`` was given the shapes of what it receives and sends, by which it runs then.

    ``_user_meta`` is what it was given, ``_inference_mode`` whether it asks others. Holds: 2.13.
    """
    mode = import_module("torch.distributed.pipelining._utils").InferenceMode
    if mode.needs_dynamic(stage._user_meta, has_backward):
        return False
    stage._inference_mode = mode.STATIC
    return True


PIPELINE_CHUNKS: Final = "torch.distributed.pipelining.microbatch"
"""Where torch cuts batches, which makes a tensor as it is imported. Holds: 2.13."""
PIPELINE_BACKWARD: Final = "torch.distributed.pipelining._backward"
"""Where torch parts the backward pass of a stage into that of its input and that of its weights. Holds: 2.13."""
PARAMETER_GROUPS: Final = "get_param_groups"
"""Its function ``(inputs, parameters, reverse_edges) -> groups`` of nodes that come together, as sets. Holds: 2.13."""
REACHED_NODES: Final = "reverse_closure"
"""Its function ``(roots, targets, reverse_edges) -> (nodes, targets)`` that are reached, as sets. Holds: 2.13."""


RING_MODULE: Final = "torch.distributed.tensor.experimental._context_parallel._attention"
"""Where torch cuts a sequence over ranks, and passes keys and values round in a ring. Holds: 2.13."""
RING_ATTENTION: Final = "_templated_ring_attention"
"""Its function ``(group, seq_dim, op, query, key, value, is_causal, **arguments)`` of all kernels. Holds: 2.13."""
SEQUENCE_CUT: Final = "_context_parallel_buffers"
"""Its function ``(mesh, buffers, buffer_seq_dims, load_balancer)`` that cuts tensors. Holds: 2.13."""
RING_WAIT: Final = "_maybe_wait"
"""Its function that waits for a tensor which another rank sends, where it is under way. Holds: 2.13."""
ROTATERS: Final = ("_AllToAllRotater", "_AllGatherRotater")
"""Its classes whose ``exchange_buffers(tensor)`` passes a tensor on; each waits in ``next_buffer``. Holds: 2.13."""
COLLECTIVE_RESULT: Final = "_maybe_wrap_tensor"
"""The function of ``functional_collectives`` that gives back what a call receives: not awaited in eager, and awaited
under a fake mode. Holds: 2.13."""


def functional_collectives() -> ModuleType:
    """Torch's module of calls between ranks that return what they receive. Holds: 2.13."""
    return import_module("torch.distributed._functional_collectives")


@contextmanager
def ring_options_restored(module: Any) -> Iterator[None]:
    """Block after which the settings of ``RING_MODULE`` are as before, and distributed attention is dispatched so.

    They are the process's: how keys are passed round (``set_rotate_method``), whether the load is balanced, and whether
    a ring stands for attention (``_enable_context_parallel_dispatcher``). Holds: 2.13.
    """
    options, dispatcher = module._cp_options, import_module("torch.distributed.tensor").DTensor._op_dispatcher
    values, mode, replaced = dict(vars(options)), module._dispatch_mode, dict(module._replaced_functions)
    attention = torch.nn.functional.scaled_dot_product_attention

    def is_on() -> bool:
        return dispatcher._custom_op_handlers is not module.existing_custom_ops

    was_on = is_on()
    try:
        yield
    finally:
        vars(options).update(values)
        module._dispatch_mode = mode
        module._replaced_functions.clear()
        module._replaced_functions.update(replaced)
        torch.nn.functional.scaled_dot_product_attention = attention
        if is_on() and not was_on:
            module._disable_context_parallel_dispatcher()
        elif was_on and not is_on():
            module._enable_context_parallel_dispatcher()


FULLY_SHARD_MODULE: Final = "torch.distributed.fsdp"
"""What has ``FSDPModule``. Holds: 2.13."""


SHARDED_STATE: Final = "__composable_api_state_key"
"""How attributes begin in which a module of ``fully_shard`` has torch's own state. Holds: 2.13."""


def begin_fully_sharded(module: nn.Module) -> None:
    """Make a module of ``fully_shard`` do what its first forward pass does once: it pads shards anew. Holds: 2.13."""
    module._get_fsdp_state()._lazy_init()  # type: ignore[operator]


def takes_group(name: str, kind: str) -> bool:
    """Whether an argument of a schema is a process group, by its name and its type. Holds: 2.13."""
    return name == "group_name" or kind.endswith("c10d.ProcessGroup")


def group_of_argument(argument: Any) -> Any:
    """The process group that an operator was given: by its name, boxed, or itself. Holds: 2.13."""
    c10d: Any = torch.distributed.distributed_c10d
    if isinstance(argument, str):
        return c10d._resolve_process_group(argument)
    is_boxed = isinstance(argument, torch.ScriptObject)
    return torch.distributed.ProcessGroup.unbox(argument) if is_boxed else argument


def running_groups() -> dict[Any, tuple[int, ...]]:
    """The process groups of this process that it is in, each with its ranks of all, in its own order. Holds: 2.13."""
    ranks = torch.distributed.distributed_c10d._world.pg_group_ranks
    return {group: tuple(sorted(row, key=row.__getitem__)) for group, row in ranks.items()}


def forget_shards() -> None:
    """Make torch find out again how calls on distributed tensors are sharded: it keeps that by their meshes, which do
    not say which rank this is. Holds: 2.13.
    """
    if SHARDING_MODULE not in sys.modules:
        return
    debug = import_module("torch.distributed.tensor.debug")
    debug._clear_sharding_prop_cache()
    redistribution = import_module("torch.distributed.tensor._redistribute")
    redistribution._gen_transform_infos.cache_clear()
    redistribution.clear_redistribute_planner_cache()


# -- dispatch: modes, guards, threads' switches

disable_current_modes = torch.utils._python_dispatch._disable_current_modes
"""Block without any mode: for real values in the middle of a trace. Holds: 2.11, 2.13."""
current_dispatch_mode = torch.utils._python_dispatch._get_current_dispatch_mode
"""The innermost dispatch mode of this thread. Holds: 2.11, 2.13."""
pop_mode_temporarily = torch.utils._python_dispatch._pop_mode_temporarily
"""Block without the innermost dispatch mode. Holds: 2.11, 2.13."""
dispatch_mode_count = torch._C._len_torch_dispatch_stack
"""How many dispatch modes are on in this thread. Holds: 2.11, 2.13."""
DisableTorchFunction = torch._C.DisableTorchFunction
"""Block in which no ``__torch_function__`` is called, modes included. Holds: 2.11, 2.13."""
DisableTorchDispatch = torch._C._DisableTorchDispatch
"""Block in which no ``__torch_dispatch__`` is called: for making a fake tensor by hand. Holds: 2.11, 2.13."""
DisablePythonDispatcher = torch._C._DisablePythonDispatcher
"""Block in which ``py_kernels`` do not come first, for the rule that calls its own operator. Holds: 2.11, 2.13."""
DisableAutocast = torch._C._DisableAutocast
"""Block in which no operator casts its arguments: a plan has the casts as ops. Holds: 2.11, 2.13."""
BelowAutograd = torch._C._AutoDispatchBelowADInplaceOrView
"""Block in which calls skip autograd and the version counters of tensors. Holds: 2.11, 2.13."""
set_grad_enabled = torch._C._set_grad_enabled
"""The switch behind ``torch.no_grad``, without the object around it. Holds: 2.11, 2.13."""
is_mkldnn_enabled: Final[Callable[[], bool]] = torch._C._get_mkldnn_enabled
"""Whether a CPU's recurrent layers may be one operator of oneDNN. Holds: 2.11, 2.13."""
set_mkldnn_enabled: Final[Callable[[bool], None]] = torch._C._set_mkldnn_enabled
"""The switch of the same; the public one changes other switches too. Holds: 2.11, 2.13."""
GRAD_MODE_RESULTS: Final = {torch.ops.aten.mkldnn_rnn_layer.default: 3}
"""Operators that look whether gradients are on, and the result that they leave out where not. Holds: 2.11, 2.13."""


def function_modes() -> list[Any]:
    """The modes of ``__torch_function__`` that are on, outermost first. Holds: 2.11, 2.13."""
    return list(torch.overrides._get_current_function_mode_stack())  # type: ignore[no-untyped-call]


def set_function_modes(modes: Sequence[Any]) -> None:
    """From now on exactly these are on. Holds: 2.11, 2.13."""
    for _ in range(torch._C._len_torch_function_stack()):
        torch.overrides._pop_mode()  # type: ignore[no-untyped-call]
    for mode in modes:
        torch.overrides._push_mode(mode)  # type: ignore[no-untyped-call]


def default_device_context() -> Any:
    """What ``torch.set_default_device`` has entered, or ``None``. Holds: 2.11, 2.13."""
    return getattr(torch._GLOBAL_DEVICE_CONTEXT, "device_context", None)


def set_default_device_context(context: Any) -> None:
    """Names what a later ``torch.set_default_device`` leaves; it is entered by its mode alone. Holds: 2.11, 2.13."""
    torch._GLOBAL_DEVICE_CONTEXT.device_context = context
    modes = function_modes()
    inner = [mode.device for mode in modes if isinstance(mode, torch.utils._device.DeviceContext)]
    torch.utils._device.CURRENT_DEVICE = inner[-1] if inner else None


def call_composite(operator: Any, *arguments: Any, **by_name: Any) -> Any:
    """Calls what takes a composite operator apart, whatever kernel stands before it. Holds: 2.11, 2.13."""
    return operator._op_dk(DispatchKey.CompositeImplicitAutograd, *arguments, **by_name)


BACKWARD_ENGINE: Final = "_engine_run_backward"
"""The function of ``torch.autograd`` in which gradients, and the user's hooks, run. Holds: 2.11, 2.13."""
attention_priority: Final[Callable[[], list[int]]] = torch._C._get_sdp_priority_order
"""Attention backends in the order in which torch tries them, as ``SDPBackend`` numbers. Holds: 2.11, 2.13."""
has_mkl: Final[bool] = torch._C.has_mkl
"""Whether this build multiplies matrices by MKL. Holds: 2.11, 2.13."""
fp32_precision: Final[Callable[[str, str], str]] = torch._C._get_fp32_precision_getter
"""What a backend computes float32 in; the public attributes are slow, and may raise. Holds: 2.11, 2.13."""
set_fp32_precision: Final[Callable[[str, str, str], Any]] = torch._C._set_fp32_precision_setter
"""The switch of the same. Holds: 2.11, 2.13."""
set_cublas_tf32: Final[Callable[[bool], None]] = torch._C._set_cublas_allow_tf32
"""The switch of cuBLAS alone, by its old name and its new one, which must agree. Holds: 2.11, 2.13."""
set_cudnn_tf32: Final[Callable[[bool], None]] = torch._C._set_cudnn_allow_tf32
"""The old switch of cuDNN's precisions, which must agree with the new ones. Holds: 2.11, 2.13."""
switch_readers: Final[Mapping[str, Callable[[], Any]]] = {
    "torch.backends.mkldnn.enabled": torch._C._get_mkldnn_enabled,
    "torch.backends.mkldnn.deterministic": torch._C._get_mkldnn_deterministic,
    "torch.backends.nnpack.enabled": torch._C._get_nnpack_enabled,
    "torch.backends.cudnn.enabled": torch._C._get_cudnn_enabled,
    "torch.backends.cudnn.benchmark": torch._C._get_cudnn_benchmark,
    "torch.backends.cudnn.deterministic": torch._C._get_cudnn_deterministic,
    "torch.backends.cuda.matmul.allow_fp16_accumulation": torch._C._get_cublas_allow_fp16_accumulation,
    "torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction": (
        torch._C._get_cublas_allow_fp16_reduced_precision_reduction
    ),
    "torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction": (
        torch._C._get_cublas_allow_bf16_reduced_precision_reduction
    ),
}
"""Switches that choose kernels, by their public names: what each is. Holds: 2.11, 2.13."""
switch_writers: Final[Mapping[str, Callable[..., Any]]] = {
    "torch.backends.mkldnn.enabled": torch._C._set_mkldnn_enabled,
    "torch.backends.mkldnn.deterministic": torch._C._set_mkldnn_deterministic,
    "torch.backends.nnpack.enabled": torch._C._set_nnpack_enabled,
    "torch.backends.cudnn.enabled": torch._C._set_cudnn_enabled,
    "torch.backends.cudnn.benchmark": torch._C._set_cudnn_benchmark,
    "torch.backends.cudnn.deterministic": torch._C._set_cudnn_deterministic,
    "torch.backends.cuda.matmul.allow_fp16_accumulation": torch._C._set_cublas_allow_fp16_accumulation,
    "torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction": (
        torch._C._set_cublas_allow_fp16_reduced_precision_reduction
    ),
    "torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction": (
        torch._C._set_cublas_allow_bf16_reduced_precision_reduction
    ),
}
"""The setters of the same. Holds: 2.11, 2.13."""
deterministic_switches: Final = (
    torch._C._get_deterministic_algorithms,
    torch._C._get_deterministic_algorithms_warn_only,
    torch._C._get_deterministic_fill_uninitialized_memory,
)
"""Whether kernels must be deterministic, only warn, and fill what they make empty. Holds: 2.11, 2.13."""

set_deterministic_algorithms: Final[Callable[..., None]] = torch._C._set_deterministic_algorithms
"""What a compiled graph calls where the model calls ``torch.use_deterministic_algorithms``. Holds: 2.11, 2.13."""


def set_deterministic_switches(mode: bool, warn_only: bool, fill: bool) -> None:  # noqa: FBT001 - torch's own signature
    """The switches of the same, without those of Inductor. Holds: 2.11, 2.13."""
    set_deterministic_algorithms(mode, warn_only=warn_only)
    torch._C._set_deterministic_fill_uninitialized_memory(fill)


class UncompiledDispatchMode(torch.utils._python_dispatch.TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A mode that sees every operator call below autograd, without the wrapper that keeps Dynamo out of each.

    Dynamo is not running. Holds: 2.11, 2.13.
    """

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False


# -- fake tensors

FakeTensor = torch._subclasses.fake_tensor.FakeTensor
"""A tensor with a shape and a storage, and no bytes. Holds: 2.11, 2.13."""
FakeTensorMode = torch._subclasses.fake_tensor.FakeTensorMode
"""The mode in which tensors are fake. Holds: 2.11, 2.13."""


def device_of_fake(tensor: Any) -> torch.device:
    """What a fake tensor tells C++ that its device is: in a kernel on meta tensors, theirs. Holds: 2.11, 2.13."""
    return torch.device("meta") if tensor.fake_mode.in_kernel_invocation else tensor.fake_device


def fake_like(pattern: FakeTensor, meta: torch.Tensor) -> FakeTensor:
    """A fake tensor of a meta one, on the device and of the mode of ``pattern``, which knows no value of itself.

    Its constructor, which sets each attribute through a descriptor, is most of what a cached call costs. Holds: 2.13.
    """
    device = pattern.fake_device
    kind, needs_gradient = FakeTensor, False
    fake = torch.Tensor._make_subclass(kind, meta, needs_gradient, dispatch_device=True, device_for_backend_keys=device)
    torch._C._set_throw_on_mutable_data_ptr(fake)
    fake.__dict__.update(pattern.__dict__)
    return fake


JAGGED_LENGTH: Final = "get_nested_int"
"""The method that jagged tensors ask for the length of a row, replaced: it makes symbols. Holds: 2.13."""
in_kernel_invocation_manager = torch._subclasses.fake_tensor.in_kernel_invocation_manager
"""Block in which a fake tensor is its meta tensor, for making one by hand. Holds: 2.11, 2.13."""
DataDependentOutputException = torch._subclasses.fake_tensor.DataDependentOutputException
"""What a fake tensor raises when its value is asked for. Holds: 2.11, 2.13."""
DynamicOutputShapeException = torch._subclasses.fake_tensor.DynamicOutputShapeException
"""What it raises where values decide the shape of a result. Holds: 2.13."""
UnsupportedOperatorException = torch._subclasses.fake_tensor.UnsupportedOperatorException
"""What it raises for an operator without a fake kernel. Holds: 2.13."""

# -- tensors whose bytes lie on a device that is written in Python

make_wrapper: Final[Callable[..., Any]] = torch.Tensor._make_wrapper_subclass
"""Makes a tensor of a subclass with a shape, a device and no bytes. Holds: 2.13."""
no_torch_function = torch._C._disabled_torch_function_impl
"""What a subclass has as ``__torch_function__`` that is asked about operators alone. Holds: 2.13."""
custom_device_name: Final[Callable[[], str]] = torch._C._get_privateuse1_backend_name
"""What the one device type is called that a process may add. Holds: 2.13."""
UNNAMED_DEVICE: Final = "privateuseone"
"""Its name while nobody has added one. Holds: 2.13."""
SeededDevice = torch.utils.backend_registration._DummyBackendModule
"""A device module of one device that ``torch.manual_seed`` tells of its seed. Holds: 2.13."""


class UnclaimedDevice(torch._C._acc.PrivateUse1Hooks):
    """An added device that is there, and is not what programs mean by the accelerator. Holds: 2.13."""

    def is_available(self) -> bool:
        """As ``torch.accelerator.is_available`` asks."""
        return False

    def has_primary_context(self, dev_id: int) -> bool:
        """As autograd asks."""
        del dev_id
        return True

    def is_built(self) -> bool:
        """The same."""
        return True


def register_python_device(name: str, module: Any) -> tuple[Any, Any]:
    """Make the one added device type known under a name; what is returned must live as long. Holds: 2.13."""
    registration = torch.utils.backend_registration
    registration.rename_privateuse1_backend(name)
    torch._register_device_module(name, module)  # type: ignore[no-untyped-call]
    hooks, guard = UnclaimedDevice(), registration._DummyDeviceGuard()
    torch._C._acc.register_python_privateuseone_hook(hooks)
    torch._C._acc.register_python_privateuseone_device_guard(guard)
    return hooks, guard


def is_composite(operator: Any) -> bool:
    """Whether torch takes an operator apart by a function of its own that autograd sees through. Holds: 2.13."""
    return torch._C._dispatch_has_kernel_for_dispatch_key(operator.name(), "CompositeImplicitAutograd")


@cache
def has_own_kernel(operator: Any) -> bool:
    """Whether an operator has a kernel of its own on a device, and is not taken apart there. Holds: 2.13."""
    return torch._C._dispatch_has_kernel_for_dispatch_key(operator.name(), "CPU")


# -- Dynamo, where it is not imported

DYNAMO: Final = "torch._dynamo"
"""The module behind ``torch.compile``, whose import takes longer than planning a small model. Holds: 2.13."""
DYNAMO_OF_TORCH: Final = "_dynamo"
"""Its name in ``torch``, which imports it when it is first taken. Holds: 2.13."""


class UnnamedSource(torch._guards.Source):
    """Where a constant that becomes a fake tensor comes from: nobody asks, sizes being numbers. Holds: 2.13."""

    def __init__(self, name: str) -> None:
        """``name`` is not kept."""


class AbsentSource(torch._guards.Source):
    """What no constant comes from while Dynamo compiles nothing. Holds: 2.13."""


DYNAMO_PARTS: Final[Mapping[str, Mapping[str, Callable[[], Any]]]] = {
    "config": {
        "fake_tensor_cache_enabled": lambda: os.environ.get("TORCH_FAKE_TENSOR_DISPATCH_CACHE", "1") == "1",
        "fake_tensor_cache_crosscheck_enabled": (
            lambda: os.environ.get("TORCH_FAKE_TENSOR_DISPATCH_CACHE_CROSSCHECK", "0") == "1"
        ),
        "_custom_ops_profile": lambda: None,
    },
    "source": {"ConstantSource": lambda: UnnamedSource, "RandomValueSource": lambda: AbsentSource},
}
"""What fake tensors take of its modules: options that nobody has set, classes that say little. Holds: 2.13."""


def keep_disabled(function: Any, disabled: Any) -> None:
    """What ``torch._disable_dynamo`` calls for a function of torch's from now on. Holds: 2.13."""
    function.__dynamo_disable = disabled


# -- modules, containers, random generators

tree_leaves = torch.utils._pytree.tree_leaves
"""The leaves of nested containers, as checkpoint itself lists its arguments. Holds: 2.11, 2.13."""
tree_unflatten = torch.utils._pytree.tree_unflatten
"""Values in the nested containers that a program was exported for. Holds: 2.11, 2.13."""
parameter_table: Final[Callable[[nn.Module], dict[str, nn.Parameter | None]]] = attrgetter("_parameters")
"""A module's own parameters, to replace one; setting the attribute runs hooks. Holds: 2.11, 2.13."""
buffer_table: Final[Callable[[nn.Module], dict[str, torch.Tensor | None]]] = attrgetter("_buffers")
"""A module's own buffers, the same. Holds: 2.11, 2.13."""
version_counter: Final[Callable[[torch.Tensor], int]] = attrgetter("_version")
"""How often a tensor was written in place, as autograd counts it, views included. Holds: 2.11, 2.13."""
MODULE_APPLY: Final = "_apply"
"""``nn.Module._apply``: what ``.to()``, ``.half()`` and their kind come down to. Holds: 2.11, 2.13."""
MODULE_TABLES: Final = ("_parameters", "_buffers", "_modules")
"""Attributes in which a module keeps its weights, buffers and children by name. Holds: 2.11, 2.13."""
TENSOR_HOOKS: Final = ("_backward_hooks", "_post_accumulate_grad_hooks")
"""Attributes in which a tensor keeps the functions that its gradient is given to. Holds: 2.11, 2.13."""
UNCOMPILED_MODULE: Final = "_orig_mod"
"""Where ``torch.compile(module)`` keeps the module. Holds: 2.11, 2.13."""
default_generator: Final[torch.Generator] = torch._C.default_generator
"""The CPU's generator itself, whatever stands in for ``torch.default_generator``. Holds: 2.11, 2.13."""
CHECKPOINT_DEVICE_MODULE: Final = "_get_device_module"
"""``torch.utils.checkpoint._get_device_module``: whom it asks for a device's random state. Holds: 2.11, 2.13."""
INITIALIZED_DEVICE_MODULE: Final = SimpleNamespace(_initialized=True)
"""What checkpoint takes for a device that is in use. Holds: 2.11, 2.13."""
has_internal_overlap = torch._debug_has_internal_overlap
"""Whether elements of a tensor share bytes: 1 yes, 0 no, 2 unknown. Holds: 2.11, 2.13."""
can_take_data_of = torch._has_compatible_shallow_copy_type
"""Whether ``tensor.data = other`` is possible. Holds: 2.11, 2.13."""

# -- autograd

current_autograd_node: Final[Callable[[], Any]] = torch._C._current_autograd_node
"""The node whose gradient this thread computes. Holds: 2.11, 2.13."""
next_sequence_number: Final[Callable[[], int]] = torch._C._autograd._get_sequence_nr
"""The number that autograd gives the next node. Holds: 2.11, 2.13."""
keeps_graph: Final[Callable[[], bool]] = torch._C._autograd._get_current_graph_task_keep_graph
"""Whether the backward pass that runs was given ``retain_graph=True``. Holds: 2.11, 2.13."""
TracingContext = torch._guards.TracingContext
"""Where AOTAutograd says which arguments are weights. Holds: 2.11, 2.13."""


def sequence_number(node: Any) -> int:
    """The number of an autograd node, which pairs a forward call with its gradient. Holds: 2.11, 2.13."""
    return int(node._sequence_nr())


def mark_boxed(function: Any) -> None:
    """Tell AOTAutograd that the function takes one list and may empty it. Holds: 2.11, 2.13."""
    function._boxed_call = True


# -- functorch, profiler, TorchScript

is_functorch_wrapped: Final[Callable[[torch.Tensor], bool]] = torch._C._functorch.is_functorch_wrapped_tensor
"""Whether a tensor stands for another one inside ``torch.func``. Holds: 2.11, 2.13."""
functorch_level: Final[Callable[[], Any]] = torch._C._functorch.peek_interpreter_stack
"""The innermost transform of ``torch.func``, or nothing. Holds: 2.11, 2.13."""
is_profiler_enabled: Final[Callable[[], bool]] = torch._C._autograd._profiler_enabled
"""Whether a profiler is running: there can be one. Holds: 2.11, 2.13."""
start_profiler: Final[Callable[[Any], None]] = torch._C._autograd._enable_profiler_legacy
"""Start the profiler that tells of allocations and needs no Kineto. Holds: 2.11, 2.13."""
stop_profiler: Final[Callable[[], Any]] = torch._C._autograd._disable_profiler_legacy
"""End it; its events by thread. Holds: 2.11, 2.13."""


def memory_profiler_config() -> Any:
    """The options of ``start_profiler`` that ask for allocations and no shapes. Holds: 2.11, 2.13."""
    profiler = torch._C._profiler
    options = (profiler.ProfilerState.CPU, False, True, False, False, False, profiler._ExperimentalConfig())
    return profiler.ProfilerConfig(*options)


_QUIET: Final = "6"


def start_event_profiler() -> None:
    """Start the profiler whose events form trees, with every alloc and free of the CPU's. Holds: 2.11, 2.13."""
    profiler = torch._C._profiler
    options = (profiler.ProfilerState.KINETO, False, True, False, False, False, profiler._ExperimentalConfig())
    config, activities = profiler.ProfilerConfig(*options), {profiler.ProfilerActivity.CPU}
    is_user_level = "KINETO_LOG_LEVEL" in os.environ
    os.environ.setdefault("KINETO_LOG_LEVEL", _QUIET)  # it is read once, and logs each start and end
    torch._C._autograd._prepare_profiler(config, activities)
    if not is_user_level:
        del os.environ["KINETO_LOG_LEVEL"]
    torch._C._autograd._enable_profiler(config, activities)


def event_tree() -> list[Any]:
    """End it; the events that no other event holds, in order. Holds: 2.11, 2.13."""
    roots: list[Any] = torch._C._autograd._disable_profiler().experimental_event_tree()
    return roots


def is_allocation(event: Any) -> bool:
    """Whether an event is an alloc or a free, with ``alloc_size`` and ``ptr`` in its fields. Holds: 2.11, 2.13."""
    return bool(event.tag == torch._C._profiler._EventType.Allocation)


def start_cuda_history(device: torch.device) -> None:
    """Have CUDA's allocator note each alloc and free from now on. No GPU has run it yet. Holds: 2.11, 2.13."""
    torch.cuda.memory._record_memory_history("all", context=None, device=device, clear_history=True)


def stop_cuda_history(device: torch.device) -> None:
    """Have it note no more. No GPU has run it yet. Holds: 2.11, 2.13."""
    torch.cuda.memory._record_memory_history(None, device=device)


def mark_cuda_history(text: str) -> None:
    """Entries from now on say this text as ``user_metadata``. No GPU has run it yet. Holds: 2.11, 2.13."""
    torch.cuda.memory._set_memory_metadata(text)


def cuda_history(device: torch.device) -> Mapping[str, Any]:
    """Its snapshot; ``device_traces`` are each device's entries. No GPU has run it yet. Holds: 2.11, 2.13."""
    snapshot: Mapping[str, Any] = torch.cuda.memory._snapshot(device)
    return snapshot


ScriptGraph: Final[Any] = torch._C.Graph
"""A TorchScript graph, into which the steps of a plan are written. Holds: 2.11, 2.13."""
ScriptListType: Final[Any] = torch._C.ListType
"""The TorchScript type of a list. Holds: 2.11, 2.13."""
script_int_type: Final[Callable[[], Any]] = torch._C.IntType.get
"""The TorchScript type of a whole number. Holds: 2.11, 2.13."""
script_tensor_type: Final[Callable[[], Any]] = torch._C.TensorType.get
"""The TorchScript type of a tensor of any shape. Holds: 2.11, 2.13."""
function_from_graph: Final[Callable[[str, Any], Any]] = torch._C._create_function_from_graph
"""A TorchScript graph as a function. Holds: 2.11, 2.13."""
is_executor_optimizing: Final[Callable[[], bool]] = torch._C._get_graph_executor_optimize
"""Whether the graph executor of this thread may change what it runs. Holds: 2.11, 2.13."""
set_executor_optimizing: Final[Callable[[bool], None]] = torch._C._set_graph_executor_optimize
"""The switch of the same. Holds: 2.11, 2.13."""

foreach_types: Final[list[type[torch.Tensor]]] = torch.utils._foreach_utils._foreach_supported_types
"""Classes of tensors for which clipping takes operators on lists. Holds: 2.11, 2.13."""
DEFAULT_FORM: Final = "_default_to_fused_or_foreach"
"""The function of ``torch.optim``'s modules that picks an optimizer's form, replaced. Holds: 2.11, 2.13."""

# -- loaded when first taken

aot_autograd: Callable[..., Any]
"""AOTAutograd, torch's own split of a graph into forward and backward. Holds: 2.11, 2.13."""
functorch_config: Any
"""Its options: gradients may not be donated, a plan says where they lie. Holds: 2.11, 2.13."""
CustomOpObserver: type[Any]
"""The mode in which it watches the operators of a first call for custom ones that lie. Holds: 2.11, 2.13."""
compile_lock: AbstractContextManager[Any]
"""Held by Dynamo while it compiles; reentrant. Holds: 2.11, 2.13."""
default_partition: Callable[..., Any]
"""Its split that saves what eager saves. Holds: 2.11, 2.13."""
min_cut_partition: Callable[..., Any]
"""Its split that computes again what is cheap. Holds: 2.11, 2.13."""
NestedIntNode: Callable[[int, int], Any]
"""The length of a jagged row as eager has it. Holds: 2.13."""
interpolate_deterministically: Callable[..., torch.Tensor]
"""What ``interpolate`` runs on a GPU in place of its kernels where those are not deterministic. Holds: 2.11, 2.13."""
pad_deterministically: Callable[..., torch.Tensor]
"""What ``pad(mode="replicate")`` runs there. Holds: 2.11, 2.13."""
deserialize_scalar_type: Callable[[Any], torch.dtype]
"""A dtype as a ``.pt2`` archive numbers it. Holds: 2.11, 2.13."""
FakeStore: Callable[[], Any]
"""What a process group of the ``fake`` backend is made with, which it registers. Holds: 2.13."""
archive_package: Any
"""How such an archive is read. Holds: 2.11, 2.13."""
archive_schema: Any
"""How the records of one become a program. Holds: 2.11, 2.13."""
make_fx: Callable[..., Any]
"""Traces a function to a graph of operators, taken apart by a table. Holds: 2.13."""
select_decomp_table: Callable[[], Any]
"""The table by which Inductor has operators taken apart. Holds: 2.13."""
compile_fx_inner: Callable[..., Any]
"""Inductor from a graph of operators to its code. Holds: 2.13."""
AsyncCompile: type[Any]
"""Whose ``cpp_pybinding(types, source)`` compiles a kernel, replaced to have the source alone. Holds: 2.13."""
GraphLowering: type[Any]
"""Whose ``compile_to_module`` returns the module that calls the kernels, replaced to have it. Holds: 2.13."""
inductor_config: Any
"""Inductor's options. Holds: 2.13."""
cpu_vec_isa: Any
"""Which asks ``pick_vec_isa`` for the vectors of this machine, replaced for one that has others. Holds: 2.13."""
inductor_codecache: Any
"""The same in the module that keys its caches. Holds: 2.13."""
inductor_scheduler: Any
"""Which asks ``has_triton`` before it writes for a GPU, replaced where none is. Holds: 2.13."""
DeviceProperties: type[Any]
"""What Inductor knows of a device; ``create``, which asks it, is replaced by one that is told. Holds: 2.13."""
triton_versions: Any
"""Whose ``triton_hash_with_backend`` asks Triton for its device, replaced where none is. Holds: 2.13."""
TRITON_IMPORTS: Final = """import triton
import triton.language as tl
from torch._inductor.runtime import triton_helpers
from torch._inductor.runtime.triton_helpers import libdevice, math as tl_math
"""
"""What the Triton kernels that Inductor writes are made of. Holds: 2.13."""
cpp_builder: Any
"""The compiler that Inductor finds, and its options. Holds: 2.13."""
GRAD_SCALER_STEP: Final = "_maybe_opt_step"
"""The method of ``torch.amp.GradScaler`` that steps unless a gradient overflowed, replaced. Holds: 2.11, 2.13."""
ARCHIVE_UNPICKLER: Final = "deserialize_torch_artifact"
"""The function of ``archive_schema`` that reads sample inputs, replaced to leave them unread. Holds: 2.11, 2.13."""
ARCHIVE_FILE_MAP: Final = "_build_file_map"
"""The function of ``archive_package`` that reads tensors, replaced to leave weights unread. Holds: 2.11, 2.13."""

_LAZY: Final[Mapping[str, tuple[str, str]]] = {
    "aot_autograd": ("torch._dynamo.backends.common", "aot_autograd"),
    "functorch_config": ("torch._functorch", "config"),
    "CustomOpObserver": ("torch._functorch._aot_autograd.runtime_wrappers", "_AnalyzeCustomOpInputOutputMode"),
    "compile_lock": ("torch._dynamo.convert_frame", "compile_lock"),
    "default_partition": ("torch._functorch.partitioners", "default_partition"),
    "min_cut_partition": ("torch._functorch.partitioners", "min_cut_rematerialization_partition"),
    "NestedIntNode": ("torch.nested._internal.nested_int", "NestedIntNode"),
    "interpolate_deterministically": ("torch._decomp.decompositions", "_upsample_linear_vec"),
    "pad_deterministically": ("torch._decomp.decompositions", "_replication_pad"),
    "deserialize_scalar_type": ("torch._export.serde.serialize", "deserialize_scalar_type"),
    "FakeStore": ("torch.testing._internal.distributed.fake_pg", "FakeStore"),
    "make_fx": ("torch.fx.experimental.proxy_tensor", "make_fx"),
    "select_decomp_table": ("torch._inductor.decomposition", "select_decomp_table"),
    "compile_fx_inner": ("torch._inductor.compile_fx", "compile_fx_inner"),
    "AsyncCompile": ("torch._inductor.async_compile", "AsyncCompile"),
    "GraphLowering": ("torch._inductor.graph", "GraphLowering"),
    "inductor_config": ("torch._inductor", "config"),
    "cpu_vec_isa": ("torch._inductor", "cpu_vec_isa"),
    "inductor_codecache": ("torch._inductor", "codecache"),
    "inductor_scheduler": ("torch._inductor", "scheduler"),
    "DeviceProperties": ("torch._inductor.runtime.hints", "DeviceProperties"),
    "triton_versions": ("torch.utils", "_triton"),
    "cpp_builder": ("torch._inductor", "cpp_builder"),
    "archive_package": ("torch.export.pt2_archive", "_package"),
    "archive_schema": ("torch._export.serde", "serialize"),
}

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        if name not in _LAZY:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        path, attribute = _LAZY[name]
        # Parts of AOTAutograd import each other in a circle, which holds only when it is entered at its own module.
        if path.startswith("torch._functorch."):
            import_module("torch._functorch.aot_autograd")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of what torch itself uses
            value = getattr(import_module(path), attribute, None) or import_module(f"{path}.{attribute}")
        globals()[name] = value
        return value
