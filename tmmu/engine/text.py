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
    """The text of tokens that come one by one: ``add`` returns what is new and no longer changes."""

    def __init__(self, text: Text) -> None:
        self._text = text
        self._tokens: list[int] = []
        self._printed = 0

    def add(self, token: int) -> str:
        """The characters that this token finishes."""
        self._tokens.append(token)
        whole = self._text.decode(self._tokens)
        return "" if whole.endswith(_UNFINISHED) else self._new(whole)

    def rest(self) -> str:
        """What was held back for characters that nothing finished."""
        return self._new(self._text.decode(self._tokens))

    def _new(self, whole: str) -> str:
        new, self._printed = whole[self._printed :], len(whole)
        return new
