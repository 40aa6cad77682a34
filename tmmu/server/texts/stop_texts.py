"""Texts that end a text: found as its pieces come, and never let out in part."""

from collections.abc import Sequence


class StopFilter:
    """Lets pieces of a text through up to the first stop text. What may be the beginning of one is kept back."""

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
        ends = [place for place in (text.find(stop) for stop in self._stops) if place >= 0]
        if ends:
            self.is_over, self._pending = True, ""
            return text[: min(ends)]
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
