"""Every interleaving of a program's streams, each state once, each read checked in each.

A work is two steps, its begin and its end: between them its writes are torn and its reads must stay. Records and waits
take no time, so they become conditions: a step may be taken when the streams that it waits for have come far enough.
A state is how far each stream is and what memory holds; states that were seen are not entered again, so the search is
linear in the states, whose number is bounded by the product of the streams' lengths times the memories that a race
makes.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, TypeAlias

from tmmu.errors import InvalidConfig
from tmmu.runtime.device.command_log import Command, CommandLog, DryRunDevice, Record, Submit, Synchronize, Wait
from tmmu.runtime.device.interface import ByteRange
from tmmu.runtime.device.tags import NEVER, TORN, IntendedContents, Mismatch, Tag, TaskTags, make_mismatch

MAX_STATES: Final = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Transition:
    """One end of a work. ``after`` are (stream, steps) that must be done; ``reads`` are (cell, tag) that must hold."""

    task: int
    after: tuple[tuple[int, int], ...]
    reads: tuple[tuple[int, Tag], ...]
    writes: tuple[int, ...]
    tag: Tag


_State: TypeAlias = tuple[tuple[int, ...], tuple[Tag, ...]]
"""How many steps each stream has done, and the tag of each cell."""
_Trail: TypeAlias = "tuple[_Trail, Transition, int] | None"
"""How a state was reached: the steps before, the last one, and whether it is an end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Counterexample:
    """A mismatch, and the works in the order of their begins and ends that leads to it."""

    mismatch: Mismatch
    path: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Exploration:
    """``states`` that were entered; ``complete`` if none was left out; the first fault of each reader that has one.

    ``stuck`` are works that can never begin: their streams wait for each other.
    """

    states: int
    complete: bool
    counterexamples: tuple[Counterexample, ...]
    deadlocked: tuple[str, ...]


class ExplorerDevice(DryRunDevice):
    """A device on which everything happens in every possible order."""

    def explore(self, *, max_states: int = MAX_STATES, first_only: bool = False) -> Exploration:
        """What can happen with all that was issued so far."""
        return explore(self.log, max_states=max_states, first_only=first_only)


def explore(program: CommandLog, *, max_states: int = MAX_STATES, first_only: bool = False) -> Exploration:
    """All states of the program, at most ``nodes``; with ``first_only`` up to the first fault."""
    if max_states < 1:
        raise InvalidConfig(f"an exploration of {max_states} states", fix="give a bound of 1 or more", nodes=max_states)
    return _Search(program, max_states).run(first_only=first_only)


class _Search:
    def __init__(self, program: CommandLog, nodes: int) -> None:
        self.nodes = nodes
        self.names = {one.number: one.task.name for one in program.commands if isinstance(one, Submit)}
        self.cells = _cells(program)
        queues = _Queues(program.stream_count, self.cells)
        for command in program.commands:
            queues.take(command)
        self.streams = tuple(queues.steps)
        self.faults: dict[int, Counterexample] = {}

    def run(self, *, first_only: bool) -> Exploration:
        start = ((0,) * len(self.streams), (NEVER,) * len(self.cells))
        seen = {start}
        stack: list[tuple[_State, _Trail]] = [(start, None)]
        stuck: dict[str, None] = {}
        while stack and not (first_only and (self.faults or stuck)):
            state, trail = stack.pop()
            following = list(self._following(state, trail))
            if not following:
                stuck.update(dict.fromkeys(self._waiting(state[0])))
            for after, longer in following:
                if after not in seen:
                    if len(seen) >= self.nodes:
                        return self._result(seen, stuck, complete=False)
                    seen.add(after)
                    stack.append((after, longer))
        return self._result(seen, stuck, complete=not stack)

    def _result(self, seen: Iterable[object], stuck: Iterable[str], *, complete: bool) -> Exploration:
        states = sum(1 for _ in seen)
        return Exploration(
            states=states, complete=complete, counterexamples=tuple(self.faults.values()), deadlocked=tuple(stuck)
        )

    def _following(self, state: _State, trail: _Trail) -> Iterator[tuple[_State, _Trail]]:
        at, memory = state
        for stream, steps in enumerate(self.streams):
            if at[stream] < len(steps) and _ready(steps[at[stream]], at):
                step = steps[at[stream]]
                longer = (trail, step, at[stream] % 2)
                self._check(step, memory, longer)
                yield ((*at[:stream], at[stream] + 1, *at[stream + 1 :]), _written(memory, step)), longer

    def _check(self, step: Transition, memory: tuple[Tag, ...], trail: _Trail) -> None:
        for cell, expected in step.reads:
            if memory[cell] != expected and step.task not in self.faults:
                wrong = make_mismatch(step.task, self.cells[cell], expected, memory[cell], self.names)
                self.faults[step.task] = Counterexample(mismatch=wrong, path=self._path(trail))

    def _path(self, trail: _Trail) -> tuple[str, ...]:
        path: list[str] = []
        while trail is not None:
            trail, step, ends = trail
            path.append(f"{self.names[step.task]} {'ends' if ends else 'begins'}")
        return tuple(reversed(path))

    def _waiting(self, at: tuple[int, ...]) -> Iterator[str]:
        for stream, steps in enumerate(self.streams):
            if at[stream] < len(steps):
                yield self.names[steps[at[stream]].task]


def _ready(step: Transition, at: tuple[int, ...]) -> bool:
    return all(at[stream] >= count for stream, count in step.after)


def _written(memory: tuple[Tag, ...], step: Transition) -> tuple[Tag, ...]:
    if not step.writes:
        return memory
    after = list(memory)
    for cell in step.writes:
        after[cell] = step.tag
    return tuple(after)


def _cells(program: CommandLog) -> tuple[ByteRange, ...]:
    """The least pieces that all ranges of the program are made of, by arena and byte."""
    cuts: dict[int, set[int]] = {}
    ranges: list[ByteRange] = []
    for one in program.commands:
        if isinstance(one, Submit):
            ranges += [access.range for access in (*one.task.reads, *one.task.writes)]
    for place in ranges:
        cuts.setdefault(place.arena, set()).update((place.begin, place.end))
    return tuple(
        ByteRange(arena, low, high)
        for arena in sorted(cuts)
        for points in [sorted(cuts[arena])]
        for low, high in pairwise(points)
    )


class _Queues:
    """Per stream its steps, begin and end of each work in turn, from the commands in the host's order."""

    def __init__(self, streams: int, cells: Sequence[ByteRange]) -> None:
        self.cells = cells
        self.steps: list[list[Transition]] = [[] for _ in range(streams)]
        self.after: list[dict[int, int]] = [{} for _ in range(streams)]
        self.events: dict[int, dict[int, int]] = {}
        self.intent = IntendedContents()

    def take(self, command: Command) -> None:
        """The queues after one more command."""
        match command:
            case Submit(number=number, stream=stream, task=work):
                self._work(number, stream, self.intent.tags_of(number, work))
            case Record(event=event, stream=stream):
                self.events[event] = {**self.after[stream], stream: len(self.steps[stream])}
            case Wait(stream=stream, event=event):
                after = self.after[stream]
                for other, count in self.events.get(event, {}).items():
                    after[other] = max(after.get(other, 0), count)
            case Synchronize():
                done = {stream: len(steps) for stream, steps in enumerate(self.steps)}
                self.after = [dict(done) for _ in self.steps]

    def _work(self, number: int, stream: int, tagged: TaskTags) -> None:
        reads = tuple((cell, tag) for place, tag in tagged.expected for cell in _inside(self.cells, place))
        writes = tuple(cell for place in tagged.written for cell in _inside(self.cells, place))
        own = frozenset(writes)
        still = tuple((cell, tag) for cell, tag in reads if cell not in own)
        after = tuple(sorted(self.after[stream].items()))
        self.steps[stream].append(Transition(task=number, after=after, reads=reads, writes=writes, tag=TORN))
        self.steps[stream].append(Transition(task=number, after=(), reads=still, writes=writes, tag=number))
        self.after[stream] = {}


def _inside(cells: Sequence[ByteRange], place: ByteRange) -> range:
    """The indices of the cells that ``place`` is made of."""
    if place.begin == place.end:
        return range(0)
    low = bisect_left(cells, ByteRange(place.arena, place.begin, 0))
    high = bisect_left(cells, ByteRange(place.arena, place.end, 0))
    return range(low, high)
