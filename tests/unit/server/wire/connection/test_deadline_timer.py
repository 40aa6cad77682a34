"""One timer for many deadlines: it rings at the earliest, and as often as one is late, not once for each request."""

import asyncio
from time import monotonic

import pytest

from tmmu.server.wire.connection.deadline_timer import DeadlineTimer


def test_requests_that_are_answered_in_time_arm_one_timer(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> int:
        loop, armed = asyncio.get_running_loop(), list[float]()
        monkeypatch.setattr(loop, "call_later", lambda seconds, _: armed.append(seconds) or _Handle())
        timer, now = DeadlineTimer(lambda _: None), monotonic()
        for number in range(100):
            timer.note(now + 30 + number)
        timer.note(now + 1)
        timer.note(now + 2)
        return len(armed)

    assert asyncio.run(main()) == 2, "of the first request, and of one with an earlier deadline"


def test_it_rings_at_each_deadline_that_is_left() -> None:
    async def main() -> tuple[list[float], list[float]]:
        due = [monotonic() + seconds for seconds in (0.02, 0.04, 0.03)]
        left, rung, over = sorted(due), list[float](), asyncio.Event()

        def ring(now: float) -> float | None:
            rung.extend(deadline for deadline in left if deadline <= now)
            left[:] = [deadline for deadline in left if deadline > now]
            if not left:
                over.set()
            return min(left, default=None)

        timer = DeadlineTimer(ring)
        for deadline in due:
            timer.note(deadline)
        await asyncio.wait_for(over.wait(), 60)
        return sorted(due), rung

    due, rung = asyncio.run(main())
    assert rung == due


def test_it_rings_no_more_once_it_is_stopped() -> None:
    async def main() -> list[float]:
        rung = list[float]()
        timer = DeadlineTimer(rung.append)
        timer.note(monotonic() + 0.01)
        timer.stop()
        await asyncio.sleep(0.03)
        return rung

    assert asyncio.run(main()) == []


class _Handle:
    def cancel(self) -> None:
        """Nothing waits."""
