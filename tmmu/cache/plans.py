"""The plan cache: a plan made once is found again, in this process and in later ones."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Lock, RLock
from typing import Final, Literal, TypeAlias

from tmmu.cache import store
from tmmu.cache.entry import Refused, encode_entry, open_entry
from tmmu.cache.miss import Miss, MissReason
from tmmu.cache.table import Table
from tmmu.errors import TmmuError
from tmmu.ir.graph import Graph
from tmmu.ir.key import Key, NoKey
from tmmu.ir.plan import Plan
from tmmu.judge import check

Origin: TypeAlias = Literal["table", "disk", "cold"]
Make: TypeAlias = Callable[[], tuple[Graph, Plan]]
Judge: TypeAlias = Callable[[Graph, Plan], None]

LIMIT: Final = 1 << 28
"""Bytes of entries that a folder may hold: some thousand plans of ordinary models."""
ROWS: Final = 256
ROOM: Final = 1 << 26
"""Bytes, as encoded, that the table may hold; as objects that is some ten times as much."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A legal graph and its sound plan. ``miss`` says why they were made, ``unkept`` why they were not stored."""

    graph: Graph
    plan: Plan
    origin: Origin
    miss: Miss | None = None
    unkept: str = ""


@dataclass(frozen=True, slots=True)
class Counts:
    """How many lookups each level has answered."""

    table: int = 0
    disk: int = 0
    cold: int = 0


class PlanCache:
    """Two levels before ``make``: a table of this process, then a folder that processes share, if one is given.

    Threads may share it; those that want one plan at one time wait for the first of them. A plan is judged before it
    is stored. A stored one is served by the digest over its entry, which this same program wrote after judging; with
    ``doubt`` it is judged again.
    """

    def __init__(self, folder: Path | None, *, limit: int = LIMIT, rows: int = ROWS, doubt: bool = False) -> None:
        self._folder = folder
        self._limit = limit
        self._doubt = doubt
        self._table: Table[Found] = Table(rows=rows, room=ROOM)
        self._lock = Lock()
        self._counts = {"table": 0, "disk": 0, "cold": 0}
        self._making: dict[bytes, tuple[RLock, int]] = {}

    @property
    def counts(self) -> Counts:
        """What was answered so far."""
        with self._lock:
            return Counts(**self._counts)

    def plan(
        self, key: Key | NoKey, make: Make, judge: Judge = check.judge, *, unkept: Callable[[], str] = lambda: ""
    ) -> Found:
        """The plan under ``key``, or the one that ``make`` returns, judged and stored.

        ``judge`` returns for a sound plan alone. ``unkept`` says, once a plan was made, why it must not be stored, or
        nothing if it may. Errors are those of ``judge`` and ``make``.
        """
        if isinstance(key, NoKey):
            return self._counted(self._made(make, judge, Miss(MissReason.NO_KEY, key.why)))
        found = self._table.get(key.digest)
        if found is None:
            with self._alone(key.digest):
                found = self._table.get(key.digest) or self._slow(key, make, judge, unkept)
        return self._counted(found)

    def lookup(self, key: Key, judge: Judge = check.judge) -> Found | Miss:
        """The plan under ``key`` if it is at hand; else why it is not."""
        found = self._table.get(key.digest) or self._stored(key, judge)
        return found if isinstance(found, Miss) else self._counted(found)

    def graph(self, key: Key) -> Graph | None:
        """The graph of ``key``, from a plan of it that was asked for in another way; ``None`` if there is none.

        It is well formed and not judged: that comes with its plan.
        """
        for entry in store.relatives(self._folder, key) if self._folder else ():
            with suppress(Refused):
                return open_entry(entry)[0]
        return None

    def _slow(self, key: Key, make: Make, judge: Judge, unkept: Callable[[], str]) -> Found:
        found = self._stored(key, judge)
        if isinstance(found, Found):
            return found
        made = self._made(make, judge, found)
        why = unkept()
        if why:
            return replace(made, unkept=why)
        data = encode_entry(key, made.graph, made.plan)
        self._remember(key, made, len(data))
        why = store.save(self._folder, key, data, limit=self._limit) if self._folder else ""
        return replace(made, unkept=why)

    def _stored(self, key: Key, judge: Judge) -> Found | Miss:
        if self._folder is None:
            return Miss(MissReason.OFF)
        entry = store.load(self._folder, key)
        if isinstance(entry, Miss):
            return entry
        try:
            graph, plan = open_entry(entry)
            if self._doubt:
                judge(graph, plan)
        except Refused as error:
            return error.miss
        except TmmuError as error:
            return Miss(MissReason.UNSOUND, error.what)
        found = Found(graph=graph, plan=plan, origin="disk")
        self._remember(key, found, len(entry.graph) + len(entry.plan))
        return found

    def _made(self, make: Make, judge: Judge, miss: Miss) -> Found:
        graph, plan = make()
        judge(graph, plan)
        return Found(graph=graph, plan=plan, origin="cold", miss=miss)

    def _remember(self, key: Key, found: Found, cost: int) -> None:
        self._table.put(key.digest, Found(graph=found.graph, plan=found.plan, origin="table"), cost)

    def _counted(self, found: Found) -> Found:
        with self._lock:
            self._counts[found.origin] += 1
        return found

    @contextmanager
    def _alone(self, digest: bytes) -> Iterator[None]:
        """One thread at a time for each key."""
        with self._lock:
            turn, waiting = self._making.get(digest, (RLock(), 0))
            self._making[digest] = (turn, waiting + 1)
        try:
            with turn:
                yield
        finally:
            with self._lock:
                turn, waiting = self._making[digest]
                if waiting == 1:
                    del self._making[digest]
                else:
                    self._making[digest] = (turn, waiting - 1)
