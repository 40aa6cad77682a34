"""Small command logs, written stream by stream."""

from tmmu.runtime.device.explorer import ExplorerDevice
from tmmu.runtime.device.interface import Access, ByteRange, Event, Stream, Task

LOW = ByteRange(0, 0, 4)
HIGH = ByteRange(0, 4, 8)
MIDDLE = ByteRange(0, 2, 6)


class Script:
    """A device with two streams, and short names for their commands."""

    def __init__(self, device: ExplorerDevice | None = None) -> None:
        self.device = device or ExplorerDevice()
        self.a = self.device.caller_stream()
        self.b = self.device.create_stream("b")

    def write(self, stream: Stream, place: ByteRange = LOW, content: int = 0, name: str = "write") -> None:
        self.device.submit(
            stream, Task(name=name, writes=(Access(place, content),), link_bytes=place.end - place.begin)
        )

    def read(self, stream: Stream, place: ByteRange = LOW, content: int = 0, name: str = "read") -> None:
        self.device.submit(stream, Task(name=name, reads=(Access(place, content),), compute_ns=1))

    def record(self, stream: Stream, event: Event | None = None) -> Event:
        event = event or self.device.create_event()
        self.device.record(event, stream)
        return event

    def wait(self, stream: Stream, event: Event) -> None:
        self.device.wait(stream, event)

    def order(self, first: Stream, second: Stream) -> None:
        """Orders what ``second`` is given later after all that ``first`` was given so far."""
        self.wait(second, self.record(first))
