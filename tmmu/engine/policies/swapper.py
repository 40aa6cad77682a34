"""Where the bytes of each session are, what a policy decides of them, and the chunks that carry it out.

Whoever has a device drives it: reports what clients and steps do, asks for decisions, copies the chunks and reports
each that has landed. Times come in as arguments; nothing waits here. Not for several threads at once.

Write-behind: the dirty bytes of an idle session are asked for early, behind whatever is urgent; a clean session's room
is free the moment it is evicted. What the host has and a step did not change is not copied again, also after the
session was back on the device.

A session that is needed again while it leaves stays; at most ``STAYS`` times where somebody waits for room.

Host tier: what the device does not have whole counts first. Copies of sessions that are on the device take what is
left, and are dropped, most recently used first, where an eviction needs their bytes; an only copy never is. An eviction
for which that is not enough does not happen.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Final, Protocol

from tmmu.engine.policies.arbiter import Chunk, LinkArbiter
from tmmu.engine.policies.history import WaitHistory
from tmmu.engine.policies.ledger import is_missed
from tmmu.engine.policies.table import SwapPolicy
from tmmu.engine.policies.views import LinkView, SessionView, Situation
from tmmu.errors import InvalidConfig, SegmentFull, SessionUnknown

PATIENCE: Final = 8
"""Chunks of others after which a direction of the link is due."""
REMEMBER_NS: Final = 600 * 10**9
"""How long room is kept for a class of which no session is there."""
STAYS: Final = 16
"""Times that a session which is needed again while it leaves keeps its room, though somebody waits for room."""


class Rooms(Protocol):
    """Where rooms and copies really lie, for a swapper of which more than numbers is wanted.

    Calls come from within the swapper's own; they must not call it back.
    """

    @property
    def largest_free(self) -> int:
        """Bytes of the longest room that there is."""

    def take(self, session: int) -> bool:
        """A room for the session, in one piece; false, and nothing has changed, where no gap is long enough."""

    def clear(self, session: int) -> None:
        """Nobody needs what is in the session's room: ``Swapper.end_clearing`` is told when the room is free."""

    def drop_copy(self, session: int) -> None:
        """Nobody needs what the host has of the session."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SwapLimits:
    """Bytes of ``device`` and ``host`` tier (``None``: no budget), of a chunk and in flight; the link's rate.

    ``headroom``: by rank, bytes of the device that a class keeps from those below it, for ``REMEMBER_NS`` after it was
    there.
    """

    device: int
    host: int | None = None
    chunk: int = 64_000_000
    in_flight: int = 128_000_000
    bytes_per_second: int = 24 * 10**9
    time_to_live_ns: int = 60 * 10**9
    headroom: tuple[int, ...] = ()

    def check(self) -> None:
        """``INVALID_CONFIG`` for limits with which nothing runs; the arbiter checks its own."""
        sizes = (self.device - 1, self.bytes_per_second - 1, self.time_to_live_ns - 1, self.host or 0, *self.headroom)
        if min(sizes) < 0:
            raise InvalidConfig(
                f"a device of {self.device} bytes, a host tier of {self.host}, {self.bytes_per_second} bytes a second",
                fix="give positive numbers",
            )


class Swapper:
    """Sessions on one device, one host tier and one link, under one policy. Ids count up from 0 and never repeat."""

    def __init__(self, policy: SwapPolicy, limits: SwapLimits, rooms: Rooms | None = None) -> None:
        """Without ``rooms`` any two free bytes make a room of two, and rooms are free when they are left."""
        limits.check()
        self.policy, self.limits = policy, limits
        self.headroom = limits.headroom
        """By rank, as in the limits; it may change."""
        self.evicted_early = self.evicted_late = 0
        """Sessions that left before anybody needed their room, and when somebody waited for room."""
        self._rooms = rooms
        self.arbiter = LinkArbiter(chunk=limits.chunk, in_flight=limits.in_flight, patience=PATIENCE)
        self._views: dict[int, SessionView] = {}
        self._flying: dict[int, int] = {}
        self._closing: set[int] = set()
        self._ready: list[int] = []
        self._history = WaitHistory()
        self._copied_from: dict[int, int] = {}
        self._stays: dict[int, int] = {}
        self._seen_ns: dict[int, int] = {}
        """By rank, when a session of the class was opened or there last."""
        self._opened = self._taken = self._clearing = 0
        self._is_cramped = False
        self.copied_bytes = 0
        """Bytes of sessions that the host tier has as they are now."""
        self.missed = 0
        """Sessions whose clients wait while their bytes are on the host."""
        self.bytes_in = self.bytes_out = 0
        """Bytes that have landed so far, by direction."""

    # -- what clients and steps do

    def open(self, room: int, now_ns: int, *, rank: int = 1) -> int:
        """A new session that needs ``room`` bytes of the device; its id. ``SEGMENT_FULL`` where it never fits.

        ``rank``: of its class.
        """
        if room > self.limits.device:
            raise SegmentFull(
                f"a session of {room} bytes does not fit on a device of {self.limits.device}",
                fix="give a larger budget, or a shorter session",
                needed=room,
                device=self.limits.device,
            )
        number = self._opened
        self._opened += 1
        view = self._views[number] = SessionView(
            id=number, room=room, rank=rank, needed_since_ns=now_ns, last_op_ns=now_ns
        )
        self._seen_ns[rank] = now_ns
        self.missed += is_missed(view)
        return number

    def need(self, session: int, now_ns: int) -> None:
        """The client wants a step: the session is ready once its bytes are on the device and none of them moves."""
        view = self._view(session)
        if not view.is_idle:
            return
        self._history.record(view.wait_kind, now_ns - view.last_op_ns)
        location = view.location
        if location != "leaving" or self._keeps_room(view):
            self.arbiter.cancel(session, "out")
            location = "device" if location == "leaving" else location
        self._change(session, needed_since_ns=now_ns, expected_ns=None, location=location)
        self.arbiter.request(session, "in", 0, urgent=True)
        self._note_ready(session)

    def begin_wait(
        self, session: int, now_ns: int, *, kind: str = "", expected_ns: int | None = None, grace_ns: int = 0
    ) -> None:
        """The client wants no step for now; ``expected_ns`` is when it says that it will.

        ``grace_ns``: how long nothing is copied early, where it may go on at once.
        """
        self._view(session)
        self._copied_from[session] = now_ns + grace_ns
        self._change(session, needed_since_ns=None, last_op_ns=now_ns, wait_kind=kind, expected_ns=expected_ns)

    def expect(self, session: int, at_ns: int) -> None:
        """The client of an idle session now says this time."""
        if self._view(session).is_idle:
            self._change(session, expected_ns=at_ns)

    def write(self, session: int, now_ns: int, *, live: int, changed: int) -> None:
        """A step has ended: the state has ``live`` bytes, and ``changed`` of those it had before are others."""
        view = self._view(session)
        if not (0 <= live <= view.room and changed >= 0 and self.can_run(session)):
            raise InvalidConfig(
                f"session {session}: {live} bytes of {view.room}, {changed} changed, {view.location}",
                fix="report steps of sessions that can run, inside of their room",
            )
        copied = min(max(0, view.copied - changed), live)
        self._change(session, live=live, copied=copied, last_op_ns=now_ns)

    def evict(self, session: int) -> bool:
        """Whether an idle session, asked by hand, goes from the device or is gone."""
        self._evict(self._view(session))
        return self._views[session].location in ("leaving", "host")

    def close(self, session: int) -> None:
        """Its room and copies are free, at once or when the last of its chunks has landed."""
        self._view(session)
        for direction in ("in", "out"):
            self.arbiter.cancel(session, direction)
        if self._flying.get(session):
            self._closing.add(session)
        else:
            self._remove(session)

    # -- what the device does

    def decide(self, now_ns: int) -> int | None:
        """Asks the policy and carries it out; when to call again at the latest. Call it after whatever has changed."""
        ask_ns = self._follow_policy(now_ns)
        if self._is_cramped:  # free rooms are apart: as if there was the longest of them alone, so that others go
            ask_ns = self._follow_policy(now_ns)
        self._is_cramped = False
        times = [time for time in (ask_ns, self._write_behind(now_ns)) if time is not None]
        return min(times, default=None)

    def next_chunk(self) -> Chunk | None:
        """The chunk to copy now, if any; its session does not run before it has landed."""
        chunk = self.arbiter.next_chunk()
        if chunk is not None and chunk.direction != "weights":
            self._flying[chunk.key] = self._flying.get(chunk.key, 0) + chunk.size
        return chunk

    def landed(self, chunk: Chunk) -> bool:
        """A chunk is where it goes. Whether a decision may change by that."""
        self.arbiter.landed(chunk)
        if chunk.direction == "weights":
            return False
        self._flying[chunk.key] -= chunk.size
        view = self._views[chunk.key]
        if chunk.direction == "in":
            self.bytes_in += chunk.size
            is_settled = self._arrive(view, view.landed + chunk.size)
        else:
            self.bytes_out += chunk.size
            is_settled = self._leave(view, view.copied + chunk.size)
        self._note_ready(chunk.key)
        if chunk.key in self._closing and not self._flying[chunk.key]:
            self._closing.discard(chunk.key)
            self._remove(chunk.key)
            return True
        return is_settled

    def end_clearing(self, room: int) -> None:
        """A room that ``Rooms.clear`` was told of is free: call ``decide``."""
        self._clearing -= room

    # -- what there is

    def can_run(self, session: int) -> bool:
        """Whether the session is needed, all of it is on the device, and none of its bytes moves."""
        view = self._views[session]
        return not view.is_idle and view.location == "device" and not self._flying.get(session)

    def take_ready(self) -> list[int]:
        """Sessions that can run and could not at the last call, in the order in which they became able to."""
        ready = [session for session in dict.fromkeys(self._ready) if session in self._views and self.can_run(session)]
        self._ready.clear()
        return ready

    @property
    def views(self) -> Mapping[int, SessionView]:
        """Every session, by id; read-only."""
        return MappingProxyType(self._views)

    @property
    def free(self) -> int:
        """Bytes of the device that no session takes and nobody clears."""
        return self.limits.device - self._taken - self._clearing

    @property
    def is_moving(self) -> bool:
        """Whether a session leaves or arrives, a chunk is in flight, or a room is cleared."""
        moving = any(view.location in ("leaving", "arriving") for view in self._views.values())
        return moving or bool(self._clearing) or any(self._flying.values())

    def stuck(self, paused: frozenset[int] = frozenset()) -> int | None:
        """The session that has waited longest for room, where no room will be free unless a session is closed.

        ``paused``: needed sessions that have no step to run. ``None`` too under a policy that has sessions wait.
        """
        if not self.policy.evicts or self.is_moving:
            return None
        needed = [view for view in self._views.values() if not view.is_idle]
        if any(view.location != "host" and view.id not in paused for view in needed):
            return None
        waiting = [view for view in needed if view.location == "host"]
        return min(waiting, key=lambda view: (view.needed_since_ns or 0, view.id)).id if waiting else None

    def situation(self, now_ns: int) -> Situation:
        """What a policy is asked with."""
        views = tuple(view for view in self._views.values() if view.id not in self._closing)
        away = sum(view.live for view in self._views.values() if view.location != "device")
        arriving = sum(view.live - view.landed for view in views if view.location == "arriving")
        return Situation(
            now_ns=now_ns,
            budget=self.limits.device,
            free=self._largest_free(),
            clearing=self._clearing + sum(self._views[session].room for session in self._closing),
            sessions=views,
            link=LinkView(bytes_per_second=self.limits.bytes_per_second, arriving=arriving),
            host_room=None if self.limits.host is None else max(0, self.limits.host - away),
            history=self._history.view(),
            time_to_live_ns=self.limits.time_to_live_ns,
            bounds=self._bounds(now_ns),
        )

    def _bounds(self, now_ns: int) -> tuple[int, ...]:
        """By rank, what is left of the device by the classes above that were there lately."""
        if not any(self.headroom):
            return ()
        for view in self._views.values():
            self._seen_ns[view.rank] = now_ns
        ranks = range(max(self._seen_ns, default=0) + 1)
        kept = [
            room if rank in self._seen_ns and now_ns - self._seen_ns[rank] <= REMEMBER_NS else 0
            for rank, room in enumerate(self.headroom)
        ]
        return tuple(self.limits.device - sum(kept[:rank]) for rank in ranks)

    # -- how it is carried out

    def _evict(self, view: SessionView) -> None:
        if view.location != "device" or not view.is_idle or not self._make_host_room(view):
            return
        self.evicted_late += self.missed > 0
        self.evicted_early += not self.missed
        if not view.dirty:
            self._change(view.id, location="host")
            return
        self._change(view.id, location="leaving")
        self.arbiter.request(view.id, "out", view.dirty - self._promised_bytes(view.id), urgent=True)

    def _follow_policy(self, now_ns: int) -> int | None:
        decision = self.policy.decide(self.situation(now_ns))
        for session in decision.evict:
            self._evict(self._views[session])
        for session in decision.fetch:
            view = self._views[session]
            if view.location == "host" and view.room <= self.free:
                self._fetch(view)
        return decision.ask_again_ns

    def _largest_free(self) -> int:
        return min(self.free, self._rooms.largest_free) if self._rooms is not None and self._is_cramped else self.free

    def _keeps_room(self, view: SessionView) -> bool:
        """Whether a session that is needed again while it leaves stays."""
        if not self.missed:
            self._stays.pop(view.id, None)
            return True
        self._stays[view.id] = self._stays.get(view.id, 0) + 1
        return self._stays[view.id] <= STAYS

    def _fetch(self, view: SessionView) -> None:
        if self._rooms is not None and not self._rooms.take(view.id):
            self._is_cramped = True
            return
        self._change(view.id, location="arriving" if view.live else "device", landed=0)
        if view.live:
            self.arbiter.request(view.id, "in", view.live, urgent=not view.is_idle)
        self._note_ready(view.id)

    def _write_behind(self, now_ns: int) -> int | None:
        """Copies of idle sessions are asked for, oldest step first, as far as the host tier has room.

        When the next time of grace is over that somebody has before it is copied.
        """
        behind = [view for view in self._views.values() if self._is_behind(view)]
        waiting = [view for view in behind if self._copied_from.get(view.id, 0) <= now_ns]
        for view in sorted(waiting, key=lambda view: (view.last_op_ns, view.id)):
            size = min(view.dirty, self._host_free())
            if size:
                self.arbiter.request(view.id, "out", size, urgent=False)
        graces = [self._copied_from[view.id] for view in behind if self._copied_from.get(view.id, 0) > now_ns]
        return min(graces, default=None)

    def _is_behind(self, view: SessionView) -> bool:
        is_idle = view.is_idle and view.location == "device" and view.id not in self._closing
        return is_idle and bool(view.dirty) and not self._promised_bytes(view.id)

    def _make_host_room(self, view: SessionView) -> bool:
        """Whether the host tier has room for the whole of a session, once copies that can be spared are dropped."""
        missing = view.dirty - self._promised_bytes(view.id) - self._host_free()
        if missing <= 0:
            return True
        spare = [spared for spared in self._views.values() if self._is_spare(spared) and spared.id != view.id]
        if sum(spared.copied + self.arbiter.remaining(spared.id, "out") for spared in spare) < missing:
            return False
        for spared in sorted(spare, key=lambda spared: (-spared.last_op_ns, spared.id)):
            if missing <= 0:
                break
            missing -= spared.copied + self.arbiter.cancel(spared.id, "out")
            self._change(spared.id, copied=0)
            if self._rooms is not None:
                self._rooms.drop_copy(spared.id)
        return True

    def _is_spare(self, view: SessionView) -> bool:
        return view.location == "device" and not self._flying.get(view.id)

    def _host_free(self) -> int:
        """Bytes of the host tier that it neither has nor has promised."""
        if self.limits.host is None:
            return 1 << 62
        return max(0, self.limits.host - self.copied_bytes - sum(map(self._promised_bytes, self._views)))

    def _promised_bytes(self, session: int) -> int:
        """Bytes on their way to the host: asked for, or in flight."""
        view = self._views[session]
        flying = 0 if view.location in ("host", "arriving") else self._flying.get(session, 0)
        return flying + self.arbiter.remaining(session, "out")

    def _arrive(self, view: SessionView, landed: int) -> bool:
        is_whole = landed == view.live
        if is_whole:
            self._change(view.id, location="device", landed=0)
        else:
            self._change(view.id, landed=landed)
        return is_whole

    def _leave(self, view: SessionView, copied: int) -> bool:
        is_gone = view.location == "leaving" and copied == view.live and view.id not in self._closing
        self._change(view.id, copied=copied, location="host" if is_gone else view.location)
        return copied == view.live

    def _note_ready(self, session: int) -> None:
        if session not in self._closing and self.can_run(session):
            self._ready.append(session)

    def _change(self, session: int, **fields: Any) -> None:
        before = self._views[session]
        after = self._views[session] = replace(before, **fields)
        self._taken += _taken_by(after) - _taken_by(before)
        self.copied_bytes += after.copied - before.copied
        self.missed += is_missed(after) - is_missed(before)
        if after.location == "host" and before.location != "host":
            self._leave_room(after)

    def _leave_room(self, view: SessionView) -> None:
        self._stays.pop(view.id, None)
        if self._rooms is not None:
            self._clearing += view.room
            self._rooms.clear(view.id)

    def _remove(self, session: int) -> None:
        view = self._views.pop(session)
        self._taken -= _taken_by(view)
        self.copied_bytes -= view.copied
        self.missed -= is_missed(view)
        for table in (self._flying, self._copied_from, self._stays):
            table.pop(session, None)
        if view.location != "host":
            self._leave_room(view)
        if self._rooms is not None:
            self._rooms.drop_copy(session)

    def _view(self, session: int) -> SessionView:
        view = self._views.get(session)
        if view is None or session in self._closing:
            raise SessionUnknown(f"no session {session} is open", fix="open one")
        return view


def _taken_by(view: SessionView) -> int:
    return 0 if view.location == "host" else view.room
