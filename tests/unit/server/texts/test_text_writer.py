"""The text of tokens, as it is let out."""

from pathlib import Path

from tests.server.folders import save_tokenizer
from tmmu.engine.text import Text
from tmmu.server.texts.text_writer import TextWriter


def written(writer: TextWriter, tokens: list[int]) -> tuple[list[str], str, bool]:
    pieces = [writer.add(token) for token in tokens]
    return pieces, writer.flush(), writer.is_over


def test_tokens_without_a_tokenizer_are_numbers_up_to_the_end() -> None:
    writer = TextWriter(None, ends=frozenset({9}), stops=())
    assert written(writer, [3, 14, 9]) == (["3", " 14", ""], "", True)
    assert written(TextWriter(None, ends=frozenset(), stops=()), [3]) == (["3"], "", False)


def test_parts_of_characters_and_of_stop_texts_are_kept_back(tmp_path: Path) -> None:
    text = Text(save_tokenizer(tmp_path))
    tokens = text.encode("é, ende")
    writer = TextWriter(text, ends=frozenset(), stops=("end",))
    assert written(writer, tokens[:-1])[0][:4] == ["", "é", ",", " "]
    assert writer.is_over
    unfinished = TextWriter(text, ends=frozenset(), stops=("end",))
    assert written(unfinished, text.encode("x en")) == (["x", " ", "", ""], "en", False)
    cut = TextWriter(text, ends=frozenset(), stops=())
    assert written(cut, tokens[:1]) == ([""], "\ufffd", False)
