"""``tmmu generate``: text and tokens as they come, what the run took, and refusals in one line."""

import json
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from tests.planned_steps import planned_once
from tests.unit.cli.graphs import Shell
from tmmu.engine.checkpoint import random_model
from tmmu.engine.text import Text, TextStream

LOGITS = 2048
"""Bytes of the logits of 500 words, padded."""
EXAMPLE = Path(__file__).parents[4] / "examples" / "tiny-gpt2" / "config.json"


@pytest.fixture(scope="module", autouse=True)
def _steps_planned_once() -> Iterator[None]:
    """Commands of these tests share the plans of their steps."""
    with planned_once():
        yield


@pytest.fixture
def folder(shell: Shell) -> Path:
    path = Path("model")
    path.mkdir()
    shutil.copy(EXAMPLE, path)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={letter: i for i, letter in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(path / "tokenizer.json"))
    return path


def test_stored_weights_have_the_tokens_of_the_module(shell: Shell, folder: Path) -> None:
    random_model(folder, 3).save_pretrained("stored")
    sizes = ("--max-new-tokens", 5, "--temperature", 1, "--seed", 2)
    stored = shell.tmmu("generate", "hf:stored", "--prompt-ids", "1, 2,3", *sizes, "--json")
    drawn = shell.tmmu("generate", folder, "--prompt-ids", "1,2,3", *sizes, "--random-weights", 3)
    record = json.loads(stored.out)
    assert (stored.code, drawn.code) == (0, 0)
    assert drawn.out == ",".join(map(str, record["tokens"])) + "\n"
    assert record["prompt_tokens"] == 3
    assert (record["session_tokens"], record["session_bytes"]) == (64, 64 * 2 * 2 * 64 * 4 + LOGITS)
    assert "3 tokens read, 5 generated" in drawn.err


def test_prompt_is_text_where_the_folder_has_a_tokenizer(shell: Shell, folder: Path) -> None:
    sizes = ("--max-new-tokens", 6, "--temperature", 2, "--seed", 1, "--random-weights", 0)
    done = shell.tmmu("generate", folder, "--prompt", "memory", *sizes)
    record = json.loads(shell.tmmu("generate", folder, "--prompt", "memory", *sizes, "--json").out)
    assert record["prompt_tokens"] == len("memory")
    assert done.code == 0
    assert done.out.isascii() or done.out.isprintable() or "\n" in done.out
    assert "\x1b" not in done.out
    assert record["text"] == Text(folder).decode(record["tokens"])


def test_characters_of_several_tokens_come_whole(folder: Path) -> None:
    text = Text(folder)
    tokens = text.encode("aé漢b")
    stream = TextStream(text)
    pieces = [stream.add(token) for token in tokens]
    assert pieces == ["a", "", "é", "", "", "漢", "b"]
    cut = TextStream(text)
    assert [cut.add(token) for token in tokens[:2]] == ["a", ""]
    assert cut.rest() == "\ufffd"


@pytest.mark.parametrize("kind", ["bytes", "words", "pieces"])
def test_text_of_a_stream_is_that_of_all_tokens_and_costs_as_many(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    text, tokens = tokenizer_of(kind)
    decoded: list[int] = []
    decode = text.decode
    monkeypatch.setattr(text, "decode", lambda part: decoded.append(len(part)) or decode(part))
    stream = TextStream(text)
    pieces = [stream.add(token) for token in tokens]
    assert "".join(pieces) + stream.rest() == decode(tokens)
    assert sum(decoded) < 12 * len(tokens)


def tokenizer_of(kind: str) -> tuple[Text, list[int]]:
    """A tokenizer of bytes, of words (with ## inside of them), or of pieces with their spaces; 600 tokens of it."""
    text = Text.__new__(Text)
    generator = random.Random(0)
    if kind == "bytes":
        alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
        tokenizer = Tokenizer(models.BPE(vocab={letter: i for i, letter in enumerate(alphabet)}, merges=[]))
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
        text._tokenizer = tokenizer
        return text, text.encode("aé 漢b, 🎈" * 40)
    vocabulary = {"<s>": 0}
    names = ["un", "##able", "##s", "go", "."] if kind == "words" else ["▁un", "able", "s", "▁go", "▁", "."]
    vocabulary |= {name: number for number, name in enumerate(names, 1)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<s>"))
    tokenizer.decoder = decoders.WordPiece(cleanup=False) if kind == "words" else decoders.Metaspace()
    tokenizer.add_special_tokens(["<s>"])
    text._tokenizer = tokenizer
    return text, [generator.randrange(len(vocabulary)) for _ in range(600)]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--prompt-ids", "1", "--prompt", "x"), "give one of --prompt and --prompt-ids"),
        ((), "give one of --prompt and --prompt-ids"),
        (("--prompt-ids", "1,,2"), "no list of tokens"),
        (("--prompt-ids", "-1"), "no list of tokens"),
        (("--prompt-ids", "500", "--random-weights", 0), "no token of the model"),
        (
            ("--prompt-ids", "1", "--random-weights", 0, "--max-new-tokens", 300),
            "256 (give at most --max-new-tokens 255)",
        ),
        (("--prompt-ids", ",".join("1" * 256), "--random-weights", 0), "give a shorter prompt"),
        (("--prompt-ids", "1"), "model.safetensors"),
        (("--prompt-ids", "1"), "or give --random-weights 0"),
        (("--prompt-ids", "1", "--device", "cuda", "--random-weights", 0), "use --device cpu"),
        (("--prompt-ids", "1", "--device", "tpu"), "--device"),
        (("--prompt-ids", "1", "--top-p", "2", "--random-weights", 0), "top-p"),
        (("--prompt-ids", "1", "--budget", "much"), "--budget"),
        (("--prompt-ids", "1", "--random-weights", 1 << 64), "--random-weights"),
    ],
)
def test_bad_calls_are_one_line(shell: Shell, folder: Path, arguments: tuple[object, ...], words: str) -> None:
    done = shell.tmmu("generate", folder, *arguments)
    assert done.code == 2
    assert words in done.err
    assert done.err.count("\n") == 1


def test_budget_that_is_too_small_says_what_is_needed(shell: Shell, folder: Path) -> None:
    done = shell.tmmu("generate", folder, "--prompt-ids", "1", "--random-weights", 0, "--budget", "100KiB")
    assert done.code == 3
    assert "DEVICE_MEMORY" in done.err
    assert "(give a larger --budget, a smaller --max-new-tokens, or stream the weights with --ring)" in done.err
    done = shell.tmmu("generate", folder, "--prompt-ids", "1", "--random-weights", 0, "--budget", "900000TB")
    assert "a budget of 900000000000000000 bytes, and the device has" in done.err
    assert (done.code, "(give a smaller --budget)" in done.err) == (3, True), done.err
    done = shell.tmmu("generate", folder, "--prompt-ids", "1", "--random-weights", 0, "--ring", "1KiB")
    assert (done.code, "(give --ring " in done.err) == (3, True), done.err


def test_report_adds_up_to_the_budget(shell: Shell, folder: Path) -> None:
    arguments = ("--prompt-ids", "1", "--random-weights", 0, "--budget", "800KiB", "--max-new-tokens", 2, "--json")
    record = json.loads(shell.tmmu("generate", folder, *arguments).out)
    assert 0.8 * 800 * 1024 < sum(record[f"{name}_bytes"] for name in ("weight", "stack", "session")) <= 800 * 1024


@pytest.mark.parametrize("damage", [lambda data: data[: len(data) // 2], lambda data: b"\xff" * len(data)])
def test_damaged_weights_are_one_line(shell: Shell, folder: Path, damage: Callable[[bytes], bytes]) -> None:
    random_model(folder, 3).save_pretrained("stored")
    weights = Path("stored/model.safetensors")
    weights.write_bytes(damage(weights.read_bytes()))
    done = shell.tmmu("generate", "stored", "--prompt-ids", "1")
    assert (done.code, done.err.count("\n")) == (2, 1), done.err


def test_configuration_of_no_language_model_is_one_line(shell: Shell, folder: Path) -> None:
    for text in (
        '{"model_type": "vit"}',
        '{"model_type": "whisper"}',
        "{}",
        "[",
        '{"model_type": "gpt2", "n_head": 7}',
    ):
        (folder / "config.json").write_text(text)
        done = shell.tmmu("generate", folder, "--prompt-ids", "1", "--random-weights", 0, "--max-new-tokens", 2)
        assert (done.code, done.err.count("\n")) == (2, 1), (text, done.err)


def test_prompt_of_an_encoder_decoder_is_encoded(shell: Shell, folder: Path) -> None:
    sizes = {"d_model": 32, "d_kv": 8, "d_ff": 32, "num_layers": 1, "num_heads": 2, "vocab_size": 256}
    t5 = {"model_type": "t5", "decoder_start_token_id": 0} | sizes
    (folder / "config.json").write_text(json.dumps(t5))
    random_model(folder, 3).save_pretrained("stored")
    shutil.copy(folder / "tokenizer.json", "stored")
    done = shell.tmmu("generate", "stored", "--prompt", "memory", "--max-new-tokens", 4, "--json")
    record = json.loads(done.out)
    ids = torch.tensor([Text(folder).encode("memory")])
    expected = random_model(folder, 3).generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=4)[0].tolist()
    assert record["tokens"] == expected[1:]
    assert (record["prompt_tokens"], record["session_tokens"]) == (len("memory"), 64)
    assert record["session_bytes"] == (64 + 64) * 2 * 16 * 4 + 256 * 4
    (folder / "config.json").write_text(json.dumps(t5 | {"decoder_start_token_id": None}))
    refused = shell.tmmu("generate", folder, "--prompt-ids", "1", "--random-weights", 0)
    assert (refused.code, refused.err.count("\n")) == (2, 1), refused.err
    assert "decoder_start_token_id" in refused.err


def test_broken_tokenizer_and_missing_folder_are_one_line(shell: Shell, folder: Path) -> None:
    (folder / "tokenizer.json").write_text("{")
    for path in (folder, "nowhere"):
        done = shell.tmmu("generate", path, "--prompt", "x", "--random-weights", 0)
        assert done.code == 2
        assert done.err.count("\n") == 1


def test_ring_streams_the_weights_and_keeps_the_tokens(shell: Shell, folder: Path) -> None:
    sizes = ("--prompt-ids", "1,2,3", "--max-new-tokens", 4, "--random-weights", 0)
    record = json.loads(shell.tmmu("generate", folder, *sizes, "--ring", "400KB", "--json").out)
    done = shell.tmmu("generate", folder, *sizes)
    assert done.out == ",".join(map(str, record["tokens"])) + "\n"
    ring = record["ring"]
    assert record["weight_bytes"] <= 400_000 < ring["host_bytes"]
    assert ring["passes"] == 4
    assert ring["moved_bytes"] >= 4 * ring["pass_bytes"] > 0
    small = shell.tmmu("generate", folder, *sizes, "--ring", "1KB")
    assert (small.code, small.out) == (3, "")
    assert "ARENA_TOO_SMALL" in small.err
    assert "give --ring " in small.err
