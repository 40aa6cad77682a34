"""The rooms of one decision: who goes, who comes, and what is then free. What all policies share stands here."""

from collections.abc import Iterable, Iterator

from tmmu.engine.policies.views import Decision, SessionView, Situation


class Ledger:
    """A decision under way. ``free``: room to use now; ``coming``: that, and what sessions that leave will free."""

    def __init__(self, situation: Situation) -> None:
        self.situation = situation
        self.free = situation.free
        leaving = sum(view.room for view in situation.sessions if view.location == "leaving")
        self.coming = situation.free + situation.clearing + leaving
        self._host_room = situation.host_room
        self._evicted: dict[int, None] = {}
        self._fetched: dict[int, None] = {}
        self._ask_again: int | None = None

    def evict(self, view: SessionView) -> bool:
        """Whether the session goes: it is idle, whole on the device, and the host tier can take it."""
        if not view.is_idle or view.location != "device" or view.id in self._evicted:
            return False
        if self._host_room is not None:
            if self._host_room < view.live:
                return False
            self._host_room -= view.live
        self._evicted[view.id] = None
        self.coming += view.room
        if not view.dirty:
            self.free += view.room
        return True

    def fetch(self, view: SessionView) -> bool:
        """Whether the session comes: there is room for it now that nobody before it was promised."""
        if view.room > min(self.free, self.coming):
            return False
        self.free -= view.room
        self.coming -= view.room
        self._fetched[view.id] = None
        return True

    def frees_now(self, view: SessionView) -> bool:
        """Whether the session goes by this decision, and its room is free at once."""
        return view.id in self._evicted and not view.dirty

    def promise(self, view: SessionView) -> None:
        """Room that will be free is this session's."""
        self.coming -= view.room

    def ask_again(self, at_ns: int) -> None:
        """The policy is asked at this time at the latest."""
        at_ns = max(at_ns, self.situation.now_ns + 1)
        self._ask_again = at_ns if self._ask_again is None else min(self._ask_again, at_ns)

    def decision(self) -> Decision:
        """What has been decided."""
        return Decision(evict=tuple(self._evicted), fetch=tuple(self._fetched), ask_again_ns=self._ask_again)


def needed_on_host(situation: Situation) -> list[SessionView]:
    """Sessions whose clients wait while their bytes are on the host, longest first."""
    waiting = [(view.needed_since_ns, view.id, view) for view in situation.sessions if is_missed(view)]
    return [view for *_, view in sorted(waiting, key=lambda row: row[:2])]


def is_missed(view: SessionView) -> bool:
    """Whether its client waits while its bytes are on the host."""
    return view.needed_since_ns is not None and view.location == "host"


def idle_on_device(situation: Situation) -> list[SessionView]:
    """Sessions that could be evicted, in the order of their ids."""
    return [view for view in situation.sessions if view.is_idle and view.location == "device"]


def serve_needed(ledger: Ledger, victims: Iterable[SessionView]) -> bool:
    """Rooms for all needed sessions, by evicting victims in their order; whether all of them could be fetched.

    First come, first served: nobody is fetched into room that somebody waits for who came before, so that large
    sessions do not starve. Rooms of leaving sessions are promised in the same order.
    """
    remaining, is_complete = iter(victims), True
    for view in needed_on_host(ledger.situation):
        _make_room(ledger, view.room, remaining)
        if not (is_complete and ledger.fetch(view)):
            is_complete = False
            if ledger.coming < view.room:
                break
            ledger.promise(view)
    return is_complete


def _make_room(ledger: Ledger, room: int, victims: Iterator[SessionView]) -> None:
    while ledger.coming < room:
        victim = next(victims, None)
        if victim is None:
            return
        ledger.evict(victim)


def evict_expired(ledger: Ledger) -> None:
    """Idle sessions go at the end of their time to live, counted from their last step, or from when they were expected.

    A copy is there by then, so that their room is free at once, before anybody needs it.
    """
    situation = ledger.situation
    for view in idle_on_device(situation):
        end = expiry_ns(situation, view)
        if end <= situation.now_ns:
            ledger.evict(view)
        else:
            ledger.ask_again(end)


def expiry_ns(situation: Situation, view: SessionView) -> int:
    """When the time to live of an idle session ends."""
    return max(view.last_op_ns, view.expected_ns or 0) + situation.time_to_live_ns
