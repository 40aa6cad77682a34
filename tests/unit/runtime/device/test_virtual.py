"""Simulated time: one link, streams in order, waits for records."""

import pytest

from tests.unit.runtime.device.programs import HIGH, LOW, Script
from tmmu.errors import InvalidConfig
from tmmu.runtime.device.virtual import LinkSpeed, VirtualDevice


class TimedScript(Script):
    """A script on a link of four bytes a second plus one second for each copy."""

    def __init__(self) -> None:
        super().__init__(VirtualDevice(LinkSpeed(4, overhead_ns=10**9)))  # type: ignore[arg-type]

    def times(self) -> list[tuple[int, int]]:
        assert isinstance(self.device, VirtualDevice)
        return [(work.begin // 10**9, work.end // 10**9) for work in self.device.timeline().tasks]


def test_copy_takes_its_bytes_and_its_overhead() -> None:
    link = LinkSpeed(24 * 10**9, overhead_ns=10)
    assert link.copy_ns(24) == 11
    assert link.copy_ns(25) == 12
    assert LinkSpeed(10**9).copy_ns(7) == 7


def test_copies_share_one_link_in_the_order_of_issue() -> None:
    script = TimedScript()
    script.write(script.a)
    script.write(script.b, HIGH)
    assert script.times() == [(0, 2), (2, 4)]


def test_compute_runs_beside_a_copy() -> None:
    script = TimedScript()
    script.write(script.b)
    script.read(script.a, HIGH)
    assert script.times() == [(0, 2), (0, 0)]


def test_wait_delays_a_stream_until_the_record() -> None:
    script = TimedScript()
    script.write(script.b)
    script.order(script.b, script.a)
    script.read(script.a)
    assert [begin for begin, _ in script.times()] == [0, 2]


def test_host_that_waits_for_a_record_delays_every_stream_until_then() -> None:
    script = TimedScript()
    script.write(script.b)
    event = script.record(script.b)
    script.write(script.b)
    script.device.wait_on_host(event)
    script.read(script.a)
    assert [begin for begin, _ in script.times()] == [0, 2, 2]


def test_synchronize_delays_every_stream() -> None:
    script = TimedScript()
    script.write(script.b)
    script.device.synchronize()
    script.read(script.a, HIGH)
    assert [begin for begin, _ in script.times()] == [0, 2]


def test_timeline_totals_all_tasks_and_the_link() -> None:
    device = VirtualDevice(LinkSpeed(4))
    script = Script(device)  # type: ignore[arg-type]
    script.write(script.b)
    script.order(script.b, script.a)
    script.read(script.a)
    timeline = device.timeline()
    assert (timeline.total_ns, timeline.link_busy_ns) == (10**9 + 1, 10**9)
    assert not device.mismatches()


def test_reader_at_the_wrong_time_mismatches() -> None:
    device = VirtualDevice(LinkSpeed(4))
    script = Script(device)  # type: ignore[arg-type]
    script.write(script.b, LOW)
    script.read(script.a, LOW)
    assert device.mismatches()


@pytest.mark.parametrize("link", [LinkSpeed(0), LinkSpeed(-1), LinkSpeed(1, -1)])
def test_link_without_bandwidth_is_refused(link: LinkSpeed) -> None:
    with pytest.raises(InvalidConfig, match="a link of"):
        VirtualDevice(link)
