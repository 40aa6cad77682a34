"""Folders of small models, as ``tmmu serve`` takes them: a GPT-2 that the repository makes itself."""

import json
from pathlib import Path
from typing import Final

from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from tmmu.engine.checkpoint import random_model

CONFIG: Final = {
    "architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "n_embd": 64, "n_layer": 2, "n_head": 4,
    "vocab_size": 256, "n_positions": 256, "bos_token_id": 255, "eos_token_id": 255,
}  # fmt: skip
TEMPLATE: Final = (
    "{% for message in messages %}"
    "{% if message.role == 'system' and loop.index0 %}{{ raise_exception('a system message comes first') }}{% endif %}"
    "{{ message.role }}: {{ message.content }}\n{% endfor %}assistant: "
)


def save_model(folder: Path, **changes: object) -> Path:
    """A folder with a configuration and random weights, always the same."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(CONFIG | changes))
    model = random_model(folder, 0)
    for name, weight in model.named_parameters():  # so that tokens depend on the prompt, and do not repeat
        if weight.dim() > 1 and "wte" not in name:
            weight.data.mul_(8)
    model.save_pretrained(folder)
    return folder


def save_tokenizer(folder: Path, template: str | None = TEMPLATE) -> Path:
    """A token for each byte, and a chat template."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={letter: i for i, letter in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(folder / "tokenizer.json"))
    if template is not None:
        (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": template, "eos_token": "E"}))
    return folder
