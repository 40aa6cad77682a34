"""The state of the default random generator as a tensor of the program: two operators, and who draws.

``tmmu::random_state`` gives the state of the device's default generator, ``tmmu::set_random_state`` puts one back. An
operator draws if torch tags it so, or if it takes a generator; attention without dropout draws nothing.
"""

from collections.abc import Mapping
from functools import cache
from typing import Any, Final

import torch

from tmmu.torch_private import (
    OpOverload,
    cpp_address,
    default_generator,
    disable_current_modes,
    schema_of,
)

_DRAWS: Final = torch.Tag.nondeterministic_seeded
_LIBRARY: Final = torch.library.Library("tmmu", "FRAGMENT")  # type: ignore[no-untyped-call]
_LIBRARY.define("random_state(str device) -> Tensor", tags=(_DRAWS,))  # type: ignore[no-untyped-call]
_LIBRARY.define("set_random_state(Tensor state) -> ()", tags=(_DRAWS,))  # type: ignore[no-untyped-call]


def _generator(device: str) -> torch.Generator:
    return default_generator if device == "cpu" else torch.cuda.default_generators[torch.cuda.current_device()]


def _random_state(device: str) -> torch.Tensor:
    return _generator(device).get_state().to(device)


def _set_random_state(state: torch.Tensor) -> None:
    _generator(state.device.type).set_state(state.to("cpu", copy=True))  # torch reads it from where its storage begins


_LIBRARY.impl("random_state", _random_state, "CompositeExplicitAutograd")  # type: ignore[no-untyped-call]
_LIBRARY.impl("set_random_state", _set_random_state, "CompositeExplicitAutograd")  # type: ignore[no-untyped-call]

RANDOM_STATE: Final[OpOverload] = torch.ops.tmmu.random_state.default
SET_RANDOM_STATE: Final[OpOverload] = torch.ops.tmmu.set_random_state.default


def state_bytes(device: str) -> int:
    """The size of a state: a whole Mersenne twister on a CPU, seed and offset on a GPU."""
    return default_generator.get_state().numel() if device == "cpu" else len(_seed_and_offset(0))


def seeded_state(device: str, seed: int) -> torch.Tensor:
    """The state of a generator that was just seeded."""
    generator = torch.Generator().manual_seed(seed)
    if device == "cpu":
        return generator.get_state()
    with disable_current_modes():
        return torch.frombuffer(bytearray(_seed_and_offset(generator.initial_seed())), dtype=torch.uint8)


def _seed_and_offset(seed: int) -> bytes:
    return (seed % (1 << 64)).to_bytes(8, "little") + bytes(8)


def draws(func: OpOverload, args: tuple[Any, ...], kwargs: Mapping[str, Any], default: frozenset[int]) -> bool:
    """Whether the call moves the default generator; ``default`` are the C++ addresses under which that is passed."""
    if not _may_draw(func):
        return False
    schema = schema_of(func).arguments
    named = dict(zip((argument.name for argument in schema), args, strict=False)) | dict(kwargs)
    generator = named.get("generator")
    if generator is not None:
        return cpp_address(generator) in default
    dropout = named.get("dropout_p", 0.0) if any(a.name == "dropout_p" for a in schema) else 1.0
    return bool(dropout > 0)


@cache
def _may_draw(func: OpOverload) -> bool:
    """Whether some call of the operator draws. A gradient takes what was drawn, whatever its tags say."""
    takes_generator = any(argument.name == "generator" for argument in schema_of(func).arguments)
    return (_DRAWS in func.tags or takes_generator) and not func.overloadpacket.__name__.endswith("_backward")
