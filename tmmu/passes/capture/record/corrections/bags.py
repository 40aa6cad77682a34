"""Tables of embedding bags, which kernels on a CPU allocate with an element more than they return, or not at all."""

from collections.abc import Mapping
from typing import Any, Final

import torch

from tmmu.passes.capture.record.corrections.layouts import Rule
from tmmu.torch_private import OpOverload

_aten: Final = torch.ops.aten
_SUM: Final = 0


def _bags(func: OpOverload) -> Rule:
    """Positions of the call: weight, indices, offsets, 4 mode, 7 whether the last offset is the end."""

    def correct(args: tuple[Any, ...], result: Any, device: str) -> Any:
        if device != "cpu":
            return result
        if args[0].dtype is torch.bfloat16:  # summed like those of float16: by a kernel that needs no table of bags
            brief = func(*(arg.to(torch.float16) if _is_brief(arg) else arg for arg in args))
            result = result[0], *brief[1:]
        sums, bags, sizes, maxima = result
        if bags.numel():
            bags = _cut(bags.numel() + 1, bags.numel())
        if len(args) > 7 and args[7]:
            count, is_sum = args[2].numel(), (args[4] if len(args) > 4 else _SUM) == _SUM
            is_whole = is_sum and func is _aten._embedding_bag_forward_only.default
            sizes = _cut(count, count if is_whole else count - 1)
            maxima = _cut(count, count) if is_whole else maxima
        return sums, bags, sizes, maxima

    return correct


def _cut(elements: int, kept: int) -> torch.Tensor:
    """The first of so many elements, on the storage of all."""
    return torch.empty(elements, dtype=torch.int64)[:kept]


def _is_brief(arg: Any) -> bool:
    return isinstance(arg, torch.Tensor) and arg.dtype is torch.bfloat16


BAG_RULES: Final[Mapping[OpOverload, Rule]] = {
    func: _bags(func) for func in (_aten._embedding_bag.default, _aten._embedding_bag_forward_only.default)
}
"""Results with the storages of their tables."""
