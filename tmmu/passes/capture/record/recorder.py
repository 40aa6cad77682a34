"""Record what a program does: every operator call, on which storages, in an fx graph.

The recorder is a dispatch mode above fake tensors. It sees the calls that eager PyTorch would make, in the order
in which it would make them, with views, in-place writes, autograd and optimizer steps as they are: nothing is
functionalized, so a mutated buffer stays one buffer.

State. ``builder`` is the graph so far, its storages, and the node of each tensor (``graph_builder.py``,
``storage_table.py``); ``randomness`` the generator's state (``randomness.py``). ``_forward_notes`` has module and line
of forward calls by autograd number, for their gradients to take over. ``_unmodelled`` are buffers of the model that no
window describes (sparse ones): while the model is built they come and go, and a step that reads one is refused. The
rest is where the program is: its stage, the module that runs, how many calls there were. A storage is known once a
tensor on it was declared, adopted as a constant, or returned by a recorded call.

Invariants. A call is recorded once it has returned: one that raises leaves at most nodes for its arguments. What tmmu
itself calls meanwhile is not recorded (``pause``). The recorder holds storages but none of the program's fake tensors,
so that autograd frees what it frees in eager, and weak references die as there.
"""

import gc
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import fx

from tmmu.errors import UnsupportedOp
from tmmu.ir.program import Switches
from tmmu.kernel_switches import current_switches
from tmmu.passes.capture.modules import ModuleStack
from tmmu.passes.capture.program import CapturedProgram, SurvivingStorage, Window
from tmmu.passes.capture.ranks.groups import with_rank_groups
from tmmu.passes.capture.ranks.layouts import Layouts
from tmmu.passes.capture.record.call_cache import CallCache
from tmmu.passes.capture.record.corrections.results import (
    correct_result,
    first_unmodelled,
    refusal_of_layout,
    require_real_kernel,
    result_of_real_kernel,
)
from tmmu.passes.capture.record.custom_operators import (
    CustomOperators,
    is_custom,
    require_known_collective,
)
from tmmu.passes.capture.record.determinism import require_deterministic_kernel
from tmmu.passes.capture.record.graph_builder import GraphBuilder, TensorOrigin, flatten
from tmmu.passes.capture.record.known_shapes import answer_of_known_values, result_of_known_values
from tmmu.passes.capture.record.places import HOST, ON_DEVICE, TRACED_DEVICE, mark_host, result_is_on_host
from tmmu.passes.capture.record.randomness import Randomness
from tmmu.passes.capture.record.storage_changes import StorageChanges
from tmmu.passes.capture.record.unknown_numbers import require_elements_alone
from tmmu.passes.capture.record.unseen_tensors import UnseenTensors, is_subclass
from tmmu.passes.capture.record.values import concrete_scalar
from tmmu.passes.capture.request import Progress, no_progress
from tmmu.passes.capture.routing.routing import Routing
from tmmu.passes.capture.sources import calling_source
from tmmu.passes.operators.collectives import NAMESPACES
from tmmu.passes.operators.schema import signature, written_arguments
from tmmu.torch_private import (
    DisableTorchDispatch,
    DisableTorchFunction,
    FakeTensor,
    OpOverload,
    UncompiledDispatchMode,
    current_autograd_node,
    device_of_fake,
    has_own_kernel,
    next_sequence_number,
    sequence_number,
)

_SILENT = {"prim": nullcontext, "profiler": DisableTorchDispatch}
"""Namespaces of calls that are no part of a program, with the block to make them in: a profiler's are on no tensor."""
_DEVICE_OF = torch.ops.prim.device.default
"""What C++ asks for a fake tensor's device: in a trace of distributed tensors half of all that is dispatched."""
_PROGRESS_EVERY = 64
_PLACES = frozenset({HOST, ON_DEVICE})


class Recorder(UncompiledDispatchMode):
    """Everything called while the mode is on, as nodes of one graph.

    ``strict`` refuses a fake tensor that comes from nowhere: no constant, but work that is not seen. ``own_step``: the
    program is a step of the user's, with gradients and updates where it has them; what is there before it
    (``note_earlier``) is state. ``routing`` is what gates are taken to choose.
    """

    def __init__(  # noqa: PLR0913 - what a recording knows of the program, by name alone
        self,
        *,
        folder: str = "",
        modules: ModuleStack | None = None,
        progress: Progress = no_progress,
        device: str = "cpu",
        strict: bool = False,
        own_step: bool = False,
        layouts: Layouts | None = None,
        routing: Routing | None = None,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.builder = GraphBuilder(
            self._notes, self._node_of_unknown, folder=folder, follows_lifetimes=strict, routing=routing
        )
        self.randomness = Randomness(self.builder, self.pause, device)
        self._stage, self._stage_module = "forward", ""
        self._strict = strict
        self._own_step = own_step
        self._device = device
        self._folder = folder
        self._modules = modules or ModuleStack()
        self.layouts = layouts or Layouts()
        self._progress = progress
        self._cache = CallCache(self._corrected)
        self._unrecorded = CallCache()
        self._custom_operators = CustomOperators()
        self._recording = True
        self._numbers_are_arbitrary = False
        self._calls = 0
        self._forward_notes: dict[int, tuple[str, str]] = {}
        self._unmodelled: list[tuple[torch.Tensor, str]] = []
        self.storage_changes = StorageChanges(self.builder, self.source, self.pause)
        self.unseen = UnseenTensors(self.source)
        self.supervision: list[Window] = []
        self._unwraps = False
        self._switches: dict[Switches, None] = {}
        self._place_named: torch.device | None = None

    # -- what the program starts from and ends with

    def keep_state(self, tensor: torch.Tensor, *, name: str) -> torch.Tensor:
        """The tensor, declared as state that begins at zero; a number among them is known to."""
        with DisableTorchFunction():
            self.builder.declare(tensor, role="state", name=name, is_zero=tensor.dim() == 0)
        return tensor

    def keep_supervision(self, make: Callable[[], torch.Tensor], *, name: str) -> torch.Tensor:
        """What ``make`` gives, declared as an input that comes after those of the model."""
        with self.pause():
            tensor = make()
        self.supervision.append(self.declare(tensor, role="input", name=name))
        return tensor

    def name_unmodelled(self, tensor: torch.Tensor, *, name: str) -> None:
        """Note the name of a tensor without strides, for the refusal of the call that reads it."""
        self._unmodelled.append((tensor, name))

    def note_earlier(self, handles: Iterable[torch.UntypedStorage], names: Mapping[int, str]) -> None:
        """What is there before a step of the user's; ``names`` by address of the storage."""
        for handle in handles:
            self.builder.lifetimes.watch_earlier(handle)
        self.builder.names.update(names)

    def outliving_windows(self, shown: Iterable[Window]) -> tuple[Window, ...]:
        """Of each storage that the step made, no result shows, and somebody holds after it: a window on all of it."""
        self.randomness.let_go()
        table, storages = self.builder.table, {window.storage for window in shown}
        before = frozenset(table.living())
        gc.collect()
        living = table.living()
        self.builder.lifetimes.note_collection(before, frozenset(living))
        makers = ((storage, table.maker_of(storage).meta["windows"]) for storage in living if storage not in storages)
        return tuple(next(w for w in windows if w is not None and w.storage == s) for s, windows in makers)

    def declare(self, tensor: torch.Tensor, *, role: str, name: str, known: bool = False) -> Window:
        """Make the tensor's storage known under a role and name, unless it already is; its window.

        ``known``: the program may look at the value that it was built with.
        """
        with DisableTorchFunction():
            _require_in_memory(tensor, name)
            self.unseen.note(tensor, name)
            self.builder.declare(tensor, role=role, name=name, known=known)
            return self.builder.table.window(tensor)

    def window_of(self, tensor: torch.Tensor) -> Window:
        """The window of a tensor; one that nobody declared becomes a constant."""
        with DisableTorchFunction():
            self.builder.node_of(tensor)
            return self.builder.table.window(tensor)

    def surviving_storages(self, outputs: Iterable[Window]) -> tuple[SurvivingStorage, ...]:
        """What calls made, no output shows, and somebody holds now that the program has ended.

        Garbage in cycles is collected first: what holds a tensor then will hold it until the next step.
        """
        self.randomness.let_go()
        table, shown = self.builder.table, {window.storage for window in outputs}
        before = frozenset(table.living())
        if not before - shown:
            return ()
        gc.collect()
        living = table.living()
        self.builder.lifetimes.note_collection(before, frozenset(living))
        survivors = [storage for storage in living if storage not in shown and table.bytes_of(storage)]
        makers = [table.maker_of(storage).meta.get("source", "") for storage in survivors]
        pairs = zip(survivors, makers, strict=True)
        return tuple(SurvivingStorage(bytes=table.bytes_of(storage), source=source) for storage, source in pairs)

    def finish(
        self,
        *,
        name: str,
        device: str,
        inputs: tuple[Window, ...],
        outputs: tuple[Window, ...],
        survivors: tuple[SurvivingStorage, ...] = (),
    ) -> CapturedProgram:
        """The program recorded so far; ``UNSUPPORTED_OP`` where it leaves a tensor of the caller's another object."""
        self.storage_changes.require_put_back()
        graph, storages = self.builder.graph, self.builder.table.storages()
        return CapturedProgram(
            name=name,
            device=device,
            graph=graph,
            storages=storages,
            inputs=inputs,
            outputs=outputs,
            assumed=tuple(self.builder.assumed),
            survivors=survivors,
            switches=tuple(self._switches),
            eager=self.builder.lifetimes.table(graph, self.builder.table) if self._strict else None,
        )

    # -- where the program is

    @contextmanager
    def in_stage(self, stage: str, *, module: str = "") -> Iterator[None]:
        """Block whose calls belong to ``stage``, and those of no module to ``module``."""
        before, self._stage, self._stage_module = self._stage, stage, module
        self.builder.lifetimes.stage = stage
        try:
            yield
        finally:
            self._stage, self._stage_module = before, ""
            self.builder.lifetimes.stage = before

    def keep_optimizer(self, make: Callable[[], torch.optim.Optimizer]) -> torch.optim.Optimizer:
        """A new one: one step is recorded."""
        return make()

    @contextmanager
    def make_state(self) -> Iterator[None]:
        """Block whose calls are not recorded, and in which numbers of tensors are 0.5 or 1."""
        self._numbers_are_arbitrary = True
        try:
            with self.pause():
                yield
        finally:
            self._numbers_are_arbitrary = False

    @contextmanager
    def pause(self) -> Iterator[None]:
        """Block whose calls are not recorded."""
        before, self._recording = self._recording, False
        try:
            yield
        finally:
            self._recording = before

    def _notes(self) -> dict[str, Any]:
        """Stage, module, source line and autograd number; a gradient takes module and line of its forward op."""
        self._calls += 1
        stage = "backward" if self._own_step and current_autograd_node() is not None else self._stage
        notes: dict[str, Any] = {"index": (self._calls, 0), "stage": stage}
        if switches := current_switches(self._device):
            notes["switches"] = switches
            self._switches.setdefault(switches)
        backward = current_autograd_node() if stage == "backward" else None
        if backward is not None:
            number = sequence_number(backward)
            module, source = self._forward_notes.get(number, ("", ""))
            return notes | {"sequence": number, "module": module, "source": source}
        # Autograd numbered this call's node just before, so that the last number is its own. Calls that get no node
        # have the number of the call before them, and must not take its place: the first of a number stays.
        number = next_sequence_number() - 1
        module, source = self._modules.path or self._stage_module, self.source()
        self._forward_notes.setdefault(number, (module, source))
        return notes | {"sequence": number, "module": module, "source": source}

    def source(self) -> str:
        """The line of the model that runs; empty where it is not known."""
        return self._modules.source or calling_source(self._folder)

    # -- recording a call

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is _DEVICE_OF and type(args[0]) is FakeTensor:
            return device_of_fake(args[0])
        kwargs = kwargs or {}
        if kwargs.get("device") in _PLACES:
            self._place_named, kwargs = kwargs["device"], kwargs | {"device": TRACED_DEVICE}
            try:
                return self.__torch_dispatch__(func, types, args, kwargs)
            finally:
                self._place_named = None
        if any(map(is_subclass, types)):
            self._unwraps = True
            self.layouts.note(flatten((args, tuple(kwargs.values()))))
            return NotImplemented  # its own dispatch calls operators on what it wraps, which come here then
        if self._unwraps and self._recording and func.namespace == "aten" and not has_own_kernel(func):
            with self:  # below autograd, where a wrapper's dispatch runs, composites arrive whole
                result = func.decompose(*args, **kwargs)
            if result is not NotImplemented:
                return result
        return self._answer(func, args, kwargs)

    def _answer(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What the call returns: known values, a value that is looked at, or the results of a recorded call."""
        if self._numbers_are_arbitrary and func is torch.ops.aten._local_scalar_dense.default:
            return 0.5 if args[0].is_floating_point() else 1
        if func.namespace in _SILENT:
            with _SILENT[func.namespace]():
                return func(*args, **kwargs)
        with DisableTorchFunction():
            if not self._recording:
                return self._unrecorded.run(func, args, kwargs)
            if func is torch.ops.aten._local_scalar_dense.default:
                return concrete_scalar(args[0], self.builder.node_of(args[0]), self.builder)
            if torch.Tag.data_dependent_output in func.tags:
                answer = answer_of_known_values(func, args, kwargs, self.builder)
                if answer is not None:
                    return answer
            return self._record(func, args, kwargs)

    def _record(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        unmodelled = first_unmodelled((args, tuple(kwargs.values())))
        if unmodelled is not None and (self._strict or signature(func).mutates):
            raise self._refusal_of_layout(func, unmodelled)
        if unmodelled is not None:
            return func(*args, **kwargs)
        if self.storage_changes.places(func):
            return self._place(func, args, kwargs)
        kwargs = self.randomness.before_call(func, args, kwargs)
        node_args = self.builder.nodes_in(args)
        node_kwargs = {key: self.builder.nodes_in(value) for key, value in kwargs.items()}
        if self.builder.takes_numbers:
            require_elements_alone(func, (*node_args, *node_kwargs.values()))
        require_real_kernel(func, args, kwargs)
        require_known_collective(func)
        self._require_deterministic(func, args, kwargs)
        # A constant comes under the fake mode on a storage of its own: for the graph the same bytes, the same node.
        if func is torch.ops.aten.lift_fresh.default:
            result = func(*args)
            self.builder.add_lifted(result, node_args[0])
            return result
        written = _written_tensors(func, args, kwargs)
        before = self.storage_changes.observe(written)
        windows = [self.builder.table.window_of(tensor) for tensor in written]
        result = self._result(func, args, kwargs)
        self.storage_changes.follow(str(func), before, keep=False)
        unmodelled = first_unmodelled(result)
        if unmodelled is not None and self._strict:
            raise self._refusal_of_layout(func, unmodelled)
        if unmodelled is not None:
            return result
        if is_custom(func):
            self._custom_operators.require_honest(func, args, kwargs, result, self.source())
        if windows != [self.builder.table.window_of(tensor) for tensor in written]:  # an ``out=`` of another size
            node_args = self.builder.nodes_in(args)
            node_kwargs = {key: self.builder.nodes_in(value) for key, value in kwargs.items()}
        if result_is_on_host((*flatten(args), *flatten(tuple(kwargs.values()))), self._place_named):
            leaves = (leaf for leaf in flatten(result) if isinstance(leaf, torch.Tensor))
            mark_host(leaf for leaf in leaves if self.builder.table.id_of(leaf) is None)
        if func.namespace in NAMESPACES:
            node_args, node_kwargs = with_rank_groups(func, node_args, node_kwargs)
        self.builder.add_call(func, node_args, node_kwargs, result, written)
        if self._calls % _PROGRESS_EVERY == 0:
            self._progress("tracing", self._calls)
        return result

    def _refusal_of_layout(self, func: OpOverload, tensor: torch.Tensor) -> UnsupportedOp:
        """The refusal of a call that reads or makes a tensor without strides; of a gradient, with its forward line."""
        name = next((name for known, name in self._unmodelled if known is tensor), "")
        return refusal_of_layout(func, tensor, name, self._forward_source())

    def _require_deterministic(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Also of a gradient, which is named by the line of its forward call."""
        switches = current_switches(self._device) if self._strict else ()
        if switches:
            require_deterministic_kernel(func, args, kwargs, switches, self._device, self._forward_source())

    def _forward_source(self) -> str:
        """The line of the forward call whose gradient is being computed; empty where none is."""
        backward = current_autograd_node()
        return "" if backward is None else self._forward_notes.get(sequence_number(backward), ("", ""))[1]

    def _place(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What a call returns that only moves its first argument: no op, but another window from now on."""
        before = self.storage_changes.observe(args[:1])
        result = func(*args, **kwargs)
        self.storage_changes.follow(str(func), before, keep=True)
        self.builder.lifetimes.note_placing()
        return result

    def _result(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What the call returns, as real kernels have it."""
        result = result_of_real_kernel(func, args, kwargs)
        if result is None:
            result = result_of_known_values(func, args, kwargs, self.builder)
        if result is None:
            return self._cache.run(func, args, kwargs)
        return self._corrected(func, args, kwargs, result)

    def _corrected(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> Any:
        return correct_result(func, args, kwargs, result, self._device)

    def _node_of_unknown(self, tensor: torch.Tensor, origin: TensorOrigin | None) -> fx.Node | None:
        node = self.randomness.node_of(tensor)
        if self._own_step and self.builder.lifetimes.is_earlier(tensor.untyped_storage()):
            return node
        if node is None and origin is None and isinstance(tensor, FakeTensor) and self._strict:
            raise self.unseen.refusal()
        return node


def _require_in_memory(tensor: torch.Tensor, name: str) -> None:
    """Refuse weights and inputs whose elements are not what their bytes say."""
    if tensor.is_conj() or tensor.is_neg():
        bit = "conjugated" if tensor.is_conj() else "negated"
        raise UnsupportedOp(
            f"{name} is a view that torch has {bit} without changing memory", fix="clone it before the model takes it"
        )


def _written_tensors(func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[torch.Tensor]:
    if not signature(func).mutates:
        return []
    return [leaf for leaf in flatten(written_arguments(func, args, kwargs)) if isinstance(leaf, torch.Tensor)]
