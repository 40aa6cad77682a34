"""A model that runs inside its plan and is called as itself."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from operator import is_not
from threading import Lock
from types import TracebackType
from typing import Any

import torch
from torch import nn

from tmmu.api.arguments import require_kind
from tmmu.api.memory_plan import MemoryPlan
from tmmu.api.model_weights import ModelWeights, places_of, storages_of
from tmmu.errors import InvalidConfig, UnsupportedOp
from tmmu.fusion.background.kernel_order import CountedRuns
from tmmu.passes.capture.call_form import (
    INPUT,
    WEIGHT,
    CallForm,
    Place,
    distinct_inputs,
    every_argument,
    filled,
    form_difference,
    form_of,
    in_order,
)
from tmmu.passes.capture.replace import TRACE_LOCK
from tmmu.passes.capture.workload import Workload
from tmmu.runtime.execute.bind import bind_executor
from tmmu.runtime.execute.bind_request import BindRequest
from tmmu.runtime.execute.executor import Executor
from tmmu.runtime.memory.tensor_views import storage_bytes
from tmmu.runtime.weights.sources import ModelTensor
from tmmu.torch_private import cpp_address


class CompiledModel:
    """Called as ``module`` is, returns what that returns, from a run inside ``plan``.

    Parameters and buffers stay the module's own, where they are: what changes them is seen by the next call, and where
    one was exchanged the plan is bound again. Results are copies, on the host where the module puts them there; an
    input or a weight that is returned is itself.
    Threads wait for each other. Not known: other changes of Python attributes of the module. ``runs`` counts calls, for
    ``fuse="auto"``.
    """

    def __init__(  # noqa: PLR0913 - the parts of a compiled model, by name
        self,
        module: nn.Module,
        *,
        plan: MemoryPlan,
        request: BindRequest,
        form: CallForm,
        assumed: Mapping[str, torch.Tensor],
        autocast: bool,
        runs: CountedRuns | None = None,
    ) -> None:
        require_kind(request, BindRequest, "model and inputs to tmmu.compile, which makes it")
        self.module, self.plan = module, plan
        self._request, self._form = request, form
        self._beside = {name: found for name, found in request.weights.items() if isinstance(found, torch.Tensor)}
        self._workload = Workload(name="", folder="", run=module, module=module)
        self._assumed, self._autocast, self._runs = assumed, autocast, runs
        self._lock = Lock()
        self._weights = ModelWeights(module)
        self._storages = storages_of(self._weights.current())
        self._executor: Executor | None = None
        self._bound_to: Mapping[str, tuple[Any, ...]] = {}
        self._is_open = True
        self._bind()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """What the module returns. ``INVALID_CONFIG`` for a call that is not planned; nothing has run then."""
        args, kwargs = in_order(self.module, args, kwargs)
        inputs = distinct_inputs(replace(self._workload, args=args, kwargs=kwargs))
        form = form_of(every_argument(self.module, args, kwargs), inputs)
        if form != self._form.arguments:
            raise InvalidConfig(
                f"this call is otherwise than planned: {form_difference(self._form.arguments, form)}",
                fix="call it alike, or compile the model for it",
            )
        self._require_as_planned()
        with self._lock:
            outputs = self._run(inputs)
        if self._runs is not None:
            self._runs.count()
        seen: set[int] = set()

        def tensor_of(place: Place) -> torch.Tensor:
            if place.kind == INPUT:
                return inputs[int(place.key)]
            if place.kind == WEIGHT:
                return self._weights.current()[str(place.key)]
            number = int(place.key)
            tensor = outputs[number].detach() if number in seen else outputs[number]  # two objects on one memory
            seen.add(number)
            return tensor.cpu() if place.on_host else tensor

        return filled(self._form.template, tensor_of)

    def __enter__(self) -> "CompiledModel":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __reduce_ex__(self, protocol: Any) -> Any:
        """``UNSUPPORTED_OP``: its memory and the code that is bound to it are neither copied nor stored."""
        raise UnsupportedOp(
            "a compiled model is not copied and not pickled", fix="copy or store its module, and compile that anew"
        )

    def close(self) -> None:
        """Gives back the plan's memory; a later call is refused. Closing again does nothing."""
        with self._lock:
            self._is_open = False
            if self._executor is not None:
                self._executor.close()
                self._executor = None

    def __repr__(self) -> str:
        return f"<CompiledModel of {type(self.module).__name__}: {self.plan!r}>"

    def _run(self, inputs: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        if not self._is_open:
            raise InvalidConfig("the compiled model is closed", fix="compile the model again")
        weights = self._weights.current()
        if places_of(weights) != self._bound_to:
            self._bind()
        executor = self._executor
        assert executor is not None
        named = {spec.name: tensor for spec, tensor in zip(executor.inputs, inputs, strict=True)}
        written = {name: weights[name] if name in weights else self._beside[name] for name in executor.states}
        self._require_layout(executor, inputs)
        self._require_assumed(weights | named)
        self._require_apart(executor, inputs, weights, written)
        for name, tensor in written.items():
            executor.state(name).copy_(storage_bytes(tensor))
        try:
            return executor.run(named)
        finally:
            for name, tensor in written.items():
                storage_bytes(tensor).copy_(executor.state(name))

    def _bind(self) -> None:
        if self._executor is not None:
            self._executor.close()
            self._executor = None
        weights = self._weights.current()
        self._require_shared_alike(weights)
        known = {name: tensor for name, tensor in self._request.weights.items() if name not in weights}
        own = {name: ModelTensor(tensor.detach()) for name, tensor in weights.items()}
        with TRACE_LOCK:  # trials put torch's generators back as they find them
            executor = bind_executor(replace(self._request, weights=known | own))
        for place in executor.bound.caller_storages:
            if place.name in weights and weights[place.name].untyped_storage().data_ptr() != place.pointer:
                executor.close()
                raise UnsupportedOp(
                    f"{place.name} cannot be read where it lies", fix="give it a contiguous storage of its own"
                )
        self._executor = executor
        self._bound_to = places_of(weights)

    def _require_shared_alike(self, weights: Mapping[str, torch.Tensor]) -> None:
        """``INVALID_CONFIG`` where tied tensors came apart, others were tied, or one has no bytes."""
        for name, tensor in weights.items():
            if tensor.device.type == "meta":
                raise InvalidConfig(f"{name} is on meta, where nothing has bytes", fix="give the model its weights")
        now = storages_of(weights)
        planned: dict[int, int] = {}
        for name, storage in self._storages.items():
            if planned.setdefault(storage, now[name]) != now[name] or len(set(planned.values())) < len(planned):
                raise InvalidConfig(
                    f"{name} shares its memory with others than when it was planned", fix="compile the model again"
                )

    def _require_apart(
        self,
        executor: Executor,
        inputs: Sequence[torch.Tensor],
        weights: Mapping[str, torch.Tensor],
        states: Mapping[str, torch.Tensor],
    ) -> None:
        """``INVALID_CONFIG`` where an input lies in a weight, and the model writes one of them: it runs on copies."""
        if not states and not executor.bound.written_inputs:
            return
        owners = {storage: name for name, storage in storages_of({**weights, **states}).items()}
        written = set(storages_of(states).values())
        for position, tensor in enumerate(inputs):
            storage = cpp_address(tensor.untyped_storage())
            if storage in written or (storage in owners and position in executor.bound.written_inputs):
                raise InvalidConfig(
                    f"an input shares its memory with {owners[storage]}, and the model writes it", fix="clone the input"
                )

    def _require_as_planned(self) -> None:
        parts = tuple(self.module.modules())
        known = self._weights.parts
        if len(parts) != len(known) or any(map(is_not, parts, known)):
            raise InvalidConfig("a submodule came, went or was exchanged", fix="compile the model again")
        if any(module.training for module in parts):
            raise InvalidConfig("the model is in training mode, and planned for evaluation", fix="call model.eval()")
        if torch.is_autocast_enabled(self.plan.graph.target) and not self._autocast:
            raise InvalidConfig("the call is under autocast, and planned without", fix="compile with autocast=")

    def _require_layout(self, executor: Executor, inputs: Sequence[torch.Tensor]) -> None:
        """``INVALID_CONFIG`` for other strides than planned, or where the model writes an input that shares memory."""
        planned = self.plan.graph.values.stride
        for spec, tensor in zip(executor.inputs, inputs, strict=True):
            if tensor.layout is not torch.strided:
                raise InvalidConfig(f"input {spec.name} is {tensor.layout}, no dense tensor", fix="call to_dense()")
            pairs = zip(tensor.shape, tensor.stride(), planned[spec.value], strict=False)
            if tensor.shape == spec.shape and any(size > 1 and a != b for size, a, b in pairs):
                raise InvalidConfig(
                    f"input {spec.name} has strides {tensor.stride()}, and the plan is for {planned[spec.value]}",
                    fix="compile the model for this one",
                )
        storages = {cpp_address(tensor.untyped_storage()) for tensor in inputs}
        if executor.bound.written_inputs and len(storages) < len(inputs):
            raise InvalidConfig("two inputs share their storage, and the model writes one", fix="clone one of them")

    def _require_assumed(self, named: Mapping[str, torch.Tensor]) -> None:
        """``INVALID_CONFIG`` where a value on which the path depends is another than when it was traced."""
        for name, value in self._assumed.items():
            found = named.get(name)
            if found is not None and not torch.equal(found.detach(), value.to(found.device)):
                raise InvalidConfig(
                    f"{name} has other values, and the plan is for those that it was made with",
                    fix="compile the model for these",
                )
