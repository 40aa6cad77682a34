"""The history of waits."""

from tmmu.engine.policies.history import RECORDED_KINDS, RECORDED_WAITS, WaitHistory


def test_lengths_are_ascending_and_the_oldest_are_forgotten() -> None:
    history = WaitHistory()
    lengths = [(number * 37) % 101 for number in range(RECORDED_WAITS + 20)]
    for length in lengths:
        history.record("tool", length)
    assert history.view()["tool"] == tuple(sorted(lengths[20:]))


def test_kinds_are_bounded_and_the_one_used_longest_ago_goes() -> None:
    history = WaitHistory()
    for number in range(RECORDED_KINDS):
        history.record(str(number), 1)
    history.record("0", 2)
    history.record("new", 3)
    assert len(history.view()) == RECORDED_KINDS
    assert history.view()["0"] == (1, 2)
    assert "1" not in history.view()
