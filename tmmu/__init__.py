"""A deterministic memory-planning compiler for PyTorch.

    plan = tmmu.plan(model, inputs)          # or a step function: tmmu.plan(step, batch)
    plan.total, plan.eager.total_bytes, plan.fits("24GB"), plan.largest(10)
    plan.save("model"); tmmu.load("model.plan.cbor"); plan.diff(other); plan.report("model.html")
    plan.max_size("batch", "24GB").size      # the largest batch that fits; tmmu.max_size of whatever makes plans
    tmmu.compile(model, inputs)(*inputs)     # the model, run inside its plan
    tmmu.Engine(model).open().generate(ids)  # sessions of a language model, in arenas of their own
    tmmu.connect("host:8000").load("tiny")   # a ghost of a model that a server has: it runs there
    tmmu.measure(model, inputs).agrees       # torch's allocator in a real run, beside eager's figure

Names are imported when they are asked for: ``import tmmu`` does not import torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from tmmu.api.compile import compile as compile  # noqa: A004 - the name that people look for
    from tmmu.api.compiled_model import CompiledModel as CompiledModel
    from tmmu.api.max_size import max_size as max_size
    from tmmu.api.measure import measure as measure
    from tmmu.api.measured_run import MeasuredRun as MeasuredRun
    from tmmu.api.memory_plan import MaxSize as MaxSize
    from tmmu.api.memory_plan import MemoryPlan as MemoryPlan
    from tmmu.api.memory_plan import load as load
    from tmmu.api.plan import plan as plan
    from tmmu.api.plan_diff import PlanDiff as PlanDiff
    from tmmu.client.connect import connect as connect
    from tmmu.engine.engine import Engine as Engine
    from tmmu.engine.session import Session as Session
    from tmmu.errors import TmmuError as TmmuError
    from tmmu.runtime.execute.bind import bind as bind

_MODULES: Final = {
    "CompiledModel": "tmmu.api.compiled_model",
    "Engine": "tmmu.engine.engine",
    "MaxSize": "tmmu.api.memory_plan",
    "MeasuredRun": "tmmu.api.measured_run",
    "MemoryPlan": "tmmu.api.memory_plan",
    "PlanDiff": "tmmu.api.plan_diff",
    "Session": "tmmu.engine.session",
    "TmmuError": "tmmu.errors",
    "bind": "tmmu.runtime.execute.bind",
    "compile": "tmmu.api.compile",
    "connect": "tmmu.client.connect",
    "load": "tmmu.api.memory_plan",
    "max_size": "tmmu.api.max_size",
    "measure": "tmmu.api.measure",
    "plan": "tmmu.api.plan",
}
__all__ = [
    "CompiledModel",
    "Engine",
    "MaxSize",
    "MeasuredRun",
    "MemoryPlan",
    "PlanDiff",
    "Session",
    "TmmuError",
    "bind",
    "compile",
    "connect",
    "load",
    "max_size",
    "measure",
    "plan",
]


def __getattr__(name: str) -> Any:
    """The public names, each from the module that has it."""
    if name not in _MODULES:
        raise AttributeError(f"module 'tmmu' has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    """The public names."""
    return __all__
