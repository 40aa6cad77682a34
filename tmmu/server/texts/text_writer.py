"""The text of a choice, as its tokens come: by the tokenizer, or the tokens themselves with spaces between them."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tmmu.server.texts.stop_texts import StopFilter

if TYPE_CHECKING:
    from tmmu.engine.text import Text


class TextWriter:
    """Turns tokens into pieces of a text up to its end: a token of ``ends``, or a text of ``stops``.

    Neither is a part of the text. Without a tokenizer the text is the tokens' numbers, joined by spaces.
    """

    def __init__(self, text: "Text | None", *, ends: frozenset[int], stops: Sequence[str]) -> None:
        from tmmu.engine.text import TextStream  # noqa: PLC0415 - torch comes with the engine

        self._stream = None if text is None else TextStream(text)
        self._ends, self._filter = ends, StopFilter(stops)
        self._is_empty = True
        self.is_over = False
        """Whether the text has ended by itself, and not by its length."""

    def add(self, token: int) -> str:
        """The text that this token lets out."""
        if token in self._ends:
            self.is_over = True
            return ""
        piece = self._filter.add(self._piece(token))
        self.is_over = self._filter.is_over
        return piece

    def flush(self) -> str:
        """What was kept back for characters or stop texts that did not come."""
        if self._filter.is_over:
            return ""
        unfinished = "" if self._stream is None else self._stream.rest()
        piece = self._filter.add(unfinished)
        self.is_over = self.is_over or self._filter.is_over
        return piece + self._filter.flush()

    def _piece(self, token: int) -> str:
        if self._stream is not None:
            return self._stream.add(token)
        separator, self._is_empty = "" if self._is_empty else " ", False
        return f"{separator}{token}"
