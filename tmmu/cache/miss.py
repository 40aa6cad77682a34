"""Why a plan was not found: a value, since no state of a cache is an error."""

from dataclasses import dataclass
from enum import Enum


class MissReason(Enum):
    """Reasons for a miss; the texts are printed and stand under ``cache`` in JSON output."""

    ABSENT = "nothing is stored under this key"
    CUT_OFF = "the entry is shorter than it says"
    DAMAGED = "the entry is not what was written"
    FOREIGN = "the file is no entry of a plan cache, or is another key's"
    VERSION = "the entry has a format of another version"
    UNSOUND = "the judge refused the stored plan"
    UNREADABLE = "the file cannot be read"
    SHARED = "the folder is not the user's alone"
    NO_KEY = "something that decides the plan cannot be named"
    OFF = "no cache is in use"


@dataclass(frozen=True, slots=True)
class Miss:
    """One reason with its detail: a size, a digest, the text of a system error; may be empty."""

    reason: MissReason
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.reason.value}: {self.detail}" if self.detail else self.reason.value
