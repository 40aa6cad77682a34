"""Swapping for real: a ``Swapper`` driven by clients, by steps and by copies that land.

Whoever changes something has the swapper decide and issues the chunks that follow; a thread of the device's does so for
each copy that has landed, and an alarm for what a policy wants at a time. So copies go on while steps run, and while
nobody runs.

Locks, from the outside in: the engine's, the one here, the scheduler's and the alarm's. Nobody waits for a copy who has
the engine's, but for its turn on the link the step whose weights stream. The device is used under the lock here alone.

A copy that fails ends swapping: whoever needs a state that is not whole on the device is refused, others go on.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from threading import Condition
from typing import Final

from tmmu.engine.geometry import Geometry
from tmmu.engine.policies.arbiter import Chunk
from tmmu.engine.policies.ledger import is_missed
from tmmu.engine.policies.swapper import SwapLimits, Swapper
from tmmu.engine.policies.table import SwapPolicy
from tmmu.engine.swap.alarm import NS_PER_SECOND, Alarm
from tmmu.engine.swap.host_tier import HostTier
from tmmu.engine.swap.link import InFlight, SwapLink
from tmmu.engine.swap.rooms import ArenaRooms
from tmmu.engine.swap.state_image import StateImage
from tmmu.engine.swap.states import StateOwner, SwapState
from tmmu.errors import InternalError, SegmentFull, SessionUnknown, TmmuError
from tmmu.runtime.memory.data import DataSegment
from tmmu.runtime.memory.usage import round_up

GRACE_NS: Final = 100_000_000
"""Idle for so long without a word of its client, a session is copied early: tokens of one text come faster."""

_WEIGHTS: Final = -1
"""The key of weights among the sessions, which have numbers from 0 on."""


class SessionSwapping:
    """Sessions of one engine under one policy. ``wake`` is called whenever one may run, or is refused.

    ``clock``: seconds. A session is *needed* while any ``need`` of it has no ``rest``.
    """

    def __init__(  # noqa: PLR0913 - the parts that it drives, by name
        self,
        policy: SwapPolicy,
        limits: SwapLimits,
        *,
        geometry: Geometry,
        data: DataSegment,
        host: HostTier,
        link: SwapLink,
        clock: Callable[[], float],
        wake: Callable[[], object],
    ) -> None:
        self._geometry, self._data, self._link = geometry, data, link
        self.host = host
        self._clock, self._wake = clock, wake
        self._rooms = ArenaRooms(data, host, link)
        self._swapper = self._rooms.swapper = Swapper(policy, limits, self._rooms)
        self._states: dict[str, SwapState] = {}
        self._changed = Condition()
        self._alarm = Alarm(self._now, self._ring)
        self._steps_under_way = 0
        self._alone: dict[int, int] = {}
        """Bytes of chunks in flight beside which no step ran so far, by number."""
        self._failure: TmmuError | None = None
        link.on_landed = self.land

    # -- clients

    def open(self, owner: StateOwner) -> None:
        """A session without a state, which is needed. ``SEGMENT_FULL`` where it is larger than the device."""
        with self._changed:
            room = round_up(owner.arena_bytes, self._data.alignment)
            number = self._swapper.open(room, self._now(), rank=owner.rank)
            state = SwapState(owner=owner, number=number, room=room, image=StateImage(self._geometry), needs=1)
            self._states[owner.capability] = self._rooms.states[number] = state
            self._advance()

    def settle(self, owner: StateOwner) -> TmmuError | None:
        """Waits until a needed session may run, or is refused, or no copy is under way that might give it room.

        Why it is refused, if it is.
        """
        with self._changed:
            state = self._open_state(owner)
            self._changed.wait_for(
                lambda: (
                    state.is_ready
                    or state.is_closed
                    or state.refusal is not None
                    or not self._swapper.is_moving
                    or self._failure
                )
            )
            return state.refusal

    def require_room(self, owner: StateOwner) -> None:
        """Like ``settle``; ``SEGMENT_FULL`` too where it may not run afterwards, because others have the room."""
        refusal = self.settle(owner)
        with self._changed:
            state = self._open_state(owner)
            if refusal is not None or not state.is_ready:
                raise refusal or self._full(state)

    def need(self, owner: StateOwner) -> None:
        """A step of the session is wanted, or something else with its state on the device."""
        with self._changed:
            state = self._states[owner.capability]
            state.needs += 1
            if state.needs == 1:
                was_there = self._swapper.views[state.number].location == "device"
                self._swapper.need(state.number, self._now())
                self._advance(decide=not was_there)

    def rest(self, owner: StateOwner) -> None:
        """The end of what it was needed for; a session that is closed already needs none."""
        with self._changed:
            state = self._states.get(owner.capability)
            if state is None:
                return
            state.needs -= 1
            if not state.needs:
                self._begin_wait(state, grace_ns=GRACE_NS)
            elif state.needs == state.holds:
                self._advance()  # who waits for its room waits in vain now

    def hold(self, owner: StateOwner) -> None:
        """A session that may run stays on the device, though it has no step to run, until ``release``."""
        with self._changed:
            self._states[owner.capability].holds += 1
            self.need(owner)

    def release(self, owner: StateOwner) -> None:
        """The end of ``hold``."""
        with self._changed:
            state = self._states.get(owner.capability)
            if state is not None:
                state.holds -= 1
                self.rest(owner)

    def wait(self, owner: StateOwner, *, kind: str, expected: float | None) -> None:
        """The client of a session that is not needed says that it waits: for what, and for how many seconds."""
        with self._changed:
            state = self._states[owner.capability]
            if not state.needs:  # a fork of it may be under way
                expected_ns = None if expected is None else self._now() + int(expected * NS_PER_SECOND)
                self._begin_wait(state, kind=kind, expected_ns=expected_ns)

    def expect(self, owner: StateOwner, seconds: float) -> None:
        """The client of an idle session says that it will be needed so soon."""
        with self._changed:
            at_ns = self._now() + int(seconds * NS_PER_SECOND)
            self._swapper.expect(self._states[owner.capability].number, at_ns)
            self._advance()

    def evict(self, owner: StateOwner) -> None:
        """An idle session leaves now, and has left. ``SEGMENT_FULL`` where the host tier has no room for it."""
        with self._changed:
            state = self._open_state(owner)
            self._changed.wait_for(lambda: self._location(state) != "arriving" or self._failure)
            if not self._swapper.evict(self._open_state(owner).number):
                raise self._full(state)
            self._advance(decide=False)
            self._changed.wait_for(lambda: self._location(state) != "leaving" or self._failure)

    def evict_idle(self) -> int:
        """Has idle sessions leave, as far as the host tier has room, the least recently used first; how many go.

        None under a policy by which sessions stay.
        """
        with self._changed:
            if not self._swapper.policy.evicts:
                return 0
            idle = [view for view in self._swapper.views.values() if view.is_idle and view.location == "device"]
            leaving = sum(self._swapper.evict(view.id) for view in sorted(idle, key=lambda view: view.last_op_ns))
            self._advance(decide=False)
            return leaving

    def keep_room(self, headroom: tuple[int, ...]) -> None:
        """From now on each class keeps so many bytes of the device from those below it, by rank."""
        with self._changed:
            self._swapper.headroom = headroom
            self._advance()

    def close(self, owner: StateOwner) -> None:
        """Its room is cleared, its copy wiped, at once or when its last chunk has landed. Again it does nothing."""
        with self._changed:
            state = self._states.get(owner.capability)
            if state is not None:
                state.is_closed, state.is_ready = True, False
                self._swapper.close(state.number)
                del self._states[owner.capability]
            self._advance()

    # -- steps

    def may_run(self, owner: StateOwner) -> bool:
        """Whether a step of the session would run or be refused at once; takes no lock."""
        state = self._states.get(owner.capability)
        return state is None or state.is_ready or state.refusal is not None

    def refusal(self, owner: StateOwner) -> TmmuError | None:
        """Why a needed session cannot have its room."""
        state = self._states.get(owner.capability)
        return None if state is None or state.is_ready else state.refusal

    def take_moved(self, owner: StateOwner) -> bool:
        """Whether the session has another arena than at the last call."""
        state = self._states[owner.capability]
        moved, state.has_moved = state.has_moved, False
        return moved

    @contextmanager
    def step(
        self, written: Sequence[StateOwner], read: Sequence[StateOwner] = (), *, is_new: bool = False
    ) -> Iterator[None]:
        """Block in which states of sessions that may run are read and written, or read alone. Those of others may be so
        meanwhile.

        ``is_new``: what is written begins anew, so that nothing the host has of it is right any more.
        """
        states = [self._states[owner.capability] for owner in written]
        others = [self._states[owner.capability] for owner in read]
        with self._changed:
            self._steps_under_way += 1
            self.host.counts.overlapped += sum(self._alone.values())
            self._alone.clear()
            self._link.begin_step(states, others, is_new=is_new)
        try:
            yield
        finally:
            with self._changed:
                self._steps_under_way -= 1
                self._link.end_step(states, others)
                for state in states:
                    self._note_step(state, is_new=is_new)

    def wait_for_weights_turn(self, size: int) -> None:
        """Waits until ``size`` bytes of weights may be copied: behind swaps, as the arbiter has it, but not for ever.

        For the thread that runs steps. It may hold the engine's lock: what it waits for is landed by threads of the
        device's, which never take that. What of weights is under way does not count with the chunks in flight; it is at
        most what the ring's blocks hold.
        """
        with self._changed:
            self._swapper.arbiter.request(_WEIGHTS, "weights", size, urgent=True)
            try:
                self._advance(decide=False)
                self._changed.wait_for(
                    lambda: self._failure or not self._swapper.arbiter.remaining(_WEIGHTS, "weights")
                )
            finally:
                self._swapper.arbiter.cancel(_WEIGHTS, "weights")

    # -- what there is

    def is_on_device(self, owner: StateOwner) -> bool:
        """Whether the state of a session is whole on the device."""
        with self._changed:
            state = self._states.get(owner.capability)
            return state is not None and self._location(state) in ("device", "leaving")

    def waits_for_room(self, owner: StateOwner) -> bool:
        """Whether a session is needed and has no room."""
        with self._changed:
            state = self._states.get(owner.capability)
            return state is not None and is_missed(self._swapper.views[state.number])

    @property
    def is_moving(self) -> bool:
        """Whether anything is copied or cleared."""
        with self._changed:
            return self._swapper.is_moving

    @property
    def missed(self) -> int:
        """Sessions whose clients wait while they have no room."""
        return self._swapper.missed

    @property
    def evictions(self) -> tuple[int, int]:
        """Sessions that left early, and late: when somebody waited for room."""
        return self._swapper.evicted_early, self._swapper.evicted_late

    @property
    def copied_bytes(self) -> int:
        """Bytes of states that the host has as they are now."""
        return self._swapper.copied_bytes

    def wait_until_still(self) -> None:
        """Waits until nothing is copied or cleared."""
        with self._changed:
            self._changed.wait_for(lambda: not self._swapper.is_moving or self._failure)

    @contextmanager
    def still(self) -> Iterator[None]:
        """Block in which no arena is taken or freed."""
        with self._changed:
            yield

    def shut_down(self) -> None:
        """Waits for all copies, and ends streams and threads; all sessions are closed."""
        self._alarm.close()
        self.wait_until_still()
        try:
            self._link.close()
        finally:
            self._link.device.close()
            self.host.close()

    # -- what moves

    def land(self, task: InFlight) -> None:
        """A task of the link is over."""
        with self._changed:
            decide = False
            try:
                decide = self._failure is None and self._link.land(task)
            except Exception as error:  # noqa: BLE001 - whatever a copy fails of
                self._failure = InternalError(f"a copy of a session's state has failed: {error}")
                self._failure.__cause__ = error
            self._advance(decide=decide)

    def _ring(self) -> None:
        with self._changed:
            self._advance()

    def _advance(self, *, decide: bool = True) -> None:
        """Decisions, then chunks; who may run then, and who never will."""
        if self._failure is None:
            if decide:
                self._alarm.set_by(self._swapper.decide(self._now()))
            while (chunk := self._swapper.next_chunk()) is not None:
                self._issue(chunk)
        for number in self._swapper.take_ready():
            self._rooms.states[number].is_ready = True
        self._refuse()
        self._changed.notify_all()
        self._wake()

    def _refuse(self) -> None:
        """Whoever needs a state that cannot be there: after a failure all of them, else who has waited longest."""
        if self._failure is not None:
            for state in self._states.values():
                if state.needs and not state.is_ready:
                    state.refusal = self._failure
            return
        stuck = self._swapper.stuck(self._paused()) if self._swapper.missed else None
        if stuck is not None:
            self._rooms.states[stuck].refusal = self._full(self._rooms.states[stuck])

    def _paused(self) -> frozenset[int]:
        """Sessions that are needed, and not for a step."""
        return frozenset(state.number for state in self._states.values() if 0 < state.needs == state.holds)

    def _issue(self, chunk: Chunk) -> None:
        if chunk.direction == "weights":
            self._swapper.landed(chunk)  # who asked for it copies it
            return
        state = self._rooms.states[chunk.key]
        if self._steps_under_way:
            self.host.counts.overlapped += chunk.size
        else:
            self._alone[chunk.number] = chunk.size
        if chunk.direction == "out":
            pieces = state.image.extend(state.lengths, chunk.size, self.host)
            self._link.copy_out(state, pieces, partial(self._finish, chunk))
        else:
            begin, state.arrived = state.arrived, state.arrived + chunk.size
            self._link.copy_in(state, state.image.between(begin, state.arrived), partial(self._finish, chunk))

    def _finish(self, chunk: Chunk) -> bool:
        self._alone.pop(chunk.number, None)
        if chunk.direction == "out":
            self.host.counts.bytes_out += chunk.size
        else:
            self.host.counts.bytes_in += chunk.size
        return self._swapper.landed(chunk)

    def _begin_wait(
        self, state: SwapState, *, kind: str = "", expected_ns: int | None = None, grace_ns: int = 0
    ) -> None:
        state.is_ready, state.refusal = False, None
        now_ns = self._now()
        self._swapper.begin_wait(state.number, now_ns, kind=kind, expected_ns=expected_ns, grace_ns=grace_ns)
        if not grace_ns or self._swapper.missed:
            self._advance()
        else:
            self._alarm.set_by(now_ns + grace_ns)

    def _note_step(self, state: SwapState, *, is_new: bool) -> None:
        changed = state.image.forget() if is_new else state.image.forget_changed()
        self.host.free(changed)
        self._link.wipe(changed)
        live = state.image.live_bytes(state.lengths)
        self._swapper.write(
            state.number, self._now(), live=live, changed=sum(host_range.size for host_range in changed)
        )

    def _full(self, state: SwapState) -> SegmentFull:
        free, left = self._swapper.free, self.host.budget - self.host.used
        return SegmentFull(
            f"no room for a session of {state.room} bytes: {free} are free on the device, and the host tier has {left} "
            f"of {self.host.budget} bytes left for those that are there",
            fix="close a session, or give the engine a larger host=",
            segment="host",
            bytes=state.room,
            free=left,
            capacity=self.host.budget,
        )

    def _open_state(self, owner: StateOwner) -> SwapState:
        """The state of a session that is open; somebody else may have closed it."""
        state = self._states.get(owner.capability)
        if state is None:
            raise SessionUnknown("the session was closed meanwhile", fix="open another one")
        return state

    def _location(self, state: SwapState) -> str:
        view = self._swapper.views.get(state.number)
        return "" if view is None else view.location

    def _now(self) -> int:
        return int(self._clock() * NS_PER_SECOND)
