"""Quotas in virtual time: a minute's tokens at once, then as time goes; what was not computed comes back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tmmu.errors import QuotaExceeded
from tmmu.server.admission.quotas import QuotaTable


class Time:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_bucket_holds_a_minute_and_fills_as_time_goes() -> None:
    time = Time()
    table = QuotaTable(time)
    table.pay("a", 600, 600)
    with pytest.raises(QuotaExceeded) as refusal:
        table.pay("a", 600, 25)
    assert refusal.value.fields["retry_seconds"] == 3
    table.pay("b", 600, 600)
    table.pay("a", None, 10**9)
    time.now = 2.5
    table.pay("a", 600, 25)
    table.give_back("a", 600, 20)
    table.pay("a", 600, 20)
    time.now = 1e6
    with pytest.raises(QuotaExceeded) as refusal:
        table.pay("a", 600, 601)
    assert refusal.value.fields["retry_seconds"] == 0
    assert "smaller max_tokens" in refusal.value.fix
    table.give_back("a", 600, 5000)
    table.give_back("a", None, 5)
    table.pay("a", 600, 600)
    with pytest.raises(QuotaExceeded):
        table.pay("a", 600, 1)


@given(st.lists(st.tuples(st.integers(0, 90), st.integers(1, 300)), max_size=80))
def test_no_minute_and_nothing_saved_has_more_than_two_quotas(requests: list[tuple[int, int]]) -> None:
    time, granted = Time(), list[tuple[float, int]]()
    table = QuotaTable(time)
    for wait, tokens in requests:
        time.now += wait
        try:
            table.pay("a", 100, tokens)
        except QuotaExceeded:
            continue
        granted.append((time.now, tokens))
    for begin, _ in granted:
        assert sum(tokens for at, tokens in granted if begin <= at < begin + 60) <= 200
