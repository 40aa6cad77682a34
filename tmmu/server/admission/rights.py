"""What the client of a key may have: its weight, its quota, its highest class."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from tmmu.engine.queue.terms import CLASSES, HEAVIEST, QosClass
from tmmu.errors import InvalidConfig

LARGEST_QUOTA: Final = 1 << 53


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientRights:
    """``weight``: its part beside others of a class. ``quota``: tokens of prompts and answers a minute; ``None``: no
    end. ``highest``: the class of a request that asks for a higher one.
    """

    weight: int = 1
    quota: int | None = None
    highest: QosClass = "realtime"

    def class_for(self, qos: QosClass, *, has_classes: bool) -> QosClass:
        """The class of a request that asks for this one; ``has_classes``: else all are interactive."""
        return CLASSES[max(CLASSES.index(qos), CLASSES.index(self.highest))] if has_classes else "interactive"


DEFAULT_RIGHTS: Final = ClientRights()


def parse_rights(words: Mapping[str, str]) -> ClientRights:
    """Rights as a file of keys has them: ``weight=2 quota=60000 class=batch``. ``INVALID_CONFIG`` for others."""
    unknown = sorted(set(words) - {"weight", "quota", "class"})
    if unknown:
        raise InvalidConfig(f"{unknown[0]!r:.40} is no right", fix="weight=, quota= and class= are")
    highest = words.get("class", DEFAULT_RIGHTS.highest)
    if highest not in CLASSES:
        raise InvalidConfig(f"no class {highest!r:.40}", fix=f"choose one of {', '.join(CLASSES)}")
    quota = words.get("quota")
    return ClientRights(
        weight=_whole("weight", words.get("weight", "1"), HEAVIEST),
        quota=None if quota is None else _whole("quota", quota, LARGEST_QUOTA),
        highest=highest,
    )


def _whole(name: str, text: str, most: int) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) <= len(str(most)) and 1 <= int(text) <= most):
        raise InvalidConfig(f"{name} is {text!r:.40}", fix=f"give a whole number from 1 to {most}")
    return int(text)
