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
class CachedPlan:
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
    ``reverify`` it is judged again.
    """

    def __init__(self, folder: Path | None, *, limit: int = LIMIT, rows: int = ROWS, reverify: bool = False) -> None:
        self._folder = folder
        self._limit = limit
        self._reverify = reverify
        self._table: Table[CachedPlan] = Table(rows=rows, room=ROOM)
        self._lock = Lock()
        self._counts = {"table": 0, "disk": 0, "cold": 0}
        self._making: dict[bytes, tuple[RLock, int]] = {}

    @property
    def counts(self) -> Counts:
        """What was answered so far."""
        with self._lock:
            return Counts(**self._counts)

    def plan(self, key: Key | NoKey, make: Make, judge: Judge = check.judge) -> CachedPlan:
        """The plan under ``key``, or the one that ``make`` returns, judged and stored.

        ``judge`` returns for a sound plan alone. Errors are those of ``judge`` and ``make``.
        """
        if isinstance(key, NoKey):
            return self._count(self._make(make, judge, Miss(MissReason.NO_KEY, key.why)))
        cached = self._table.get(key.digest)
        if cached is None:
            with self._exclusive(key.digest):
                cached = self._table.get(key.digest) or self._load_or_make(key, make, judge)
        return self._count(cached)

    def lookup(self, key: Key, judge: Judge = check.judge) -> CachedPlan | Miss:
        """The plan under ``key`` if it is at hand; else why it is not."""
        cached = self._table.get(key.digest) or self._load(key, judge)
        return cached if isinstance(cached, Miss) else self._count(cached)

    def graph(self, key: Key) -> Graph | None:
        """The graph of ``key``, from a plan of it that was asked for in another way; ``None`` if there is none.

        It is well formed and not judged: that comes with its plan.
        """
        for entry in store.relatives(self._folder, key) if self._folder else ():
            with suppress(Refused):
                return open_entry(entry)[0]
        return None

    def _load_or_make(self, key: Key, make: Make, judge: Judge) -> CachedPlan:
        loaded = self._load(key, judge)
        if isinstance(loaded, CachedPlan):
            return loaded
        new = self._make(make, judge, loaded)
        data = encode_entry(key, new.graph, new.plan)
        self._remember(key, new, len(data))
        refusal = store.save(self._folder, key, data, limit=self._limit) if self._folder else ""
        return replace(new, unkept=refusal)

    def _load(self, key: Key, judge: Judge) -> CachedPlan | Miss:
        if self._folder is None:
            return Miss(MissReason.OFF)
        entry = store.load(self._folder, key)
        if isinstance(entry, Miss):
            return entry
        try:
            graph, plan = open_entry(entry)
            if self._reverify:
                judge(graph, plan)
        except Refused as error:
            return error.miss
        except TmmuError as error:
            return Miss(MissReason.UNSOUND, error.what)
        loaded = CachedPlan(graph=graph, plan=plan, origin="disk")
        self._remember(key, loaded, len(entry.graph) + len(entry.plan))
        return loaded

    def _make(self, make: Make, judge: Judge, miss: Miss) -> CachedPlan:
        graph, plan = make()
        judge(graph, plan)
        return CachedPlan(graph=graph, plan=plan, origin="cold", miss=miss)

    def _remember(self, key: Key, cached: CachedPlan, cost: int) -> None:
        self._table.put(key.digest, CachedPlan(graph=cached.graph, plan=cached.plan, origin="table"), cost)

    def _count(self, cached: CachedPlan) -> CachedPlan:
        with self._lock:
            self._counts[cached.origin] += 1
        return cached

    @contextmanager
    def _exclusive(self, digest: bytes) -> Iterator[None]:
        """One thread at a time for each key."""
        with self._lock:
            lock, waiting = self._making.get(digest, (RLock(), 0))
            self._making[digest] = (lock, waiting + 1)
        try:
            with lock:
                yield
        finally:
            with self._lock:
                lock, waiting = self._making[digest]
                if waiting == 1:
                    del self._making[digest]
                else:
                    self._making[digest] = (lock, waiting - 1)
