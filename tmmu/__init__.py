"""A deterministic memory-planning compiler for PyTorch.

    plan = tmmu.plan(model, inputs)          # or a step function: tmmu.plan(step, batch)
    plan.total, plan.eager.total_bytes, plan.fits("24GB"), plan.largest(10)
    plan.save("model"); tmmu.load("model.plan.cbor")

Names are imported when they are asked for: ``import tmmu`` does not import torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from tmmu.api.measure import measure as measure
    from tmmu.api.measured_run import MeasuredRun as MeasuredRun
    from tmmu.api.memory_plan import MemoryPlan as MemoryPlan
    from tmmu.api.memory_plan import load as load
    from tmmu.api.plan import plan as plan
    from tmmu.api.plan_diff import PlanDiff as PlanDiff
    from tmmu.errors import TmmuError as TmmuError
    from tmmu.runtime.execute.bind import bind as bind

_MODULES: Final = {
    "MeasuredRun": "tmmu.api.measured_run",
    "MemoryPlan": "tmmu.api.memory_plan",
    "PlanDiff": "tmmu.api.plan_diff",
    "TmmuError": "tmmu.errors",
    "bind": "tmmu.runtime.execute.bind",
    "load": "tmmu.api.memory_plan",
    "measure": "tmmu.api.measure",
    "plan": "tmmu.api.plan",
}
__all__ = ["MeasuredRun", "MemoryPlan", "PlanDiff", "TmmuError", "bind", "load", "measure", "plan"]


def __getattr__(name: str) -> Any:
    """The public names, each from the module that has it."""
    if name not in _MODULES:
        raise AttributeError(f"module 'tmmu' has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    """The public names."""
    return __all__
