"""Division of whole numbers towards zero. Its kernel ends the process for the least number divided by -1."""

from typing import Any, Final

import torch

from tmmu.torch_private import OpOverload

_TOWARDS_ZERO: Final = "trunc"


def divide(operator: OpOverload, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """What ``aten.div`` returns for these arguments: of whole numbers, what is over -1 is divided by 1 and negated.

    The least number of a dtype stays what it is, as where torch divides by its other kernels.
    """
    named = dict(zip(("self", "other"), args, strict=False)) | kwargs
    divided: Any = named.get("self")
    divisor: Any = named.get("other")
    if named.get("rounding_mode") != _TOWARDS_ZERO or not isinstance(divided, torch.Tensor):
        return operator(*args, **kwargs)
    common = torch.result_type(divided, divisor)
    if common.is_floating_point or common.is_complex or not common.is_signed:
        return operator(*args, **kwargs)
    if not isinstance(divisor, torch.Tensor):
        is_one_less = (int(divisor) + 1) % (1 << torch.iinfo(common).bits) == 0  # as the kernel reads it
        return operator(**named | {"other": 1}).neg_() if is_one_less else operator(**named)
    divisor = divisor.to(common)  # a tensor without axes is cut to the dtype of the other one
    is_negated = divisor == -1
    result: torch.Tensor = operator(**named | {"other": divisor.masked_fill(is_negated, 1)})
    return result.mul_(torch.where(is_negated, -1, 1))
