"""Cells: one line, no formula, and the text comes back."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.export.samples import HOSTILE
from tmmu.export.cells import cell_of

ESCAPE = re.compile(r"\\(?:x[0-9a-f]{2}|u[0-9a-f]{4}|U[0-9a-f]{8}|[nrt\\])")


def text_of(cell: str) -> str:
    """What ``docs/spec/export.md`` tells a reader to do."""
    plain = cell.removeprefix("'")
    return ESCAPE.sub(lambda match: match[0].encode("ascii").decode("unicode_escape"), plain)


@given(st.text(st.characters(exclude_categories=("Cs",))))
def test_text_comes_back_from_its_cell(text: str) -> None:
    assert text_of(cell_of(text)) == text


@given(st.text(st.sampled_from("=+-@'\t\r\n\\x0a1\u202e\x00＝"), max_size=6))  # noqa: RUF001
def test_cell_is_printable_and_no_formula(text: str) -> None:
    cell = cell_of(text)
    assert cell.isprintable()
    assert cell[:1] not in set("=+-@＝＋－＠\t\r")  # noqa: RUF001
    assert text_of(cell) == text


@pytest.mark.parametrize(
    ("text", "cell"),
    [("plain.weight", "plain.weight"), ("=1+1", "'=1+1"), ("'", "''"), ("a\nb", "a\\nb"), ("C:\\x", "C:\\\\x")],
)
def test_cell_is_as_documented(text: str, cell: str) -> None:
    assert cell_of(text) == cell


def test_hostile_texts_stay_whole() -> None:
    assert [text_of(cell_of(text)) for text in HOSTILE] == list(HOSTILE)
