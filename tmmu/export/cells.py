"""Texts as cells of a table that spreadsheets open: one line each, never a formula, and nothing is lost."""

from typing import Final

FORMULA_SIGNS: Final = frozenset("=+-@'＝＋－＠")  # noqa: RUF001 - full-width signs begin a formula too
"""First characters of what a spreadsheet computes, and the mark that keeps it from doing so."""


def cell_of(text: str) -> str:
    """``text`` on one line: unprintable characters and backslashes as Python's escapes, ``'`` before a formula."""
    escaped = "".join(map(_escape, text)) if not text.isprintable() or "\\" in text else text
    return f"'{escaped}" if escaped[:1] in FORMULA_SIGNS else escaped


def _escape(character: str) -> str:
    if character == "\\":
        return "\\\\"
    return character if character.isprintable() else character.encode("unicode_escape").decode("ascii")
