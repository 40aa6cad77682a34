"""What a simulation did, moment by moment, and its trace for Perfetto."""

from collections import defaultdict
from dataclasses import dataclass, field
from itertools import pairwise

from tmmu.export.trace_writer import TraceWriter, text_argument, uint_argument


@dataclass(slots=True, eq=False)
class Recording:
    """Slices of compute, link and each agent; counters of bytes. ``is_on`` false: nothing is kept."""

    is_on: bool
    steps: list[tuple[int, int, str, int]] = field(default_factory=list)
    """(begin, end, kind, rows)."""
    chunks: list[tuple[int, int, str, int, int]] = field(default_factory=list)
    """(begin, end, direction, agent, bytes)."""
    states: dict[int, list[tuple[int, str]]] = field(default_factory=lambda: defaultdict(list))
    """Per agent (from, what it does); the last has no name."""
    bytes: dict[str, list[tuple[int, int]]] = field(default_factory=lambda: defaultdict(list))
    """Per counter (from, bytes)."""

    def step(self, begin: int, end: int, kind: str, rows: int) -> None:
        """The device computes."""
        if self.is_on:
            self.steps.append((begin, end, kind, rows))

    def chunk(self, begin: int, end: int, direction: str, agent: int, size: int) -> None:
        """The link copies."""
        if self.is_on:
            self.chunks.append((begin, end, direction, agent, size))

    def state(self, agent: int, now: int, name: str) -> None:
        """The agent does this from now on; ``""``: it is gone."""
        if self.is_on and (not self.states[agent] or self.states[agent][-1][1] != name):
            self.states[agent].append((now, name))

    def count(self, counter: str, now: int, size: int) -> None:
        """The counter has this value from now on."""
        if self.is_on and (not self.bytes[counter] or self.bytes[counter][-1][1] != size):
            self.bytes[counter].append((now, size))


def encode_recording(recording: Recording, title: str, names: tuple[str, ...]) -> bytes:
    """The bytes of a trace; ``names`` are those of the agents, by number. Linear, but for one sort of the events."""
    trace = TraceWriter(1)
    parent = trace.track(title)
    for counter, values in recording.bytes.items():
        track = trace.track(counter, parent=parent, counts_bytes=True)
        for now, size in values:
            trace.count(track, now, size)
    compute = trace.track("compute", parent=parent)
    for begin, end, kind, rows in recording.steps:
        trace.slice(compute, kind, (begin, end), (uint_argument("rows", rows),))
    link = trace.track("link", parent=parent)
    for begin, end, direction, agent, size in recording.chunks:
        arguments = (uint_argument("bytes", size), text_argument("agent", names[agent]))
        trace.slice(link, f"{direction} {names[agent]}", (begin, end), arguments)
    for agent, states in sorted(recording.states.items()):
        track = trace.track(names[agent], parent=parent)
        for (begin, name), (end, _) in pairwise(states):
            if name and end > begin:
                trace.slice(track, name, (begin, end), ())
    return trace.encode()
