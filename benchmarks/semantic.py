"""What a server gains by knowing what requests are: a chat of several turns, a stream of audio, a loop that asks.

    python -m benchmarks.semantic [--rounds 5] [--turns 6] [--chunks 6] [--tokens 16] [--checks 100000]

The same server, over the wire, used in three ways; rounds of all alternate in one run, times are medians, bytes those
of the server's ``/metrics``, both directions. All ways choose the best token, and their texts are compared.

- ``session``: one session for the whole chat or stream, with its hints (class, expected tokens); its state stays,
  tokens are chosen there, and only they travel.
- ``turn``: a session without hints for each turn or chunk: what was said before is read again, logits come back.
- ``blind``: nothing outlives a request: each token reads all before it again, and the source too; logits come back.

``chat`` is a GPT-2 of 4 layers, width 128, and the vocabulary of DialoGPT, 50,257; ``audio`` a T5 of 2 layers and width
128, whose chunks are 128 tokens of a codec, since the wire carries no features. Weights are random. ``checks``: a loop
on ``device="remote"`` that asks whether it is done again and again, of values that change a hundred times. ``others``:
further clients of the chat's model, beside the first: how long each takes to connect and to load it, and what the
server's weights take more.
"""

import argparse
import json
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any, Final

import torch

from benchmarks.load import Load, serving
from tmmu.client.connect import connect
from tmmu.client.remote_server import RemoteServer

KEY: Final = "key-of-the-benchmark"
WAYS: Final = ("session", "turn", "blind")
CHUNK: Final = 128
CHANGES: Final = 100
CHAT: Final[Mapping[str, Any]] = {
    "architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "n_embd": 128, "n_head": 4, "n_layer": 4,
    "vocab_size": 50257, "n_positions": 512, "eos_token_id": None,
}  # fmt: skip
AUDIO: Final[Mapping[str, Any]] = {
    "architectures": ["T5ForConditionalGeneration"], "model_type": "t5", "is_encoder_decoder": True, "d_model": 128,
    "d_kv": 32, "d_ff": 256, "num_heads": 4, "num_layers": 2, "vocab_size": 5000, "decoder_start_token_id": 0,
    "eos_token_id": None,
}  # fmt: skip


@dataclass(slots=True)
class Figures:
    """Of one way: seconds of each turn or chunk, bytes of each round, and the text of the last."""

    seconds: list[float] = field(default_factory=list)
    moved: list[float] = field(default_factory=list)
    text: list[int] = field(default_factory=list)


def best_token(logits: Any) -> int:
    """Of logits that come back."""
    return int(logits.tensor().argmax())


def chat(remote: RemoteServer, way: str, turns: int, tokens: int) -> Iterator[list[int]]:
    """The answers of a chat; each turn of the user has ``tokens`` tokens too."""
    prompts = [[(31 * turn + 7 * position) % 5000 for position in range(tokens)] for turn in range(turns)]
    if way == "session":
        with remote.session("tiny", qos="interactive", expected_tokens=2 * turns * tokens) as session:
            last: list[int] = []
            for prompt in prompts:
                answer = list(session.generate([*last, *prompt], tokens, stop=()))
                last = answer[-1:]  # the last token of a text is not in the state
                yield answer
        return
    history: list[int] = []
    for prompt in prompts:
        history += prompt
        answer = [*(turn_tokens if way == "turn" else blind_tokens)(remote, history, tokens)]
        history += answer
        yield answer


def turn_tokens(remote: RemoteServer, history: list[int], tokens: int) -> Iterator[int]:
    """A session that reads the whole chat, and a row of logits for each token."""
    with remote.session("tiny") as session:
        token = best_token(session.prefill(history))
        yield token
        for _ in range(tokens - 1):
            token = best_token(session.decode(token))
            yield token


def blind_tokens(remote: RemoteServer, history: list[int], tokens: int) -> Iterator[int]:
    """All is read for each token."""
    text = list(history)
    for _ in range(tokens):
        with remote.session("tiny") as session:
            text.append(best_token(session.prefill(text)))
        yield text[-1]


def audio(remote: RemoteServer, way: str, chunks: int, tokens: int) -> Iterator[list[int]]:
    """What is said in each chunk of a stream."""
    sources = [[(17 * chunk + 3 * position) % 5000 for position in range(CHUNK)] for chunk in range(chunks)]
    if way == "session":
        with remote.session("tiny", qos="realtime", source=CHUNK, expected_tokens=tokens + 1) as session:
            for source in sources:
                session.encode(source)
                yield list(session.generate(None, tokens, stop=()))
        return
    for source in sources:
        text = [0]
        if way == "turn":
            with remote.session("tiny", source=CHUNK) as session:
                session.encode(source)
                text.append(best_token(session.prefill(text)))
                while len(text) <= tokens:
                    text.append(best_token(session.decode(text[-1])))
        while len(text) <= tokens:
            with remote.session("tiny", source=CHUNK) as session:
                session.encode(source)
                text.append(best_token(session.prefill(text)))
        yield text[1:]


def measure(load: Load, run_way: Callable[[str], Iterator[list[int]]], rounds: int) -> dict[str, Figures]:
    """Rounds of all ways; the first of each plans its steps, and is not counted."""
    figures = {way: Figures() for way in WAYS}
    for number in range(rounds + 1):
        for way in WAYS if number % 2 else WAYS[::-1]:
            before, found = moved_bytes(load), figures[way]
            text, seconds, begin = list[int](), list[float](), perf_counter()
            for part in run_way(way):
                seconds.append(perf_counter() - begin)
                text += part
                begin = perf_counter()
            if number:
                found.seconds += seconds
                found.moved.append(moved_bytes(load) - before)
                found.text = text
    return figures


def moved_bytes(load: Load) -> float:
    """Over the wire so far, both ways."""
    return load.metric("tmmu_wire_bytes_total")


def count_checks(remote: RemoteServer, checks: int) -> dict[str, float]:
    """A loop whose condition is asked ``checks`` times, of values that change ``CHANGES`` times."""
    device = remote.open_device()
    with torch.no_grad():
        value = torch.ones(1000, device="remote")
        before, begin, asked = device.counts.requests, perf_counter(), 0
        for _ in range(CHANGES):
            value = value + 1
            for _ in range(checks // CHANGES):
                asked += 1
                if bool(value.sum() > 1e9):
                    raise RuntimeError("the loop was done too early")
        result = {"asked": asked, "requests": device.counts.requests - before, "seconds": perf_counter() - begin}
    device.close()
    return result


def load_again(address: str, load: Load, clients: int) -> dict[str, Any]:
    """Clients that come one after the other and stay, each with a ghost of the model that is there."""
    seconds: dict[str, list[float]] = {"connect": [], "load": []}
    before = load.metric("tmmu_segment_used_bytes", 'segment="text"')
    with ExitStack() as others:
        for _ in range(clients):
            begin = perf_counter()
            remote = others.enter_context(connect(address, key=KEY))
            remote.models()
            connected = perf_counter()
            remote.load("tiny")
            seconds["connect"].append(connected - begin)
            seconds["load"].append(perf_counter() - connected)
        after = load.metric("tmmu_segment_used_bytes", 'segment="text"')
    return {"seconds": seconds, "bytes": after - before, "weights": before}


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    """All parts, each on a server of its own."""
    result: dict[str, Any] = {}
    parts = (("chat", CHAT, chat, arguments.turns), ("audio", AUDIO, audio, arguments.chunks))
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        (root / "keys").write_text(f"{KEY}\n")
        for part, config, texts, count in parts:
            folder = root / part
            folder.mkdir()
            (folder / "config.json").write_text(json.dumps(config))
            if "decoder_start_token_id" in config:
                (folder / "generation_config.json").write_text('{"decoder_start_token_id": 0}')
            with serving(folder, root / "keys", part, ['tensor_bytes = "64MiB"']) as address:
                load = Load(address, {"anybody": KEY})
                with connect(address.partition("//")[2], key=KEY) as remote:

                    def run_way(way: str, texts: Any = texts, count: int = count) -> Iterator[list[int]]:
                        parts: Iterator[list[int]] = texts(remote, way, count, arguments.tokens)
                        return parts

                    result[part] = measure(load, run_way, arguments.rounds)
                    if part == "chat":
                        result["checks"] = count_checks(remote, arguments.checks)
                        result["others"] = load_again(address.partition("//")[2], load, 1 + arguments.rounds)
    return result


def report(result: Mapping[str, Any]) -> Iterator[str]:
    """The lines of the report."""
    for part in ("chat", "audio"):
        figures: Mapping[str, Figures] = result[part]
        first = figures["session"]
        same = {way: sum(a == b for a, b in zip(first.text, each.text, strict=True)) for way, each in figures.items()}
        yield f"\n| {part} | ms | times `session` | KiB a round | times `session` | tokens alike |"
        yield "| --- | --- | --- | --- | --- | --- |"
        for way, each in figures.items():
            seconds, moved = median(each.seconds), median(each.moved)
            slower, more = seconds / median(first.seconds), moved / median(first.moved)
            alike = f"{same[way]} of {len(first.text)}"
            yield f"| `{way}` | {1000 * seconds:.1f} | {slower:.1f} | {moved / 1024:.1f} | {more:.0f} | {alike} |"
    checks = result["checks"]
    ratio = checks["asked"] / max(checks["requests"], 1)
    yield f"\nchecks: {checks['asked']} asked, {checks['requests']} executed there: {ratio:.0f} times fewer"
    yield f"a check takes {1e6 * checks['seconds'] / checks['asked']:.0f} us, those that are executed too"
    others = result["others"]
    times = ", ".join(f"{way} {1000 * median(seconds):.2f} ms" for way, seconds in others["seconds"].items())
    yield f"others of a model of {others['weights']:.0f} bytes: {times}, {others['bytes']:.0f} bytes more there"


def main() -> None:
    """Runs and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--turns", type=int, default=6)
    parser.add_argument("--chunks", type=int, default=6)
    parser.add_argument("--tokens", type=int, default=16)
    parser.add_argument("--checks", type=int, default=100_000)
    for line in report(run(parser.parse_args())):
        print(line)


if __name__ == "__main__":
    main()
