"""Time by the rules: one link, streams in order, waits for records."""

import pytest

from tests.unit.runtime.device.programs import HERE, THERE, Script
from tmmu.errors import InvalidConfig
from tmmu.runtime.device.virtual import LinkSpeed, VirtualDevice


class Timed(Script):
    """A script on a link of four bytes a second, each copy after one more."""

    def __init__(self) -> None:
        super().__init__(VirtualDevice(LinkSpeed(4, overhead_ns=10**9)))  # type: ignore[arg-type]

    def times(self) -> list[tuple[int, int]]:
        assert isinstance(self.device, VirtualDevice)
        return [(work.begin // 10**9, work.end // 10**9) for work in self.device.timeline().tasks]


def test_a_copy_takes_its_bytes_and_its_own_cost() -> None:
    link = LinkSpeed(24 * 10**9, overhead_ns=10)
    assert link.copy_ns(24) == 11
    assert link.copy_ns(25) == 12
    assert LinkSpeed(10**9).copy_ns(7) == 7


def test_copies_share_one_link_in_the_order_of_issue() -> None:
    script = Timed()
    script.write(script.a)
    script.write(script.b, THERE)
    assert script.times() == [(0, 2), (2, 4)]


def test_computing_goes_on_beside_a_copy() -> None:
    script = Timed()
    script.write(script.b)
    script.read(script.a, THERE)
    assert script.times() == [(0, 2), (0, 0)]


def test_a_wait_holds_a_stream_until_the_record() -> None:
    script = Timed()
    script.write(script.b)
    script.order(script.b, script.a)
    script.read(script.a)
    assert [begin for begin, _ in script.times()] == [0, 2]


def test_settling_holds_every_stream() -> None:
    script = Timed()
    script.write(script.b)
    script.device.synchronize()
    script.read(script.a, THERE)
    assert [begin for begin, _ in script.times()] == [0, 2]


def test_totals_are_of_the_whole_and_of_the_link() -> None:
    device = VirtualDevice(LinkSpeed(4))
    script = Script(device)  # type: ignore[arg-type]
    script.write(script.b)
    script.order(script.b, script.a)
    script.read(script.a)
    found = device.timeline()
    assert (found.total_ns, found.link_busy_ns) == (10**9 + 1, 10**9)
    assert not device.mismatches()


def test_a_reader_at_the_wrong_time_is_seen() -> None:
    device = VirtualDevice(LinkSpeed(4))
    script = Script(device)  # type: ignore[arg-type]
    script.write(script.b, HERE)
    script.read(script.a, HERE)
    assert device.mismatches()


@pytest.mark.parametrize("link", [LinkSpeed(0), LinkSpeed(-1), LinkSpeed(1, -1)])
def test_a_link_that_moves_nothing_is_refused(link: LinkSpeed) -> None:
    with pytest.raises(InvalidConfig, match="a link of"):
        VirtualDevice(link)
