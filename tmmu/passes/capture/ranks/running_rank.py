"""A process that is one rank of many, as ``torchrun`` and ``tmmu run`` start it. Needs no torch."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

MEETING: Final = "TMMU_MEETING"
"""The variable in which ``tmmu run`` says where the ranks that it starts meet; those of ``torchrun`` meet by others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningRank:
    """``meeting`` is where the ranks find each other: what torch calls an ``init_method``."""

    rank: int
    world: int
    meeting: str


def running_rank(environment: Mapping[str, str]) -> RunningRank | None:
    """The rank that the environment says this process is; ``None`` where nobody started it as one."""
    numbers = [environment.get(name, "") for name in ("RANK", "WORLD_SIZE")]
    if not all(text.isascii() and text.isdecimal() for text in numbers):
        return None
    rank, world = map(int, numbers)
    return RunningRank(rank=rank, world=world, meeting=environment.get(MEETING, "env://"))


def environment_of_rank(rank: int, world: int, meeting: str) -> dict[str, str]:
    """The variables by which a process on this machine, the only one, is that rank."""
    numbers = {"RANK": rank, "WORLD_SIZE": world, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": world}
    return {name: str(number) for name, number in numbers.items()} | {MEETING: meeting}
