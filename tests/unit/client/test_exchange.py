"""A request under way: in which order its answer is seen by the thread that waits for it."""

from collections import deque
from typing import Any

from tests.unit.wire.sums import Add, Total
from tmmu.client.client_connection import ClientConnection
from tmmu.client.exchange import Exchange
from tmmu.wire.envelopes import ANSWER, decode_body, encode_answer
from tmmu.wire.frames import FrameKind
from tmmu.wire.limits import WireLimits


def test_who_sees_that_a_request_is_over_sees_its_answer() -> None:
    seen: list[bool] = []

    class Arrivals(deque[Any]):
        def append(self, arrival: Any) -> None:
            seen.append(exchange.is_over)
            super().append(arrival)

    exchange = Exchange(Add(), None)
    exchange.arrivals = Arrivals()
    (body,) = encode_answer(Total(value=3), ())
    envelope, inline = decode_body(ANSWER, memoryview(body), WireLimits())
    exchange.take(FrameKind.ANSWER, envelope, inline, WireLimits())
    assert seen == [False]
    assert exchange.is_over
    assert exchange.arrivals[0][0] == Total(value=3)


def test_who_waits_behind_an_answer_hears_that_it_was_the_last() -> None:
    class Late(Exchange):
        """Over as soon as somebody waits for more."""

        looks = 0

        @property
        def is_over(self) -> bool:
            self.looks += 1
            return self.looks > 2

        @is_over.setter
        def is_over(self, value: bool) -> None:
            """When it is."""

    class Waiting:
        def _wait(self, is_ready: Any, until: float) -> None:
            assert any(is_ready() for _ in range(10))

    connection: Any = Waiting()
    assert ClientConnection.next_arrival(connection, Late(Add(), None), 0.0) is None
