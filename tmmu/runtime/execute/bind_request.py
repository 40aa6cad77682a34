"""What is bound, and how: the request of a binding, and the check of its options by name."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, get_args

import torch

from tmmu.errors import InvalidConfig
from tmmu.ir.plan import Plan
from tmmu.ir.program import Call, Program
from tmmu.runtime.kernels.kernel_calls import Kernel
from tmmu.runtime.memory.segments import Segments
from tmmu.runtime.steps.execution_stream import CUDA_SCRATCH
from tmmu.runtime.weights.load import Weight


@dataclass(frozen=True, slots=True, kw_only=True)
class BindRequest:
    """A program and its plan, with weights by buffer name, on a device."""

    program: Program
    plan: Plan
    token: bytes
    weights: Mapping[str, Weight]
    device: torch.device | str = "cpu"
    segments: Segments | None = None
    """Shared with other executors: equal weights are loaded once, the stack is used in turn. ``None``: its own."""
    session: str | None = "main"
    """Owner of the state's arena in the data segment. ``None``: state is an argument of each run."""
    weight_keys: Mapping[str, bytes] = field(default_factory=dict)
    """By buffer name, ``content_key`` of weights whose bytes the caller has hashed already, in shared segments."""
    replay: bool = True
    """Whether calls are captured (a TorchScript graph on a CPU, CUDA graphs on a GPU), or each made from Python."""
    scratch: int = CUDA_SCRATCH
    """Bytes that captured operators may allocate on a GPU."""
    adopt: bool = False
    """Whether parameters and constants stay where the caller has them, so that his changes of them are seen."""
    exact_strides: bool = False
    """Whether a result that torch lays out otherwise than the plan is refused, for a caller who sees strides."""
    external: Mapping[str, torch.Tensor] | None = None
    """Inputs by name that stay where the caller has them: read and changed there, and not passed to a call."""
    kernels: Mapping[str, Kernel] = field(default_factory=dict)
    """Compiled kernels by fused operator; one without runs its members one by one."""
    variants: Sequence[Mapping[int, Call]] = ()
    """Calls by op, the same as the program's but for their numbers, which a run may take (``Executor.take_numbers``).
    Each variant has the same ops, and these calls are never captured."""


_OPTIONS: Final[Mapping[str, tuple[Any, Any, str]]] = {
    "token": (bytes, object, "the token's bytes"),
    "weights": (Mapping, get_args(Weight), "tensors by name"),
    "device": ((str, torch.device), object, "a device, such as cpu"),
    "segments": ((Segments, type(None)), object, "segments, or None"),
    "session": ((str, type(None)), object, "a name as text, or None"),
    "weight_keys": (Mapping, bytes, "content keys by name"),
    "replay": (bool, object, "True or False"),
    "scratch": (int, object, "a number of bytes"),
    "adopt": (bool, object, "True or False"),
    "exact_strides": (bool, object, "True or False"),
    "external": ((Mapping, type(None)), torch.Tensor, "tensors by name, or None"),
    "kernels": (Mapping, Kernel, "kernels by fused operator"),
    "variants": ((tuple, list), Mapping, "maps of calls by op"),
}
"""What ``bind`` takes by name: of which kind, of what in it, and how to say so."""


def require_option(name: str, value: Any) -> None:
    """``INVALID_CONFIG`` for an option of another kind than its field's."""
    kinds, content, description = _OPTIONS.get(name, (object, object, ""))
    is_number = isinstance(value, bool) or (isinstance(value, int) and value < 0)
    if not isinstance(value, kinds) or (kinds is int and is_number):
        raise InvalidConfig(f"{name} is {value!r:.40}", fix=f"give {description}")
    if content is object:
        return
    for part in value.values() if isinstance(value, Mapping) else value or ():
        if not isinstance(part, content):
            raise InvalidConfig(f"{name} has a {type(part).__name__} in it", fix=f"give {description}")
