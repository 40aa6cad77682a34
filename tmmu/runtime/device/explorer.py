"""A model checker for a command log: every interleaving of its streams, each state once, every read checked in each.

State: how many transitions each stream has done, and the tag of each cell of memory. Cells are the least pieces that
all declared ranges are made of. A task is two transitions, its begin and its end: in between, its writes are torn and
its reads must stay as they are. Records and waits take no time, so they become conditions: a begin is enabled once
other streams have done so many transitions. Which stream moves next is the only choice.

Finite: a log is straight-line code, so every transition advances one counter for good and the graph of states has no
cycle. There are at most prod(length of stream + 1) counter vectors. In a log without races the memory is determined by
the counters; each race multiplies the states by the memories that it can leave.

Terminates: depth-first search that enters a state once (``visited``), up to ``max_states``. Every enabled transition of
every reachable state is taken, so it is enough to check reads where a transition is taken.

Faults: a *counterexample* is a transition that reads a cell whose tag is not the intended one (``tags.py``), with the
begins and ends that lead there. A *deadlock* is a state without an enabled transition in which a stream is not done.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, TypeAlias

from tmmu.errors import InvalidConfig
from tmmu.runtime.device.command_log import (
    Command,
    CommandLog,
    DryRunDevice,
    HostWait,
    Record,
    Submit,
    Synchronize,
    Wait,
)
from tmmu.runtime.device.interface import ByteRange
from tmmu.runtime.device.tags import NEVER, TORN, IntendedContents, Mismatch, Tag, TaskTags, make_mismatch

MAX_STATES: Final = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Transition:
    """The begin or the end of a task.

    ``after``: (stream, transitions) that must be done. ``reads``: (cell, tag) that must hold. ``writes``: cells that
    get ``tag``, which is ``TORN`` at the begin.
    """

    task: int
    after: tuple[tuple[int, int], ...]
    reads: tuple[tuple[int, Tag], ...]
    writes: tuple[int, ...]
    tag: Tag


_State: TypeAlias = tuple[tuple[int, ...], tuple[Tag, ...]]
"""Per stream how many transitions are done, and per cell its tag."""
_Trail: TypeAlias = "tuple[_Trail, Transition, int] | None"
"""How a state was reached: the trail before, the last transition, and whether that is an end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Counterexample:
    """A mismatch, and the begins and ends of tasks, in order, that lead to it."""

    mismatch: Mismatch
    path: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Exploration:
    """``states`` entered; ``complete`` if none was left out; one counterexample for each reader that has one.

    ``deadlocked`` names the tasks that can never begin.
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


def explore(log: CommandLog, *, max_states: int = MAX_STATES, first_only: bool = False) -> Exploration:
    """All states of the log, at most ``max_states``; with ``first_only`` up to the first fault."""
    if max_states < 1:
        raise InvalidConfig(f"an exploration of {max_states} states", fix="give a bound of 1 or more", nodes=max_states)
    return _Search(log, max_states).run(first_only=first_only)


class _Search:
    def __init__(self, log: CommandLog, max_states: int) -> None:
        self.max_states = max_states
        self.names = {command.number: command.task.name for command in log.commands if isinstance(command, Submit)}
        self.cells = _cells(log)
        builder = _TransitionBuilder(log.stream_count, self.cells)
        for command in log.commands:
            builder.add(command)
        self.streams = tuple(builder.transitions)
        self.counterexamples: dict[int, Counterexample] = {}

    def run(self, *, first_only: bool) -> Exploration:
        start = ((0,) * len(self.streams), (NEVER,) * len(self.cells))
        visited = {start}
        stack: list[tuple[_State, _Trail]] = [(start, None)]
        deadlocked: dict[str, None] = {}
        while stack and not (first_only and (self.counterexamples or deadlocked)):
            state, trail = stack.pop()
            successors = list(self._successors(state, trail))
            if not successors:
                deadlocked.update(dict.fromkeys(self._unfinished_tasks(state[0])))
            for successor, longer in successors:
                if successor not in visited:
                    if len(visited) >= self.max_states:
                        return self._result(len(visited), deadlocked, complete=False)
                    visited.add(successor)
                    stack.append((successor, longer))
        return self._result(len(visited), deadlocked, complete=not stack)

    def _result(self, states: int, deadlocked: Iterable[str], *, complete: bool) -> Exploration:
        examples = tuple(self.counterexamples.values())
        return Exploration(states=states, complete=complete, counterexamples=examples, deadlocked=tuple(deadlocked))

    def _successors(self, state: _State, trail: _Trail) -> Iterator[tuple[_State, _Trail]]:
        done, memory = state
        for stream, transitions in enumerate(self.streams):
            index = done[stream]
            if index < len(transitions) and _is_enabled(transitions[index], done):
                transition = transitions[index]
                longer = (trail, transition, index % 2)
                self._check(transition, memory, longer)
                yield ((*done[:stream], index + 1, *done[stream + 1 :]), _apply_writes(memory, transition)), longer

    def _check(self, transition: Transition, memory: tuple[Tag, ...], trail: _Trail) -> None:
        task = transition.task
        for cell, expected in transition.reads:
            if memory[cell] != expected and task not in self.counterexamples:
                mismatch = make_mismatch(task, self.cells[cell], expected, memory[cell], self.names)
                self.counterexamples[task] = Counterexample(mismatch=mismatch, path=self._path(trail))

    def _path(self, trail: _Trail) -> tuple[str, ...]:
        path: list[str] = []
        while trail is not None:
            trail, transition, is_end = trail
            path.append(f"{self.names[transition.task]} {'ends' if is_end else 'begins'}")
        return tuple(reversed(path))

    def _unfinished_tasks(self, done: tuple[int, ...]) -> Iterator[str]:
        for index, transitions in zip(done, self.streams, strict=True):
            if index < len(transitions):
                yield self.names[transitions[index].task]


def _is_enabled(transition: Transition, done: tuple[int, ...]) -> bool:
    return all(done[stream] >= count for stream, count in transition.after)


def _apply_writes(memory: tuple[Tag, ...], transition: Transition) -> tuple[Tag, ...]:
    if not transition.writes:
        return memory
    after = list(memory)
    for cell in transition.writes:
        after[cell] = transition.tag
    return tuple(after)


def _cells(log: CommandLog) -> tuple[ByteRange, ...]:
    """The least pieces that all ranges of the log are made of, by arena and byte."""
    bounds: dict[int, set[int]] = {}
    for command in log.commands:
        if isinstance(command, Submit):
            for access in (*command.task.reads, *command.task.writes):
                bounds.setdefault(access.range.arena, set()).update((access.range.begin, access.range.end))
    return tuple(
        ByteRange(arena, low, high) for arena in sorted(bounds) for low, high in pairwise(sorted(bounds[arena]))
    )


class _TransitionBuilder:
    """Per stream its transitions, begin and end of each task in turn, from the commands in the host's order.

    ``after`` holds the waits of each stream that its next task must respect. Later tasks need not repeat them: the
    queue is in order. An event stands for what its stream did so far and for its pending waits, which makes waits
    transitive.
    """

    def __init__(self, streams: int, cells: Sequence[ByteRange]) -> None:
        self.cells = cells
        self.transitions: list[list[Transition]] = [[] for _ in range(streams)]
        self.after: list[dict[int, int]] = [{} for _ in range(streams)]
        self.events: dict[int, dict[int, int]] = {}
        self.intended = IntendedContents()

    def add(self, command: Command) -> None:
        """One more command of the log."""
        match command:
            case Submit(number=number, stream=stream, task=task):
                self._add_task(number, stream, self.intended.tags_of(number, task))
            case Record(event=event, stream=stream):
                self.events[event] = {**self.after[stream], stream: len(self.transitions[stream])}
            case Wait(stream=stream, event=event):
                self._order(self.after[stream], event)
            case HostWait(event=event):
                for after in self.after:
                    self._order(after, event)
            case Synchronize():
                done = {stream: len(transitions) for stream, transitions in enumerate(self.transitions)}
                self.after = [dict(done) for _ in self.transitions]

    def _order(self, after: dict[int, int], event: int) -> None:
        for stream, count in self.events.get(event, {}).items():
            after[stream] = max(after.get(stream, 0), count)

    def _add_task(self, number: int, stream: int, tags: TaskTags) -> None:
        reads = tuple((cell, tag) for place, tag in tags.expected for cell in _cells_of(self.cells, place))
        writes = tuple(cell for place in tags.written for cell in _cells_of(self.cells, place))
        # At the end a task that updates in place finds its own torn bytes: only what it does not write is checked.
        own = frozenset(writes)
        unwritten = tuple((cell, tag) for cell, tag in reads if cell not in own)
        after = tuple(sorted(self.after[stream].items()))
        self.transitions[stream] += (
            Transition(task=number, after=after, reads=reads, writes=writes, tag=TORN),
            Transition(task=number, after=(), reads=unwritten, writes=writes, tag=number),
        )
        self.after[stream] = {}


def _cells_of(cells: Sequence[ByteRange], place: ByteRange) -> range:
    """The indices of the cells that ``place`` is made of."""
    if place.begin == place.end:
        return range(0)
    low = bisect_left(cells, ByteRange(place.arena, place.begin, 0))
    high = bisect_left(cells, ByteRange(place.arena, place.end, 0))
    return range(low, high)
