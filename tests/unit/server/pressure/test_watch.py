"""The watch in virtual time: what is done at each level, what is noted of classes, and that headroom follows use."""

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from tmmu.server.pressure import watch as module
from tmmu.server.pressure.budget_tuner import COLLECTED
from tmmu.server.pressure.watch import WINDOW_SECONDS, PressureWatch


@dataclass
class Room:
    """An engine of 100 bytes of room; sessions are (class, bytes, whether they have room)."""

    sessions_: list[tuple[str, int, bool]] = field(default_factory=list)
    calls: list[Any] = field(default_factory=list)

    @property
    def sessions(self) -> list[Any]:
        return [SimpleNamespace(terms=SimpleNamespace(qos=qos), arena_bytes=size, is_there=is_there)
                for qos, size, is_there in self.sessions_]  # fmt: skip

    @property
    def usage(self) -> dict[str, Any]:
        used = sum(size for _, size, is_there in self.sessions_ if is_there)
        return {"data": SimpleNamespace(used=used, capacity=100)}

    @property
    def waiting_sessions(self) -> int:
        return sum(not is_there for *_, is_there in self.sessions_)

    @property
    def room_state(self) -> Any:
        return tuple(self.sessions_)

    def is_resident(self, session: Any) -> bool:
        return bool(session.is_there)

    def waits_for_room(self, session: Any) -> bool:
        return not session.is_there

    def reclaim_expired(self) -> None:
        self.calls.append("reclaim")

    def evict_idle(self) -> None:
        self.calls.append("evict")

    def keep_room(self, headroom: list[float]) -> None:
        self.calls.append(headroom)


class Time:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def events(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    logged: list[Any] = []
    monkeypatch.setattr(module, "log_event", lambda event, **fields: logged.append((event, fields)))
    return logged


def watch_of(room: Room, time: Time, *, acts: bool = True, adapts: bool = False) -> PressureWatch:
    engine: Any = room
    return PressureWatch("a", engine, acts=acts, adapts=adapts, headroom=0.1, clock=time)


def test_each_level_does_what_the_table_says(events: list[Any]) -> None:
    room, time = Room(), Time()
    watch = watch_of(room, time)
    expected = [
        (50, [], set()),
        (80, ["reclaim"], set()),
        (95, ["reclaim", "evict"], {"batch"}),
        (100, ["reclaim", "evict"], {"batch", "interactive"}),
        (20, [], set()),
    ]
    for used, calls, refused in expected:
        room.sessions_, room.calls = [("batch", used, True)], []
        time.now += 15
        watch.note()
        assert room.calls == calls
        assert {qos for qos in ("realtime", "interactive", "batch") if watch.refuses(qos)} == refused  # type: ignore[arg-type]
        assert watch.recomputes == (used == 100)
    assert [(name, fields["pressure"], fields["recovered"]) for name, fields in events] == [
        ("pressure", "warning", None), ("pressure", "critical", None), ("pressure", "full", None),
        ("pressure", "normal", 45),
    ]  # fmt: skip


def test_news_is_whatever_has_changed_since_the_last_look(events: list[Any]) -> None:
    room = Room([("batch", 50, True)])
    watch = watch_of(room, Time())
    for sessions in ([("batch", 50, True)], [("batch", 50, False)], []):
        room.sessions_ = sessions
        assert watch.has_news
        watch.note()
        assert not watch.has_news
    assert [fields["pressure"] for _, fields in events] == ["full"]


def test_watch_that_does_not_act_refuses_nobody(events: list[Any]) -> None:
    room, time = Room([("batch", 60, True), ("realtime", 40, False)]), Time()
    watch = watch_of(room, time, acts=False)
    watch.note()
    assert events[0][1]["pressure"] == "full"
    assert room.calls == ["reclaim", "evict"]
    assert not watch.recomputes
    assert not any(watch.refuses(qos) for qos in ("realtime", "interactive", "batch"))  # type: ignore[arg-type]


@pytest.mark.parametrize("adapts", [False, True])
def test_headroom_follows_use_where_it_is_to(events: list[Any], adapts: bool) -> None:
    room, time = Room([("realtime", 30, True), ("batch", 40, True)]), Time()
    watch = watch_of(room, time, adapts=adapts)
    for _ in range(COLLECTED):
        watch.note()
        time.now += WINDOW_SECONDS / 2
        room.sessions_[0] = ("realtime", 20, True)  # the most of a window counts
        watch.note()
        room.sessions_[0] = ("realtime", 30, True)
        time.now += WINDOW_SECONDS / 2
    watch.note()
    assert watch.tuner.violations == {"realtime": COLLECTED, "interactive": 0}
    assert watch.tuner.suggest() == {"realtime": 330_000, "interactive": 20_000}
    assert room.calls == ([[0.123, 0.092]] if adapts else [])
    assert [name for name, _ in events] == (["budgets"] if adapts else [])
    assert watch.tuner.shifts == int(adapts)
    if adapts:
        assert events[0][1]["after"] == {"realtime": 123_000, "interactive": 92_000}


def test_class_that_waits_for_room_is_noted(events: list[Any]) -> None:
    room, time = Room([("interactive", 30, False)]), Time()
    watch = watch_of(room, time)
    watch.note()
    time.now += WINDOW_SECONDS
    watch.note()
    assert watch.tuner.violations == {"realtime": 0, "interactive": 1}
    assert events[0][1]["pressure"] == "full"


def test_each_window_has_its_own_use_and_waits(events: list[Any]) -> None:
    room, time = Room([("interactive", 30, False), ("realtime", 30, True)]), Time()
    watch = watch_of(room, time)
    for sessions in ([], [("realtime", 5, True)], []):
        watch.note()
        time.now += WINDOW_SECONDS
        room.sessions_ = sessions
    watch.note()
    assert watch.tuner.observations == 3
    assert watch.tuner.violations == {"realtime": 1, "interactive": 1}


def test_log_has_one_change_in_so_many_seconds_and_counts_the_others(events: list[Any]) -> None:
    room, time = Room(), Time()
    watch = watch_of(room, time)
    for _ in range(12):
        for used in (100, 0):
            time.now += 1
            room.sessions_ = [("batch", used, True)]
            watch.note()
    assert [fields["unlogged"] for _, fields in events] == [0, 9, 9]
    assert watch.gauge.events["full"] == 12
