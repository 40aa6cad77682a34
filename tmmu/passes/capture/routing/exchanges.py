"""What a rank gets from the others in a call between ranks, where the values that it sends follow from a routing.

Other ranks route as this one does, each filling the experts of the rank that is looked at. So what this rank gets from
each of them in an exchange is the fullest of the parts that it sends itself: no rank sends it more within the capacity.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import torch

from tmmu.ir.program import RankGroup
from tmmu.torch_private import OpOverload, schema_of


def is_exchange(operator: Any) -> bool:
    """Whether it is a call between ranks of which ``exchange`` knows the result."""
    return isinstance(operator, OpOverload) and _name(operator) in _EXCHANGES


def fills_result(operator: Any) -> bool:
    """Whether it is one that writes the whole of its first argument."""
    return is_exchange(operator) and operator.namespace == "c10d" and _name(operator) != "c10d.allreduce_"


def exchange(operator: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """The result of the call on real tensors, this rank's; what it writes is written."""
    names = [argument.name for argument in schema_of(operator).arguments]
    arguments = dict(zip(names, args, strict=False)) | dict(kwargs)
    group = next(value for value in arguments.values() if isinstance(value, RankGroup)) if len(arguments) > 1 else None
    return _EXCHANGES[_name(operator)](arguments, len(group.members) if group else 1)


def _name(operator: OpOverload) -> str:
    return f"{operator.namespace}.{operator.overloadpacket.__name__}"


def _from_each_rank(sent: torch.Tensor, sizes: Sequence[int] | None, ranks: int) -> torch.Tensor:
    """The fullest of the parts that are sent, as often as there are ranks."""
    parts = torch.split(sent, list(sizes)) if sizes else torch.chunk(sent, ranks)
    return torch.cat([max(parts, key=lambda part: float(part.sum()))] * ranks)


def _all_to_all(arguments: Mapping[str, Any], ranks: int) -> torch.Tensor:
    return _from_each_rank(arguments["input"], arguments["input_split_sizes"], ranks)


def _all_to_all_into(arguments: Mapping[str, Any], ranks: int) -> None:
    received = _from_each_rank(arguments["input"], arguments["input_split_sizes"], ranks)
    arguments["output"].copy_(received.view_as(arguments["output"]))


def _gather(arguments: Mapping[str, Any], ranks: int) -> torch.Tensor:
    return torch.cat([arguments["input"]] * ranks)


def _gather_into(arguments: Mapping[str, Any], ranks: int) -> tuple[torch.Tensor, None]:
    output: torch.Tensor = arguments["output_tensor"]
    output.copy_(torch.cat([arguments["input_tensor"]] * ranks).view_as(output))
    return output, None


def _gather_lists(arguments: Mapping[str, Any], ranks: int) -> tuple[list[list[torch.Tensor]], None]:
    del ranks
    for outputs, tensor in zip(arguments["output_tensors"], arguments["input_tensors"], strict=True):
        for output in outputs:
            output.copy_(tensor)
    return arguments["output_tensors"], None


def _wait(arguments: Mapping[str, Any], ranks: int) -> torch.Tensor:
    del ranks
    tensor: torch.Tensor = arguments["tensor"]
    return tensor


_EXCHANGES: Final[Mapping[str, Callable[[Mapping[str, Any], int], Any]]] = {
    "_c10d_functional.all_gather_into_tensor": _gather,
    "_c10d_functional.all_to_all_single": _all_to_all,
    "_c10d_functional.wait_tensor": _wait,
    "c10d._allgather_base_": _gather_into,
    "c10d.allgather_": _gather_lists,
    "c10d.alltoall_base_": _all_to_all_into,
}
"""By operator without overload: (arguments by name, ranks of the group) to what it returns."""
