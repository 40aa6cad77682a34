"""Leases in a time that the test sets."""

import pytest

from tmmu.engine.leases import LeaseTable
from tmmu.errors import InvalidConfig


class Time:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_leases_expire_unless_they_are_renewed() -> None:
    time = Time()
    table = LeaseTable(time)
    table.grant("a", 10)
    table.grant("b", 5)
    table.renew("nobody")
    assert (table.seconds_left("a"), table.seconds_left("nobody")) == (10, None)
    time.now += 5
    assert table.expired_keys() == ("b",)
    table.renew("a")
    time.now += 9
    assert table.expired_keys() == ("b",)
    time.now += 1
    assert table.expired_keys() == ("b", "a")
    assert table.seconds_left("a") == 0
    table.end("b")
    table.end("b")
    assert table.expired_keys() == ("a",)


@pytest.mark.parametrize("seconds", [0, -1, float("inf"), float("nan"), 10**400, True, "1"])
def test_lease_is_a_number_of_seconds(seconds: object) -> None:
    with pytest.raises(InvalidConfig, match="a lease of"):
        LeaseTable(Time()).grant("a", seconds)  # type: ignore[arg-type]
