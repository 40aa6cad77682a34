"""Stages of a pipeline: what torch's schedules ask the other ranks before their first step, which nobody answers, and
in which order the gradients of weights come where a schedule computes them apart.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch

from tmmu.errors import UnsupportedOp
from tmmu.passes.capture.imports import from_import_on
from tmmu.passes.capture.ranks.layouts import Layouts
from tmmu.passes.capture.replace import replace_attribute
from tmmu.torch_private import (
    PARAMETER_GROUPS,
    PIPELINE_AGREEMENT,
    PIPELINE_BACKWARD,
    PIPELINE_SCHEDULE,
    PIPELINE_SCHEDULES,
    REACHED_NODES,
    agree_on_shapes,
)


@contextmanager
def stages_agreed(layouts: Layouts, source: Callable[[], str]) -> Iterator[None]:
    """Block in which the stages of a pipeline agree on shapes, as they do where each was given its own.

    ``layouts`` note which ranks have other stages. ``UNSUPPORTED_OP`` for a stage that was given none: it would learn
    its shapes from messages of the stage before it; and for one that torch runs on no rank.
    """

    @contextmanager
    def replace_agreement(module: Any) -> Iterator[None]:
        schedule_class = getattr(module, PIPELINE_SCHEDULE)
        ask_others = getattr(schedule_class, PIPELINE_AGREEMENT)

        def agree(schedule: Any, stages: Sequence[Any], *args: Any) -> None:
            if not all(isinstance(stage, module.PipelineStage) for stage in stages):
                ask_others(schedule, stages, *args)
                return
            for stage in stages:
                layouts.note_group(stage.group, source())
                _require_reducible(stage)
                _require_shapes(stage, has_backward=bool(args[0]))

        with replace_attribute(schedule_class, PIPELINE_AGREEMENT, agree):
            yield

    with from_import_on(PIPELINE_SCHEDULES, replace_agreement):
        yield


def _require_shapes(stage: Any, *, has_backward: bool) -> None:
    if not agree_on_shapes(stage, has_backward=has_backward):
        raise UnsupportedOp(
            f"stage {stage.stage_index} of a pipeline is not planned without its shapes: it learns them from "
            "messages of the stage before it",
            fix="give PipelineStage input_args and output_args, tensors of one micro-batch, and input_grads "
            "and output_grads where they are distributed",
        )


def _require_reducible(stage: Any) -> None:
    """Of replicas with a static graph, torch's reducer fails in the first backward pass of a stage."""
    is_replica = isinstance(stage.submod, torch.nn.parallel.DistributedDataParallel)
    if is_replica and stage.submod.static_graph:
        raise UnsupportedOp(
            f"stage {stage.stage_index} of a pipeline is not planned as DistributedDataParallel with static_graph: "
            "torch would learn the graph from the first micro-batch, which reduces nothing, and fails there",
            fix="leave static_graph out",
        )


@contextmanager
def weight_gradients_in_order() -> Iterator[None]:
    """Block in which a backward pass that is parted has the gradients of weights in one order, that of the weights.

    Torch has autograd's nodes in sets, whose order is that of addresses: each step would be another one. No byte and no
    bit depends on it, since each weight has its own gradients in the order of micro-batches.
    """

    @contextmanager
    def order_nodes(module: Any) -> Iterator[None]:
        group_parameters, reach = getattr(module, PARAMETER_GROUPS), getattr(module, REACHED_NODES)

        def reach_in_order(roots: Any, targets: Any, reverse_edges: Any) -> tuple[Any, Any]:
            nodes, reached = reach(roots, targets, reverse_edges)
            return nodes, OrderedNodes.of(reached, reverse_edges)

        def group_in_order(inputs: Any, parameters: Any, reverse_edges: Any) -> Any:
            groups = group_parameters(inputs, parameters, reverse_edges)
            for group in groups:
                group["params"] = OrderedNodes.of(group["params"], parameters)
            return groups

        with ExitStack() as stack:
            stack.enter_context(replace_attribute(module, REACHED_NODES, reach_in_order))
            stack.enter_context(replace_attribute(module, PARAMETER_GROUPS, group_in_order))
            yield

    with from_import_on(PIPELINE_BACKWARD, order_nodes):
        yield


class OrderedNodes(dict[Any, None]):
    """A set of autograd nodes that is iterated in one order."""

    @classmethod
    def of(cls, nodes: Any, ordered: Any) -> "OrderedNodes":
        """The nodes, which are among ``ordered``, in the order of these."""
        in_order = [node for node in ordered if node in nodes] if nodes else []
        return cls(dict.fromkeys((*in_order, *nodes)))

    def union(self, others: "OrderedNodes") -> "OrderedNodes":
        """Its own nodes, and then the others."""
        return OrderedNodes(dict.fromkeys((*self, *others)))
