"""Text for a terminal, without control characters of the user's."""


def printable(text: str) -> str:
    """``text`` with unprintable characters, such as ESC, NUL or a line end, as their escapes in Python."""
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode("ascii")
        for character in text
    )
