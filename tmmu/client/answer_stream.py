"""An answer that comes in parts, as who asked for it takes them."""

from typing import TYPE_CHECKING

from tmmu.client.exchange import Exchange
from tmmu.wire.interface import Message

if TYPE_CHECKING:
    from tmmu.client.client_connection import ClientConnection


class AnswerStream:
    """Parts of an answer, and the answer last. Closing it, or dropping it, gives the request up."""

    def __init__(self, connection: "ClientConnection", exchange: Exchange, until: float) -> None:
        self._connection, self._exchange, self._until = connection, exchange, until
        self._is_closed = False

    def __iter__(self) -> "AnswerStream":
        return self

    def __next__(self) -> Message:
        if self._is_closed:
            raise StopIteration
        try:
            arrival = self._connection.next_arrival(self._exchange, self._until)
        except BaseException:
            self.close()
            raise
        if arrival is None:
            self.close()
            raise StopIteration
        return arrival

    def __del__(self) -> None:
        if not self._is_closed:
            self._exchange.end_span()
            self._connection.abandon(self._exchange)

    def close(self) -> None:
        """Nobody waits any more; nothing where the answer is there."""
        if not self._is_closed:
            self._is_closed = True
            self._connection.end(self._exchange)
