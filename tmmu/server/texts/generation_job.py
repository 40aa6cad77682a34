"""One prompt and the texts that are to follow it, as the HTTP door hands it to a model's loop."""

from collections.abc import Callable
from dataclasses import dataclass, field
from time import monotonic
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from tmmu.engine.queue.terms import DEFAULT_TERMS, QueueTerms
from tmmu.errors import TmmuError
from tmmu.wire.stages import StageTimeline

if TYPE_CHECKING:
    from tmmu.engine.sampling import Sampling
    from tmmu.engine.session import Session

SEED_RANGE: Final = 1 << 64
FinishReason: TypeAlias = Literal["stop", "length"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TextPiece:
    """What ``token`` adds to the text of a choice; ``text`` may be empty. ``tokens``: how many there are so far."""

    choice: int
    text: str
    tokens: int
    token: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TextEnd:
    """The end of a choice, after its last piece; ``error``: why there is no more, where it failed.

    ``stages``: where its time went.
    """

    choice: int
    tokens: int
    reason: FinishReason | None
    error: TmmuError | None = None
    stages: StageTimeline | None = None


TextEvent: TypeAlias = TextPiece | TextEnd


@dataclass(slots=True, kw_only=True, eq=False)
class GenerationJob:
    """``choices`` texts of at most ``max_new_tokens`` behind ``prompt``, or of what an encoder makes of it.

    Their numbers begin with ``first_choice``. ``stop_tokens`` end a text beside the model's own end, ``stops`` too,
    which are texts. ``seed`` is that of the first choice; ``None``: drawn anew. ``on_event`` is called by the loop's
    thread, for each token and once for the end of each choice, whatever happens; it may not raise or wait. ``terms``:
    how its steps wait; ``due``: when it is too late for another token, in seconds of the engine's clock.
    """

    prompt: tuple[int, ...]
    choices: int
    first_choice: int
    max_new_tokens: int
    sampling: "Sampling"
    seed: int | None
    stop_tokens: tuple[int, ...]
    stops: tuple[str, ...]
    on_event: Callable[[TextEvent], object]
    terms: QueueTerms = DEFAULT_TERMS
    due: float | None = None
    came: float = field(default_factory=monotonic)
    """Seconds of the monotonic clock."""
    stages: StageTimeline = field(default_factory=StageTimeline)
    """Of the request, up to here; each choice has a branch of it."""
    session: "Session | None" = None
    """The session of somebody else, in which the only choice goes on, and which stays open."""
    has_own_ends: bool = True
    """Whether tokens that end the model's texts end this one."""
    is_cancelled: bool = False

    def seed_of(self, index: int) -> int | None:
        """The seed of a choice, counted from 0: the next numbers, modulo 2**64."""
        return None if self.seed is None else (self.seed + index) % SEED_RANGE
