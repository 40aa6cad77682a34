"""Texts as tokens and back, by the tokenizer of the model's own folder."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from tmmu.codec.files import read_file
from tmmu.errors import InvalidConfig

TOKENIZER_FILE: Final = "tokenizer.json"
_UNFINISHED: Final = "\ufffd"
"""What stands for bytes that are no whole character yet."""


class Text:
    """A tokenizer. ``INVALID_CONFIG`` for a folder without one, or with one that ``tokenizers`` cannot read."""

    def __init__(self, folder: Path) -> None:
        from tokenizers import Tokenizer  # noqa: PLC0415 - of the extra hf

        path = folder / TOKENIZER_FILE
        if not path.is_file():
            raise InvalidConfig(f"no {TOKENIZER_FILE} at {str(folder)!r}", fix="give the prompt as --prompt-ids")
        try:
            self._tokenizer: Any = Tokenizer.from_buffer(bytes(read_file(path)))
        except Exception as error:  # the library raises Exception itself
            message = " ".join(str(error).split())[:200]
            raise InvalidConfig(f"{path}: {message}", fix="give a tokenizer.json of the tokenizers library") from error

    def encode(self, text: str, *, is_whole: bool = True) -> list[int]:
        """The tokens of a prompt, with what the tokenizer puts around it; ``is_whole`` false: without that."""
        tokens: list[int] = self._tokenizer.encode(text, add_special_tokens=is_whole).ids
        return tokens

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of these tokens, without special ones."""
        text: str = self._tokenizer.decode(list(tokens), skip_special_tokens=True)
        return text


class TextStream:
    """The text of tokens that come one by one: ``add`` returns what is new and no longer changes.

    Each call decodes the tokens since the last two that let something out: what a token says depends on the one before
    it (a space, the bytes of a character), and not on earlier ones. So a text costs as many decoded tokens as it has,
    times a constant.
    """

    def __init__(self, text: Text) -> None:
        self._text = text
        self._tokens: list[int] = []
        """From ``_shown`` tokens on they are new; those before are context, which was let out."""
        self._shown = 0

    def add(self, token: int) -> str:
        """The characters that this token finishes."""
        self._tokens.append(token)
        new = self._new()
        if not new or new.endswith(_UNFINISHED):
            return ""
        del self._tokens[: self._shown]
        self._shown = len(self._tokens)
        return new

    def rest(self) -> str:
        """What was held back for characters that nothing finished."""
        new, self._shown = self._new(), len(self._tokens)
        return new

    def _new(self) -> str:
        """The text of the new tokens, behind that of their context."""
        return self._text.decode(self._tokens)[len(self._text.decode(self._tokens[: self._shown])) :]
