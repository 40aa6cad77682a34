"""Quotas of compute: tokens of prompts and answers that a client may have in a minute. Pure: the clock is passed in.

A bucket for each client, which holds a minute's quota and fills as time goes. A request pays beforehand for all that it
may need, prompts and the longest answers, and gets back what was not generated.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil
from threading import Lock
from typing import Final

from tmmu.errors import QuotaExceeded

MINUTE: Final = 60.0


@dataclass(slots=True)
class _Bucket:
    tokens: float
    filled: float
    """When it was filled up to that."""


class QuotaTable:
    """The buckets of all clients that have a quota. For any thread."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._buckets: dict[str, _Bucket] = {}
        self._lock = Lock()

    def pay(self, client: str, quota: int | None, tokens: int) -> None:
        """Takes tokens out of a client's bucket. ``QUOTA_EXCEEDED``, and nothing is taken, where it has not so many.

        ``quota``: tokens a minute; ``None``: no end. What is larger than a whole quota is never taken on.
        """
        if quota is None:
            return
        with self._lock:
            bucket = self._fill(client, quota)
            left = bucket.tokens
            bucket.tokens -= tokens * (tokens <= left)
        if tokens > left:
            seconds = ceil((tokens - left) * MINUTE / quota) if tokens <= quota else 0
            raise QuotaExceeded(
                f"the request may need {tokens} tokens, and {int(left)} of {quota} a minute are left",
                fix=f"send it again in {seconds} s" if seconds else "send a shorter prompt, or a smaller max_tokens",
                tokens=tokens,
                quota=quota,
                retry_seconds=seconds,
            )

    def give_back(self, client: str, quota: int | None, tokens: int) -> None:
        """Puts tokens back that were paid for and not computed."""
        if quota is not None:
            with self._lock:
                bucket = self._fill(client, quota)
                bucket.tokens = min(bucket.tokens + tokens, float(quota))

    def _fill(self, client: str, quota: int) -> _Bucket:
        now = self._clock()
        bucket = self._buckets.setdefault(client, _Bucket(float(quota), now))
        bucket.tokens = min(bucket.tokens + (now - bucket.filled) * quota / MINUTE, float(quota))
        bucket.filled = now
        return bucket
