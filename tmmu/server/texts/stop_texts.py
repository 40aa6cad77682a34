"""Texts that end a text: found as its pieces come, and never let out in part."""

from collections.abc import Sequence


class StopFilter:
    """Lets pieces of a text through up to the stop text that is whole first, the longest of those that end together;
    how the text is cut into pieces changes nothing. What may be the beginning of a stop text is kept back.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._pending = ""
        self.is_over = False
        """Whether a stop text was found; nothing comes through any more."""

    def add(self, piece: str) -> str:
        """What may be let out, now that this piece came. Linear in the piece and the stop texts."""
        if self.is_over:
            return ""
        text = self._pending + piece
        found = [(place + len(stop), place) for stop in self._stops if (place := text.find(stop)) >= 0]
        if found:
            self.is_over, self._pending = True, ""
            return text[: min(found)[1]]
        keep = max((_overlap(text, stop) for stop in self._stops), default=0)
        self._pending = text[len(text) - keep :]
        return text[: len(text) - keep]

    def flush(self) -> str:
        """What was kept back, at the end of the text."""
        pending, self._pending = self._pending, ""
        return pending


def _overlap(text: str, stop: str) -> int:
    """Characters at the end of the text with which the stop text begins."""
    longest = min(len(text), len(stop) - 1)
    return next((size for size in range(longest, 0, -1) if text.endswith(stop[:size])), 0)
