"""The operator that stands for a group: named by what it computes, with torch's own kernels behind it.

``tmmu_fused::<group>(Tensor[] reads, Tensor(a!)[] changed, int[] scratch) -> Tensor[]``. Called as it is, it runs the
members one by one, so a program with such calls runs anywhere, and a fused kernel has something to be held against. The
results are those of the group, then a tensor of zeros for each size in ``scratch``, which is what a kernel wants beside
them. Operators last as long as the process: two groups of one name are one.
"""

from threading import Lock
from typing import Any, Final

import torch

from tmmu.fusion.group import FusionGroup, device_of, run_members
from tmmu.ir.graph import FUSED_NAMESPACE
from tmmu.torch_private import OpOverload

_LIBRARY: Final = torch.library.Library(FUSED_NAMESPACE, "DEF")  # type: ignore[no-untyped-call]
_GROUPS: Final[dict[str, FusionGroup]] = {}
_LOCK: Final = Lock()


def fused_operator(group: FusionGroup) -> OpOverload:
    """The operator of a group, which is there from its first call on."""
    with _LOCK:
        if group.name not in _GROUPS:
            changed = "Tensor(a!)[] changed" if group.changed else "Tensor[] changed"
            schema = f"{group.name}(Tensor[] reads, {changed}, int[] scratch) -> Tensor[]"
            _LIBRARY.define(schema)  # type: ignore[no-untyped-call]
            _LIBRARY.impl(group.name, _plain_kernel(group), "CompositeExplicitAutograd")  # type: ignore[no-untyped-call]
            _GROUPS[group.name] = group
    operator: OpOverload = getattr(getattr(torch.ops, FUSED_NAMESPACE), group.name).default
    return operator


def is_fused(operator: Any) -> bool:
    """Whether an operator stands for a group."""
    return getattr(operator, "namespace", "") == FUSED_NAMESPACE


def group_of(operator: Any) -> FusionGroup:
    """The group that an operator of this process stands for."""
    return _GROUPS[str(operator).split(".")[1]]


def _plain_kernel(group: FusionGroup) -> Any:
    def run(reads: list[torch.Tensor], changed: list[torch.Tensor], scratch: list[int]) -> list[torch.Tensor]:
        with torch.no_grad():
            results = run_members(group, reads, changed)
        device = device_of((*reads, *changed, *results))
        pieces = [torch.zeros(size, dtype=torch.uint8, device=device) for size in scratch]
        return [*results, *pieces]

    return run
