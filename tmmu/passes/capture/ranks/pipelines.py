"""Stages of a pipeline: what torch's schedules ask the other ranks before their first step, which nobody answers."""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from tmmu.errors import UnsupportedOp
from tmmu.passes.capture.ranks.layouts import Layouts
from tmmu.passes.capture.replace import replace_attribute
from tmmu.torch_private import PIPELINE_AGREEMENT, PIPELINE_SCHEDULE, PIPELINE_SCHEDULES, agree_on_shapes


@contextmanager
def stages_agreed(layouts: Layouts, source: Callable[[], str]) -> Iterator[None]:
    """Block in which the stages of a pipeline agree on shapes, as they do where each was given its own.

    ``layouts`` note which ranks have other stages. ``UNSUPPORTED_OP`` for a stage that was given none: it would learn
    its shapes from messages of the stage before it.
    """
    module = sys.modules.get(PIPELINE_SCHEDULES)
    if module is None:  # what makes a schedule has imported it
        yield
        return
    schedule_class = getattr(module, PIPELINE_SCHEDULE)
    ask_others = getattr(schedule_class, PIPELINE_AGREEMENT)

    def agree(schedule: Any, stages: Sequence[Any], *args: Any) -> None:
        if not all(isinstance(stage, module.PipelineStage) for stage in stages):
            ask_others(schedule, stages, *args)
            return
        has_backward = bool(args[0])
        for stage in stages:
            layouts.note_stages(stage.group, source())
            if not agree_on_shapes(stage, has_backward=has_backward):
                raise UnsupportedOp(
                    f"stage {stage.stage_index} of a pipeline is not planned without its shapes: it learns them from "
                    "messages of the stage before it",
                    fix="give PipelineStage input_args and output_args, tensors of one micro-batch, and input_grads "
                    "and output_grads where they are distributed",
                )

    with replace_attribute(schedule_class, PIPELINE_AGREEMENT, agree):
        yield
