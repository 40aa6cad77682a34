"""The benchmark of chats and streams, small: all ways choose the same tokens, and one that knows them moves little."""

from argparse import Namespace

import pytest

from benchmarks.semantic import CHANGES, WAYS, report, run


@pytest.mark.slow
def test_ways_choose_the_same_tokens_and_sessions_move_little() -> None:
    result = run(Namespace(rounds=1, turns=2, chunks=2, tokens=3, checks=5 * CHANGES))
    for part in ("chat", "audio"):
        figures = result[part]
        texts = {way: figures[way].text for way in WAYS}
        assert [len(text) for text in texts.values()] == [6] * len(WAYS)
        assert texts["session"] == texts["turn"] == texts["blind"]
        assert 20 * figures["session"].moved[0] < figures["turn"].moved[0] < figures["blind"].moved[0]
    assert result["checks"]["asked"] == 5 * CHANGES
    assert result["checks"]["requests"] == CHANGES
    assert result["others"]["weights"] > 0
    assert result["others"]["bytes"] == 0
    assert [len(seconds) for seconds in result["others"]["seconds"].values()] == [2, 2]
    assert any("times fewer" in line for line in report(result))
