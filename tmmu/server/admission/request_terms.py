"""The class and the deadline that a request asks for: by headers, by OpenAI's ``service_tier``, by what its key has."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite
from typing import Final

from tmmu.engine.queue.terms import CLASSES, LONGEST_DEADLINE, QosClass, QueueTerms, class_by_deadline
from tmmu.errors import InvalidRequest
from tmmu.server.admission.rights import ClientRights

CLASS_HEADER: Final = "x-tmmu-class"
DEADLINE_HEADER: Final = "x-tmmu-deadline"
TIERS: Final[Mapping[str, QosClass]] = {"priority": "realtime", "default": "interactive", "flex": "batch"}
"""Tiers of OpenAI's API that name a class; ``auto`` leaves it to the deadline."""
LONGEST_NUMBER: Final = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestTerms:
    """``queue``: how steps of the request's texts wait. ``due``: when they must be done; ``None``: no end.

    ``rights``: of its client.
    """

    queue: QueueTerms
    due: float | None
    rights: ClientRights

    @property
    def tier(self) -> str:
        """What OpenAI's API calls the class."""
        return next(tier for tier, qos in TIERS.items() if qos == self.queue.qos)


def read_terms(  # noqa: PLR0913 - what decides, by name
    headers: Mapping[str, str],
    tier: str | None,
    *,
    client: str,
    rights: ClientRights,
    came: float,
    has_classes: bool,
) -> RequestTerms:
    """The terms of a request that ``came`` at a time: the class of its header, else of its tier, else of its deadline,
    and none above its key's. ``has_classes``: whether the server has any; without them all are interactive.
    ``INVALID_REQUEST`` for other words.
    """
    seconds = _seconds_of(headers.get(DEADLINE_HEADER))
    name = headers.get(CLASS_HEADER)
    if name is not None and name not in CLASSES:
        raise InvalidRequest(f"{CLASS_HEADER}: {name[:40]!r}", fix=f"choose one of {', '.join(CLASSES)}")
    qos: QosClass = name or TIERS.get(tier or "auto") or class_by_deadline(seconds)
    queue = QueueTerms(qos=rights.class_for(qos, has_classes=has_classes), client=client, weight=rights.weight)
    return RequestTerms(queue=queue, due=None if seconds is None else came + seconds, rights=rights)


def _seconds_of(text: str | None) -> float | None:
    if text is None:
        return None
    try:
        seconds = float(text) if len(text) <= LONGEST_NUMBER else 0.0
    except ValueError:
        seconds = 0.0
    if not (isfinite(seconds) and 0 < seconds <= LONGEST_DEADLINE):
        raise InvalidRequest(f"{DEADLINE_HEADER}: {text[:40]!r}", fix="give seconds, a number above 0")
    return seconds
