"""The chat template of a model's folder: messages as the text that the model was trained on."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from tmmu.codec.files import read_file
from tmmu.errors import InvalidConfig, InvalidRequest

TEMPLATE_FILE: Final = "chat_template.jinja"
CONFIG_FILE: Final = "tokenizer_config.json"
FILE_LIMIT: Final = 1 << 24
SPECIAL_TOKENS: Final = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


class ChatTemplate:
    """A template of Jinja, rendered in transformers' sandbox, with the names of the folder's special tokens."""

    def __init__(self, source: str, special_tokens: Mapping[str, str]) -> None:
        self._arguments: dict[str, Any] = {
            **special_tokens,
            "chat_template": source,
            "add_generation_prompt": True,
        }

    def render(self, messages: Sequence[Mapping[str, str]]) -> str:
        """The text behind which the assistant answers. ``INVALID_REQUEST`` where the template refuses the messages."""
        from transformers.utils.chat_template_utils import render_jinja_template  # noqa: PLC0415 - seconds to import

        try:
            rendered: Any = render_jinja_template([[dict(message) for message in messages]], **self._arguments)
        except Exception as error:  # a template may raise anything
            reason = " ".join(str(error).split())[:200]
            raise InvalidRequest(
                f"messages: the model's chat template refuses them: {reason}", fix="send messages that it takes"
            ) from error
        return str(rendered[0][0] if isinstance(rendered, tuple) else rendered[0])


def read_chat_template(folder: Path) -> ChatTemplate | None:
    """The template of a folder, ``None`` where it has none. ``INVALID_CONFIG`` for a broken file."""
    settings = _read_json(folder / CONFIG_FILE)
    path = folder / TEMPLATE_FILE
    source = (
        read_file(path, limit=FILE_LIMIT).decode() if path.is_file() else _default_of(settings.get("chat_template"))
    )
    if source is None:
        return None
    named = {name: _token_text(settings.get(name)) for name in SPECIAL_TOKENS}
    return ChatTemplate(source, {name: token for name, token in named.items() if token is not None})


def _read_json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        settings = json.loads(read_file(path, limit=FILE_LIMIT))
    except (ValueError, RecursionError) as error:
        raise InvalidConfig(f"{path}: no JSON: {str(error)[:100]}", fix="mend or remove it") from error
    if not isinstance(settings, dict):
        raise InvalidConfig(f"{path}: no object", fix="mend or remove it")
    return settings


def _default_of(template: Any) -> str | None:
    """A template, or of several named ones that which is called ``default``."""
    if isinstance(template, list):
        named = {entry.get("name"): entry.get("template") for entry in template if isinstance(entry, dict)}
        template = named.get("default")
    return template if isinstance(template, str) else None


def _token_text(token: Any) -> str | None:
    """The text of a special token, which may be an object with its ``content``."""
    content = token.get("content") if isinstance(token, dict) else token
    return content if isinstance(content, str) else None
