"""The terms on which the requests of a session wait: their class, whose they are, and how long they may take.

Nothing here imports torch, so that a server knows terms before it has loaded anything.
"""

from dataclasses import dataclass
from typing import Final, Literal, TypeAlias, get_args

from tmmu.errors import InvalidConfig

QosClass: TypeAlias = Literal["realtime", "interactive", "batch"]
CLASSES: Final[tuple[QosClass, ...]] = get_args(QosClass)
"""The classes, whoever goes before others first."""
REALTIME_SECONDS: Final = 1.0
"""A deadline so near makes a session ``realtime`` that names no class: the sources' longest wait of that class."""
INTERACTIVE_SECONDS: Final = 60.0
"""A later deadline makes it ``batch``."""
LONGEST_DEADLINE: Final = 1e9
HIGHEST_PRIORITY: Final = 9
HEAVIEST: Final = 1 << 10
LONGEST_NAME: Final = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueTerms:
    """``client``: whose requests they are; those of one class share by ``weight``. ``priority``: which of a client's
    own go first, the highest. ``deadline``: seconds from when a request comes until its last step may begin.
    """

    qos: QosClass = "interactive"
    client: str = ""
    weight: int = 1
    priority: int = 0
    deadline: float | None = None


DEFAULT_TERMS: Final = QueueTerms()


def queue_terms(*, qos: str | None, client: str, weight: int, priority: int, deadline: float | None) -> QueueTerms:
    """The terms of a session; without a class its deadline has one. ``INVALID_CONFIG`` for what are none."""
    seconds = None if deadline is None else _deadline_of(deadline)
    if qos is not None and qos not in CLASSES:
        raise InvalidConfig(f"no class {qos!r:.40}", fix=f"choose one of {', '.join(CLASSES)}")
    if not isinstance(client, str) or len(client) > LONGEST_NAME:
        raise InvalidConfig(f"the client is {client!r:.40}", fix=f"give a text of at most {LONGEST_NAME} characters")
    _require_between("weight", weight, 1, HEAVIEST)
    _require_between("priority", priority, 0, HIGHEST_PRIORITY)
    chosen: QosClass = class_by_deadline(seconds) if qos is None else qos
    return QueueTerms(qos=chosen, client=client, weight=weight, priority=priority, deadline=seconds)


def class_by_deadline(deadline: float | None) -> QosClass:
    """The class of who names none, by a deadline in seconds, if there is one."""
    if deadline is None:
        return "interactive"
    if deadline <= REALTIME_SECONDS:
        return "realtime"
    return "interactive" if deadline <= INTERACTIVE_SECONDS else "batch"


def _deadline_of(deadline: float) -> float:
    if isinstance(deadline, bool) or not isinstance(deadline, (int, float)) or not 0 < deadline <= LONGEST_DEADLINE:
        raise InvalidConfig(f"a deadline of {deadline!r:.40} seconds", fix="give a number above 0, or none")
    return float(deadline)


def _require_between(name: str, value: int, lowest: int, highest: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not lowest <= value <= highest:
        raise InvalidConfig(
            f"{name} is {value!r:.40}", fix=f"give a whole number from {lowest} to {highest}", name=name
        )
