"""Schedules of pipelines by name: which class of torch's, and how many stages a rank has. Needs no torch."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from tmmu.errors import InvalidConfig

STAGES_MAX: Final = 1024
"""Stages of a rank: more than any model has layers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleClass:
    """A class of ``torch.distributed.pipelining``; ``stages``: of a rank, where nobody says another number.

    ``is_single``: a rank has one stage, and no other number. ``is_folded``: a rank has two, the k-th from either end.
    """

    torch_name: str
    stages: int
    is_single: bool = False
    is_folded: bool = False


SCHEDULES: Final[Mapping[str, ScheduleClass]] = {
    "1f1b": ScheduleClass(torch_name="Schedule1F1B", stages=1, is_single=True),
    "gpipe": ScheduleClass(torch_name="ScheduleGPipe", stages=1, is_single=True),
    "interleaved-1f1b": ScheduleClass(torch_name="ScheduleInterleaved1F1B", stages=2),
    "looped-bfs": ScheduleClass(torch_name="ScheduleLoopedBFS", stages=2),
    "interleaved-zero-bubble": ScheduleClass(torch_name="ScheduleInterleavedZeroBubble", stages=2),
    "zbv-zero-bubble": ScheduleClass(torch_name="ScheduleZBVZeroBubble", stages=2, is_folded=True),
    "dualpipev": ScheduleClass(torch_name="ScheduleDualPipeV", stages=2, is_folded=True),
}
DEFAULT_SCHEDULE: Final = "1f1b"


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """A schedule, with ``stages`` of each rank; its text is ``NAME``, or ``NAME:STAGES``."""

    name: str
    stages: int

    @property
    def torch_name(self) -> str:
        """The class in ``torch.distributed.pipelining``."""
        return SCHEDULES[self.name].torch_name

    @property
    def is_single(self) -> bool:
        """Whether the class takes one stage, and no list of them."""
        return SCHEDULES[self.name].is_single

    def stages_of(self, rank: int, ranks: int) -> tuple[int, ...]:
        """The numbers of a rank's stages, of ``ranks`` x ``stages`` in all."""
        if SCHEDULES[self.name].is_folded:
            return rank, 2 * ranks - 1 - rank
        return tuple(rank + ranks * turn for turn in range(self.stages))

    def __str__(self) -> str:
        is_usual = self.stages == SCHEDULES[self.name].stages
        return self.name if is_usual else f"{self.name}:{self.stages}"


def parse_schedule(text: str) -> Schedule:
    """The schedule of ``NAME`` or ``NAME:STAGES``; ``INVALID_CONFIG`` for a name that torch has no class for."""
    name, colon, count = text.partition(":")
    schedule = SCHEDULES.get(name)
    if schedule is None:
        raise InvalidConfig(f"--schedule {text!r:.60}: no such schedule", fix=f"choose one of {', '.join(SCHEDULES)}")
    if not colon:
        return Schedule(name=name, stages=schedule.stages)
    stages = int(count) if count.isascii() and count.isdecimal() and len(count) <= len(str(STAGES_MAX)) else 0
    if not 1 <= stages <= STAGES_MAX:
        raise InvalidConfig(f"--schedule {text!r:.60}: {count!r:.40} is no number of stages", fix=f"give {name}:2")
    if stages != schedule.stages and (schedule.is_single or schedule.is_folded):
        what = "one stage" if schedule.is_single else "two stages"
        raise InvalidConfig(f"--schedule {text}: a rank has {what} in it", fix=f"give {name}")
    return Schedule(name=name, stages=stages)


def layers_of_stage(stage: int, stages: int, layers: int) -> range:
    """The layers of one of ``stages``: as many as the others have, and one more in the first ones where it is uneven.

    As transformers cuts them (``layer_range_for_rank``).
    """
    each, more = divmod(layers, stages)
    first = stage * each + min(stage, more)
    return range(first, first + each + (stage < more))
