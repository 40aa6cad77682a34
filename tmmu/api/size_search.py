"""How a plan is made at other sizes: what it was made of, without bytes of inputs, and the options of then."""

import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import nn

from tmmu.api.max_size import largest_plan
from tmmu.api.memory_plan import MaxSize, MemoryPlan
from tmmu.api.size_limit import SizeLimit
from tmmu.api.sized_inputs import InputShapes
from tmmu.errors import InvalidConfig
from tmmu.planner.sizes.first_sizes import first_sizes, size_unit


@dataclass(frozen=True, slots=True)
class ModelSizes:
    """``model_or_step``: a module with bytes is not kept alive by its plan; ``make_plan`` takes it and inputs.

    ``shapes``: those of the plan's own inputs, or why they have none. Copies of it know no model any more.
    """

    model_or_step: Callable[[], Any]
    make_plan: Callable[[Any, Any], MemoryPlan]
    shapes: InputShapes | InvalidConfig
    token: bytes

    @classmethod
    def of(
        cls, model_or_step: Any, inputs: Any, make_plan: Callable[[Any, Any], MemoryPlan], token: bytes
    ) -> "ModelSizes":
        """Of what a plan is made of."""
        kept: Callable[[], Any] = weakref.ref(model_or_step) if _has_bytes(model_or_step) else lambda: model_or_step
        try:
            shapes: InputShapes | InvalidConfig = InputShapes.of(inputs)
        except InvalidConfig as error:
            shapes = error
        return cls(kept, make_plan, shapes, token)

    def largest(self, axis: str, limit: SizeLimit, inputs: Callable[[int], Any] | None) -> MaxSize:
        """The largest size within a limit; ``inputs`` makes those of a size, by default the plan's own at that size."""
        model_or_step = self.model_or_step()
        if model_or_step is None:
            raise InvalidConfig("the model that was planned is gone", fix="keep it for as long as its plan is asked")
        own, inputs_of = 0, inputs
        if inputs_of is None:
            if isinstance(self.shapes, InvalidConfig):
                raise self.shapes
            shapes = self.shapes
            own, inputs_of = shapes.size(axis), lambda size: shapes.at(axis, size)
        starts, inputs_at = first_sizes(axis, own), inputs_of
        return largest_plan(
            lambda size: self.make_plan(model_or_step, inputs_at(size)),
            limit,
            starts,
            unit=size_unit(axis),
            token=self.token,
        )

    def __reduce__(self) -> Any:
        """A copy of a plan has no model."""
        return no_sizes, ()


def _has_bytes(model_or_step: Any) -> bool:
    """Whether it is a module whose weights take memory."""
    if not isinstance(model_or_step, nn.Module):
        return False
    return any(tensor.device.type != "meta" for tensor in (*model_or_step.parameters(), *model_or_step.buffers()))


def no_sizes() -> None:
    """What a copy of a plan knows of other sizes."""
