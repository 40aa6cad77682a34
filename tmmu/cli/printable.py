"""Text for a terminal: what a user's file or exception says is shown, and never obeyed."""


def printable(text: str) -> str:
    """``text`` with every character that is no visible one, such as ESC, NUL or a line end, as its escape in Python."""
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode("ascii")
        for character in text
    )
