"""The plan cache: get or make, through a table of this process and a folder of files.

A lookup asks the table, the folder, then ``make``; each level fills those before it. Invariants: what ``make`` returns
is judged before it is put anywhere, and a key decides the bytes of its plan, so no entry is ever updated.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Lock, RLock
from typing import Final, Literal, TypeAlias

from tmmu.cache import store
from tmmu.cache.entry import EntryRefused, encode_entry, open_entry
from tmmu.cache.miss import Miss, MissReason
from tmmu.cache.table import LruTable
from tmmu.errors import TmmuError
from tmmu.ir.graph import Graph
from tmmu.ir.key import Key, NoKey
from tmmu.ir.plan import Plan
from tmmu.judge import check

Origin: TypeAlias = Literal["table", "disk", "cold"]
MakePlan: TypeAlias = Callable[[], tuple[Graph, Plan]]
JudgePlan: TypeAlias = Callable[[Graph, Plan], None]

MAX_FOLDER_BYTES: Final = 1 << 28
"""Of all entry files together: some thousand plans of ordinary models."""
MAX_TABLE_ROWS: Final = 256
MAX_TABLE_BYTES: Final = 1 << 26
"""Of all graphs and plans in the table, as encoded; as objects they take some ten times as much."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CachedPlan:
    """A legal graph, its sound plan, and the level that had them: the table, the disk, or none (``cold``).

    Of a cold one, ``miss`` says why it was not found, and ``store_error`` why it is not on disk (``""``: it is).
    """

    graph: Graph
    plan: Plan
    origin: Origin
    miss: Miss | None = None
    store_error: str = ""


@dataclass(frozen=True, slots=True)
class LookupCounts:
    """How many lookups each level has answered, and how many plans were made (``cold``)."""

    table: int = 0
    disk: int = 0
    cold: int = 0


class PlanCache:
    """Plans in a table of this process (about 1 us a hit) and, with ``folder``, in files that processes share.

    ``limit`` bounds the bytes of the files, ``rows`` the table. A stored plan is trusted by the digest of its entry,
    which this same program wrote after judging; with ``reverify`` it is judged again when it is read from disk.
    Threads may share a cache: of those that miss one key at one time, one makes the plan and the others wait for it.
    """

    def __init__(
        self, folder: Path | None, *, limit: int = MAX_FOLDER_BYTES, rows: int = MAX_TABLE_ROWS, reverify: bool = False
    ) -> None:
        self._folder = folder
        self._limit = limit
        self._reverify = reverify
        self._table: LruTable[CachedPlan] = LruTable(max_rows=rows, max_cost=MAX_TABLE_BYTES)
        self._lock = Lock()
        self._counts = {"table": 0, "disk": 0, "cold": 0}
        self._key_locks: dict[bytes, tuple[RLock, int]] = {}

    @property
    def counts(self) -> LookupCounts:
        """The lookups so far, by the level that answered."""
        with self._lock:
            return LookupCounts(**self._counts)

    def get_or_make(self, key: Key | NoKey, make: MakePlan, judge: JudgePlan = check.judge) -> CachedPlan:
        """The plan under ``key``, or the one that ``make`` returns, judged and stored.

        ``judge`` raises for an unsound plan. Raises what ``judge`` and ``make`` raise, and nothing of its own.
        """
        if isinstance(key, NoKey):
            return self._count(self._make(make, judge, Miss(MissReason.NO_KEY, key.reason)))
        cached = self._table.get(key.digest)
        if cached is None:
            with self._lock_key(key.digest):
                # Asked again: the thread that held the lock before may have made this plan.
                cached = self._table.get(key.digest) or self._load_or_make(key, make, judge)
        return self._count(cached)

    def lookup(self, key: Key, judge: JudgePlan = check.judge) -> CachedPlan | Miss:
        """The plan under ``key``; else why there is none. Makes nothing."""
        cached = self._table.get(key.digest) or self._load(key, judge)
        return cached if isinstance(cached, Miss) else self._count(cached)

    def find_graph(self, key: Key) -> Graph | None:
        """The graph that ``key`` names, from any stored plan of it, whatever preset, token or arenas that one has.

        It is well formed; nobody has checked that it is legal, which comes with planning it.
        """
        for entry in store.entries_of_graph(self._folder, key) if self._folder else ():
            with suppress(EntryRefused):
                return open_entry(entry)[0]
        return None

    def _load_or_make(self, key: Key, make: MakePlan, judge: JudgePlan) -> CachedPlan:
        loaded = self._load(key, judge)
        if isinstance(loaded, CachedPlan):
            return loaded
        new = self._make(make, judge, loaded)
        data = encode_entry(key, new.graph, new.plan)
        self._remember(key, new, len(data))
        refusal = store.save(self._folder, key, data, limit=self._limit) if self._folder else ""
        return replace(new, store_error=refusal)

    def _load(self, key: Key, judge: JudgePlan) -> CachedPlan | Miss:
        if self._folder is None:
            return Miss(MissReason.OFF)
        entry = store.load(self._folder, key)
        if isinstance(entry, Miss):
            return entry
        try:
            graph, plan = open_entry(entry)
            # Else the digest in the entry is trusted: our own code is part of the key, and stores nothing unjudged.
            if self._reverify:
                judge(graph, plan)
        except EntryRefused as error:
            return error.miss
        except TmmuError as error:
            return Miss(MissReason.UNSOUND, error.what)
        loaded = CachedPlan(graph=graph, plan=plan, origin="disk")
        self._remember(key, loaded, len(entry.graph) + len(entry.plan))
        return loaded

    def _make(self, make: MakePlan, judge: JudgePlan, miss: Miss) -> CachedPlan:
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
    def _lock_key(self, digest: bytes) -> Iterator[None]:
        """Block that one thread at a time enters for each key; a reentrant lock lives while anybody waits for it."""
        with self._lock:
            lock, waiting = self._key_locks.get(digest, (RLock(), 0))
            self._key_locks[digest] = (lock, waiting + 1)
        try:
            with lock:
                yield
        finally:
            with self._lock:
                lock, waiting = self._key_locks[digest]
                if waiting == 1:
                    del self._key_locks[digest]
                else:
                    self._key_locks[digest] = (lock, waiting - 1)
