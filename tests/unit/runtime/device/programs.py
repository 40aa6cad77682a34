"""Small programs for a device, given as what each stream is told."""

from tmmu.runtime.device.explorer import ExplorerDevice
from tmmu.runtime.device.interface import Access, Event, Range, Stream, Work

HERE = Range(0, 0, 4)
THERE = Range(0, 4, 8)
OVER_BOTH = Range(0, 2, 6)


class Script:
    """A device with two streams, and short words for what they are told."""

    def __init__(self, device: ExplorerDevice | None = None) -> None:
        self.device = device or ExplorerDevice()
        self.a = self.device.caller()
        self.b = self.device.stream("b")

    def write(self, stream: Stream, place: Range = HERE, content: int = 0, name: str = "write") -> None:
        self.device.submit(stream, Work(name=name, writes=(Access(place, content),), moved=place.end - place.begin))

    def read(self, stream: Stream, place: Range = HERE, content: int = 0, name: str = "read") -> None:
        self.device.submit(stream, Work(name=name, reads=(Access(place, content),), cost=1))

    def mark(self, stream: Stream, event: Event | None = None) -> Event:
        event = event or self.device.event()
        self.device.record(event, stream)
        return event

    def after(self, stream: Stream, event: Event) -> None:
        self.device.wait(stream, event)

    def order(self, first: Stream, second: Stream) -> None:
        """All that ``first`` was told comes before what ``second`` will be."""
        self.after(second, self.mark(first))
