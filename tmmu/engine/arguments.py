"""What callers of an engine give: checked, and refused by ``INVALID_CONFIG`` in one line."""

from collections.abc import Sequence

import torch

from tmmu.engine.leases import Clock
from tmmu.errors import InvalidConfig
from tmmu.planner.arenas import parse_size
from tmmu.runtime.memory.allocated import require_allocated


def tokens_of(ids: Sequence[int] | torch.Tensor) -> list[int]:
    """The tokens as numbers; of a tensor ``int[tokens]`` or ``int[1, tokens]``. ``INVALID_CONFIG`` for others."""
    if isinstance(ids, torch.Tensor):
        require_values("tokens", ids)
        if ids.dtype not in (torch.int64, torch.int32) or ids.squeeze(0).dim() > 1:
            raise InvalidConfig(f"tokens are {str(ids.dtype)[6:]}{list(ids.shape)}", fix="give int64[tokens]")
        return [int(token) for token in ids.reshape(-1).tolist()]
    if not isinstance(ids, Sequence) or isinstance(ids, (str, bytes)) or not all(map(is_whole, ids)):
        raise InvalidConfig("tokens are not whole numbers", fix="give what the tokenizer makes of the text")
    return list(ids)


def require_tokens(tokens: Sequence[int], vocabulary: int) -> None:
    """``INVALID_CONFIG`` unless there is at least one, and each is below ``vocabulary``."""
    if not isinstance(tokens, Sequence) or not tokens:
        raise InvalidConfig("there are no tokens", fix="give at least one")
    for token in tokens:
        if not is_whole(token) or not 0 <= token < vocabulary:
            raise InvalidConfig(f"{token!r:.40} is no token of the model", fix=f"tokens are 0 to {vocabulary - 1}")


def require_values(name: str, tensor: torch.Tensor) -> None:
    """``INVALID_CONFIG`` for a tensor on meta, or a fake one, which have no values, for one whose values do not lie by
    strides, and for one whose storage was freed.
    """
    if tensor.layout != torch.strided or tensor.is_nested:
        kind = "of tensors" if tensor.is_nested else str(tensor.layout)[6:]
        raise InvalidConfig(f"{name}: a tensor {kind}", fix="give a dense tensor with values")
    if tensor.untyped_storage().device.type == "meta":
        raise InvalidConfig(
            f"{name}: a tensor on meta, where nothing has values", fix="give a dense tensor with values"
        )
    require_allocated(tensor, name)


def is_whole(value: object) -> bool:
    """Whether it is a whole number, and no truth value."""
    return isinstance(value, int) and not isinstance(value, bool)


def clock_of(clock: Clock) -> Clock:
    """``clock``; ``INVALID_CONFIG`` for what nobody can ask for the time."""
    if not callable(clock):
        raise InvalidConfig(f"the clock is {clock!r:.40}", fix="give a function that returns seconds")
    return clock


def time_of(name: str, value: float) -> float:
    """``value``, a time in seconds; ``INVALID_CONFIG`` for what is no finite number."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not -1e300 <= value <= 1e300:
        raise InvalidConfig(f"{name} is {value!r:.40}", fix="give seconds of the engine's clock", name=name)
    return float(value)


def bytes_of(name: str, value: int | str) -> int:
    """A number of bytes, or text that says one; ``INVALID_CONFIG`` for anything else."""
    if isinstance(value, str):
        return parse_size(value)
    if not is_whole(value) or value < 0:
        raise InvalidConfig(f"{name} is {value!r:.40}", fix="give a number of bytes, or text such as 2GB")
    return value


def whole_of(name: str, value: int) -> int:
    """``value``, a whole number of at least 1; ``INVALID_CONFIG`` for any other."""
    if not is_whole(value) or value < 1:
        raise InvalidConfig(f"{name} is {value!r:.40}", fix="give a whole number of at least 1")
    return value
