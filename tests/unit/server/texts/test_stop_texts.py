"""Stop texts: whatever the pieces, the same text comes through, and no part of a stop text."""

from hypothesis import given
from hypothesis import strategies as st

from tmmu.server.texts.stop_texts import StopFilter

LETTERS = st.text("ab", max_size=12)


def expected_of(text: str, stops: list[str]) -> tuple[str, bool]:
    """By the definition: the text before the stop text that is whole first."""
    for end in range(len(text) + 1):
        whole = [stop for stop in stops if text[:end].endswith(stop)]
        if whole:
            return text[: end - max(map(len, whole))], True
    return text, False


@given(LETTERS, st.lists(st.text("ab", min_size=1, max_size=4), max_size=3))
def test_single_letters_give_the_text_before_the_first_stop_text(text: str, stops: list[str]) -> None:
    stop_filter = StopFilter(stops)
    pieces = [stop_filter.add(letter) for letter in text]
    expected, is_over = expected_of(text, stops)
    assert stop_filter.is_over == is_over
    assert "".join(pieces) + stop_filter.flush() == expected


@given(st.lists(LETTERS, max_size=6), st.lists(st.text("ab", min_size=1, max_size=4), max_size=3))
def test_pieces_of_any_length_give_the_same_text(pieces: list[str], stops: list[str]) -> None:
    stop_filter, out = StopFilter(stops), ""
    for piece in pieces:
        out += stop_filter.add(piece)
        assert not any(stop in out for stop in stops)
    out += stop_filter.flush()
    assert (out, stop_filter.is_over) == expected_of("".join(pieces), stops)


def test_only_what_may_begin_a_stop_text_is_kept_back() -> None:
    stop_filter = StopFilter(["END", "DONE"])
    assert [stop_filter.add(piece) for piece in ("wor", "d E", "N", "x", "DON", "E more")] == [
        "wor",
        "d ",
        "",
        "ENx",
        "",
        "",
    ]
    assert stop_filter.is_over
    assert stop_filter.add("x") + stop_filter.flush() == ""
