"""Chat templates of folders."""

import json
from pathlib import Path
from typing import Any

import pytest

from tmmu.errors import InvalidConfig, InvalidRequest
from tmmu.server.texts.chat_template import ChatTemplate, read_chat_template

MESSAGES = [{"role": "user", "content": "hi"}]
PLAIN = "{{ bos_token }}{{ messages[0].content }}{% if add_generation_prompt %}>{% endif %}"


@pytest.mark.parametrize(
    "settings",
    [
        {"chat_template": PLAIN, "bos_token": "B"},
        {"chat_template": PLAIN, "bos_token": {"content": "B", "lstrip": False}},
        {
            "chat_template": [{"name": "tool", "template": "x"}, {"name": "default", "template": PLAIN}],
            "bos_token": "B",
        },
    ],
)
def test_template_is_rendered_with_the_special_tokens(tmp_path: Path, settings: dict[str, Any]) -> None:
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    template = read_chat_template(tmp_path)
    assert template is not None
    assert template.render(MESSAGES) == "Bhi>"


def test_file_of_its_own_goes_before_the_settings(tmp_path: Path) -> None:
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": "other", "bos_token": "B"}))
    (tmp_path / "chat_template.jinja").write_text(PLAIN)
    template = read_chat_template(tmp_path)
    assert template is not None
    assert template.render(MESSAGES) == "Bhi>"


def test_folder_without_one_has_none(tmp_path: Path) -> None:
    assert read_chat_template(tmp_path) is None
    (tmp_path / "tokenizer_config.json").write_text('{"chat_template": [{"name": "rag", "template": "x"}]}')
    assert read_chat_template(tmp_path) is None


@pytest.mark.parametrize("text", ["{", "[1]", "[" * 100000])
def test_settings_that_are_no_object_are_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "tokenizer_config.json").write_text(text)
    with pytest.raises(InvalidConfig, match="tokenizer_config"):
        read_chat_template(tmp_path)


@pytest.mark.parametrize(
    "source",
    ["{{ raise_exception('never') }}", "{{ messages[7].content }}", "{% for %}", "{{ ''.__class__.__mro__ }}",
     "{{ messages.append(1) }}", "{{ 1 / 0 }}"],
)  # fmt: skip
def test_template_that_refuses_or_reaches_out_is_the_requests_refusal(source: str) -> None:
    with pytest.raises(InvalidRequest, match="chat template refuses them"):
        ChatTemplate(source, {}).render(MESSAGES)
