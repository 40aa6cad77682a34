"""AOTAutograd, torch's own split of a graph into forward and backward, told to leave every operator as eager has it.

It takes what is hard about autograd off us: results that alias arguments, arguments that are changed, values that are
no tensors. It removes changes in place, which the plan brings back where bytes may be shared, and by default takes some
composite operators apart in Python, with other roundings than eager's: those rules are hidden.
"""

import logging
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, TypeAlias

import torch
from torch import fx

from tmmu.passes.autograd.graph_replayer import is_restored_random_state, restore_in_place_draws
from tmmu.passes.autograd.joint_graph import SplitStep
from tmmu.passes.capture.fake.composites import eager_composites
from tmmu.passes.capture.record.storage_changes import StorageChanges
from tmmu.torch_private import (
    CustomOpObserver,
    OpOverload,
    TracingContext,
    aot_autograd,
    current_dispatch_mode,
    default_partition,
    dispatch_mode_count,
    functorch_config,
    mark_boxed,
    min_cut_partition,
    pop_mode_temporarily,
    set_deterministic_algorithms,
)

_LOG: Final = logging.getLogger("tmmu")
Callback: TypeAlias = Callable[[SplitStep, frozenset[int]], "Runner"]


class Runner(Protocol):
    """Runs a step's halves on the arguments of their graphs, in order."""

    def run_forward(self, args: Sequence[Any]) -> list[Any]:
        """What the first graph returns."""
        ...

    def run_backward(self, args: Sequence[Any]) -> list[Any]:
        """What the second graph returns."""
        ...


@dataclass(slots=True)
class _Split:
    """One graph on its way through AOTAutograd."""

    make: Callback
    recompute: bool
    step: SplitStep | None = None
    runners: list[Runner] = field(default_factory=list)

    def partition(self, joint: fx.GraphModule, inputs: Any, **options: Any) -> tuple[fx.GraphModule, fx.GraphModule]:
        """Forward and backward as eager runs them, or with what is cheap to compute again not saved."""
        partition = min_cut_partition if self.recompute else default_partition
        forward_graph, backward_graph = partition(joint, inputs, **options)
        self.step = SplitStep(forward=forward_graph, backward=backward_graph, user_outputs=options["num_fwd_outputs"])
        return forward_graph, backward_graph

    def forward(self, graph: fx.GraphModule, inputs: Any) -> Callable[[list[Any]], list[Any]]:
        """What runs the first half."""
        del inputs
        restore_in_place_draws(graph)
        context = TracingContext.try_get()
        metadata = context.fw_metadata if context is not None else None
        static = frozenset(metadata.static_input_indices if metadata is not None else ())
        step = SplitStep(
            forward=graph,
            backward=self.step.backward if self.step else None,
            user_outputs=_user_output_count(self.step, graph),
        )
        self.runners.append(self.make(step, static))
        return _box_arguments(self.runners[-1].run_forward)

    def backward(self, graph: fx.GraphModule, inputs: Any) -> Callable[[list[Any]], list[Any]]:
        """What runs the second half."""
        del graph, inputs
        return _box_arguments(self.runners[-1].run_backward)


def split_by_autograd(
    graph: fx.GraphModule, inputs: Sequence[Any], make: Callback, *, recompute: bool
) -> Callable[..., Any]:
    """A function like ``graph``, differentiable, whose halves are run by what ``make`` gives for them.

    ``make`` is told which arguments are weights: they stay where they are from call to call. The backward half has
    what eager saves, or, to ``recompute``, computes again what is cheap, with the same bits. A graph that sets kernel
    switches between its calls is returned as it is: AOTAutograd would forget them.
    """
    if any(node.target is set_deterministic_algorithms for node in graph.graph.nodes):
        _LOG.warning("a compiled graph runs without a plan: it calls torch.use_deterministic_algorithms")
        return graph
    split = _Split(make, recompute)
    compiler = aot_autograd(
        fw_compiler=split.forward,
        bw_compiler=split.backward,
        inference_compiler=split.forward,
        partition_fn=split.partition,
        keep_inference_input_mutations=True,
    )
    with eager_composites(), functorch_config.patch(donated_buffer=False):
        compiled: Callable[..., Any] = compiler(graph, inputs)
    return compiled


def run_plain(graph: fx.GraphModule, args: Sequence[Any]) -> list[Any]:
    """What the graph returns when torch runs it, without any plan.

    Torch reads a random state from where its storage begins: one that a plan has saved is a window, and is copied.
    """
    nodes = graph.graph.find_nodes(op="placeholder")
    arguments = [arg.clone() if is_restored_random_state(node) else arg for node, arg in zip(nodes, args, strict=True)]
    with torch.no_grad():
        outputs = graph(*arguments)
    return list(outputs) if isinstance(outputs, (tuple, list)) else [outputs]


def resizes_storages(graph: fx.GraphModule) -> bool:
    """Whether a call changes where or how large a storage is, so that an argument may come without its bytes."""
    return any(isinstance(node.target, OpOverload) and StorageChanges.places(node.target) for node in graph.graph.nodes)


def _user_output_count(step: SplitStep | None, graph: fx.GraphModule) -> int:
    outputs = graph.graph.output_node().args[0]
    return step.user_outputs if step is not None else len(outputs) if isinstance(outputs, (tuple, list)) else 1


def _box_arguments(run: Callable[[Sequence[Any]], list[Any]]) -> Callable[[list[Any]], list[Any]]:
    """Takes its arguments out of the caller's list, so that nobody else keeps them alive."""

    def run_boxed(args: list[Any]) -> list[Any]:
        arguments = tuple(args)
        args.clear()
        with _without_observer():
            return run(arguments)

    mark_boxed(run_boxed)
    return run_boxed


def _without_observer() -> AbstractContextManager[Any]:
    """AOTAutograd watches the operators of a first call for custom ones that lie; in a plan there is nothing to see."""
    if dispatch_mode_count() and isinstance(current_dispatch_mode(), CustomOpObserver):
        return pop_mode_temporarily()
    return nullcontext()
