"""A text under way: its session, what chooses its tokens, and the logits that it waits for."""

from collections.abc import Sequence
from concurrent.futures import Future
from time import monotonic
from typing import TYPE_CHECKING, Final

from tmmu.server.texts.generation_job import GenerationJob
from tmmu.server.texts.text_writer import TextWriter

if TYPE_CHECKING:
    import torch

    from tmmu.engine.engine import Engine
    from tmmu.engine.session import Generation, Session

MOST_RECOMPUTED: Final = 4
"""How often a text gives its room to others: it comes to its end."""


class TextTrack:
    """A choice of a job. Its room is its session's."""

    def __init__(
        self, job: GenerationJob, index: int, session: "Session", future: "Future[torch.Tensor] | None"
    ) -> None:
        self.job, self.index, self.session, self.future = job, index, session, future
        self.opened = self.last_token = monotonic()
        self.stages = job.stages.branch()
        self.lookups: float | None = None
        """What look-ups of all steps had taken when its step began."""
        self.generation: Generation | None = None
        self.writer: TextWriter | None = None
        self.tokens = 0
        self.chosen: list[int] = []
        """Tokens so far, which are read again where the text gave its room to others."""
        self.recomputed = 0
        self.is_encoded = False
        """Whether an encoder has read the prompt, and the decoder is to begin."""

    @property
    def choice(self) -> int:
        """Its number among all of a request."""
        return self.job.first_choice + self.index


def text_to_recompute(tracks: Sequence[TextTrack], engine: "Engine") -> TextTrack | None:
    """The text of batch that began last and has room, where one of a higher class waits for some."""
    waits = any(track.job.terms.qos != "batch" and engine.waits_for_room(track.session) for track in tracks)
    texts = [
        track
        for track in tracks
        if track.job.session is None
        and track.job.terms.qos == "batch"
        and track.generation is not None
        and track.recomputed < MOST_RECOMPUTED
        and engine.is_resident(track.session)
    ]
    return max(texts, key=lambda track: track.opened) if waits and texts else None
