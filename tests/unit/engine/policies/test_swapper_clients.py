"""The swapper under random clients, steps and copies: what holds after each of their acts."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tmmu.engine.policies.swapper import SwapLimits, Swapper
from tmmu.engine.policies.table import POLICIES, SwapPolicy
from tmmu.engine.policies.views import NS_PER_SECOND as S
from tmmu.engine.policies.views import Decision, Situation


def everything_at_once(situation: Situation) -> Decision:
    """A policy that looks at no budget."""
    ids = tuple(view.id for view in situation.sessions)
    return Decision(evict=ids, fetch=ids)


RECKLESS = SwapPolicy(name="reckless", summary="evicts and fetches all", decide=everything_at_once)

ACTIONS = st.tuples(
    st.sampled_from(("open", "need", "wait", "write", "close", "expect", "chunk", "land", "decide", "decide")),
    st.integers(0, 7),
    st.integers(1, 20),
)


class Clients:
    """Random clients and a device of a few bytes, with what must hold after each of their acts."""

    def __init__(self, policy: SwapPolicy, host: int | None) -> None:
        self.swaps = Swapper(policy, SwapLimits(device=40, host=host, chunk=4, in_flight=8, bytes_per_second=10))
        self.flying: list[object] = []
        self.now = self.changed = 0
        self.log: list[object] = []

    def act(self, action: str, pick: int, size: int) -> None:
        self.now += size * S // 4
        swaps = self.swaps
        sessions = [view for view in swaps.views.values() if view.id not in swaps._closing]
        view = sessions[pick % len(sessions)] if sessions else None
        if action == "open" and len(sessions) < 8:
            swaps.open(size, self.now)
        elif action == "decide":
            self.log.append(swaps.decide(self.now))
        elif action == "chunk":
            self.issue()
        elif action == "land":
            self.land()
        elif view is not None:
            self.act_on(action, view.id, size)
        self.check()

    def act_on(self, action: str, session: int, size: int) -> None:
        swaps, view = self.swaps, self.swaps.views[session]
        if action == "need":
            swaps.need(session, self.now)
        elif action == "wait":
            swaps.begin_wait(
                session, self.now, kind=str(size % 3), expected_ns=self.now + size * S if size % 2 else None
            )
        elif action == "expect":
            swaps.expect(session, self.now + size * S)
        elif action == "close":
            swaps.close(session)
        elif swaps.can_run(session):
            live = min(view.room, view.live + size)
            changed = min(size, view.live)
            self.changed += live - view.live + changed
            swaps.write(session, self.now, live=live, changed=changed)

    def issue(self) -> None:
        chunk = self.swaps.next_chunk()
        if chunk is not None:
            assert not self.swaps.can_run(chunk.key)
            self.flying.append(chunk)
            self.log.append(chunk)

    def land(self) -> None:
        if self.flying:
            self.swaps.landed(self.flying.pop(0))  # type: ignore[arg-type]

    def check(self) -> None:
        swaps, views = self.swaps, tuple(self.swaps.views.values())
        taken = sum(view.room for view in views if view.location != "host")
        assert taken == swaps.limits.device - swaps.free <= swaps.limits.device
        assert sum(view.copied for view in views) == swaps.copied_bytes
        assert swaps.limits.host is None or swaps.copied_bytes <= swaps.limits.host
        assert swaps.bytes_out <= self.changed or swaps.limits.host is not None
        assert all(0 <= view.copied <= view.live <= view.room for view in views)
        assert all(view.copied == view.live for view in views if view.location in ("host", "arriving"))
        assert all(view.landed == 0 or view.location == "arriving" for view in views)
        assert swaps.arbiter.in_flight <= swaps.limits.in_flight

    def settle(self) -> None:
        """Copies all that is asked for."""
        self.swaps.decide(self.now)
        for _ in range(1000):
            self.issue()
            if not self.flying:
                return
            self.land()
            self.swaps.decide(self.now)
            self.check()
        raise AssertionError("the copies never end")


def played(policy: SwapPolicy, host: int | None, rows: list[tuple[str, int, int]]) -> Clients:
    clients = Clients(policy, host)
    for row in rows:
        clients.act(*row)
    return clients


@pytest.mark.parametrize("policy", [*POLICIES, RECKLESS], ids=lambda policy: policy.name)
@settings(max_examples=15)
@given(rows=st.lists(ACTIONS, min_size=40, max_size=120), host=st.sampled_from((None, 0, 25, 60)))
def test_bytes_are_conserved_within_both_budgets(
    policy: SwapPolicy, rows: list[tuple[str, int, int]], host: int | None
) -> None:
    assert played(policy, host, rows).log == played(policy, host, rows).log


@pytest.mark.parametrize("policy", [row for row in POLICIES if row.name != "hold"], ids=lambda policy: policy.name)
@settings(max_examples=15)
@given(rows=st.lists(ACTIONS, min_size=30, max_size=80))
def test_everybody_runs_once_the_others_wait(policy: SwapPolicy, rows: list[tuple[str, int, int]]) -> None:
    """First come, first served: once those on the device have waited, the oldest request is always served next."""
    clients = played(policy, None, rows)
    swaps = clients.swaps
    while clients.flying:
        clients.land()
    for session in tuple(swaps.views):
        swaps.need(session, clients.now)
    clients.settle()
    waiting = sorted(swaps.views.values(), key=lambda view: (view.needed_since_ns, view.id))
    for session in [view.id for view in waiting if swaps.can_run(view.id)]:
        swaps.begin_wait(session, clients.now)
    for view in waiting:
        if not swaps.views[view.id].is_idle:
            clients.settle()
            assert swaps.can_run(view.id)
            swaps.begin_wait(view.id, clients.now)
