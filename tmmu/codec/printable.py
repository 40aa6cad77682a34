"""Text for a terminal: no control characters of the user's, columns that align."""

from collections.abc import Sequence


def printable(text: str) -> str:
    """``text`` with unprintable characters, such as ESC, NUL or a line end, as their escapes in Python."""
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode("ascii")
        for character in text
    )


def align_columns(justify: str, heading: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines of columns two blanks apart, each as wide as its widest cell; ``justify`` has one of ``<>`` per column."""
    lines = [heading, *([printable(cell) for cell in row] for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(heading))]
    return [
        "  ".join(f"{cell:{side}{width}}" for cell, side, width in zip(line, justify, widths, strict=True)).rstrip()
        for line in lines
    ]
