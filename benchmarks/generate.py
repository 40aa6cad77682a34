"""Tokens a second of an engine beside transformers' ``generate``: one process, alternating, medians of rounds.

    python -m benchmarks.generate [--rounds 5] [--tokens 48] [--no-compiled] [--only "GPT2 64"]

A row is an architecture of ``benchmarks.run``, 12 layers, at a width, and a number of texts that go on together.
`eager` is ``generate`` with a static cache and its model as it is, `compiled` with what transformers compiles by
itself; both take the texts as one batch of equal lengths, the engine as a session each. Prompts are read before the
clock starts, as the difference between a run of many tokens and a run of one. `switch` is a step of one row of 64
sessions drawn at random, over a step of always the same one.
"""

import argparse
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch
import transformers

from benchmarks.run import gpt2, llama
from tmmu.engine.engine import Engine

PROMPT = 32
SIZES = {"GPT2": gpt2, "Llama": llama}
SESSIONS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Seconds a token, one for each text of the batch at once; ``switch`` in parts of the same."""

    name: str
    engine: float
    eager: float
    compiled: float | None
    switch: float | None


def model_of(architecture: str, width: int) -> Any:
    config = getattr(transformers, f"{architecture}Config")(**SIZES[architecture](width))
    kind = "LMHeadModel" if architecture == "GPT2" else "ForCausalLM"
    torch.manual_seed(0)
    return getattr(transformers, f"{architecture}{kind}")(config).eval()


def generate_seconds(model: Any, ids: torch.Tensor, tokens: int, *, compiled: bool) -> float:
    """Seconds a token behind the first one, by transformers."""
    settings: dict[str, Any] = {
        "do_sample": False, "eos_token_id": None, "pad_token_id": 0, "cache_implementation": "static",
        "disable_compile": not compiled, "attention_mask": torch.ones_like(ids),
    }  # fmt: skip
    if compiled:  # on a CPU only where it is told to
        settings["compile_config"] = transformers.CompileConfig(fullgraph=False, mode="default")
        settings["compile_config"]._compile_all_devices = True
    spent = []
    for count in (1, tokens + 1):
        start = time.perf_counter()
        model.generate(ids, max_new_tokens=count, **settings)
        spent.append(time.perf_counter() - start)
    return (spent[1] - spent[0]) / tokens


def engine_seconds(engine: Engine, ids: torch.Tensor, tokens: int) -> float:
    """Seconds a token behind the first one, by the engine: a step decodes one token of each session."""
    sessions = [engine.open(PROMPT + tokens + 1) for _ in ids]
    found = [int(session.prefill(row).argmax()) for session, row in zip(sessions, ids, strict=True)]
    start = time.perf_counter()
    for _ in range(tokens):
        found = [int(logits.argmax()) for logits in engine.decode(sessions, found)]
    spent = time.perf_counter() - start
    for session in sessions:
        session.close()
    return spent / tokens


def switch_ratio(engine: Engine, steps: int) -> float:
    """A step of one of many sessions drawn at random, over a step of always the same: medians of alternating steps."""
    sessions = [engine.open(PROMPT + 32) for _ in range(SESSIONS)]
    for session in sessions:
        session.prefill([1] * 8)
        session.decode(1)
    draw = random.Random(0)
    times: dict[bool, list[float]] = {True: [], False: []}
    for number in range(steps):
        is_drawn = number % 2 == 0
        session = draw.choice(sessions) if is_drawn else sessions[0]
        if session.length >= session.capacity - 1:
            continue
        start = time.perf_counter()
        session.decode(1)
        times[is_drawn].append(time.perf_counter() - start)
    for session in sessions:
        session.close()
    return median(times[True]) / median(times[False])


def rows(options: argparse.Namespace) -> Iterator[Row]:
    for architecture in SIZES:
        for width in (64, 128, 256):
            if options.only and options.only != f"{architecture} {width}":
                continue
            model = model_of(architecture, width)
            with Engine(model, max_tokens=256, max_batch=8, budget="2GiB") as engine:
                for batch in (1, 8):
                    yield measure(model, engine, f"{architecture} {width} x{batch}", batch, options)


def measure(model: Any, engine: Engine, name: str, batch: int, options: argparse.Namespace) -> Row:
    ids = torch.randint(1, 999, (batch, PROMPT), generator=torch.Generator().manual_seed(0))
    sides: dict[str, Callable[[], float]] = {
        "engine": lambda: engine_seconds(engine, ids, options.tokens),
        "eager": lambda: generate_seconds(model, ids, options.tokens, compiled=False),
    }
    if options.compiled:
        sides["compiled"] = lambda: generate_seconds(model, ids, options.tokens, compiled=True)
    times: dict[str, list[float]] = {side: [] for side in sides}
    for number in range(options.rounds + 1):
        for side, run in sides.items():
            spent = run()
            if number:  # the first round binds and compiles
                times[side].append(spent)
    medians = {side: median(found) for side, found in times.items()}
    switch = switch_ratio(engine, 200) if batch == 1 else None
    return Row(
        name=name, engine=medians["engine"], eager=medians["eager"], compiled=medians.get("compiled"), switch=switch
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--no-compiled", dest="compiled", action="store_false")
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, transformers {transformers.__version__}")
    print(f"{'':16}{'engine ms':>10}{'eager ms':>10}{'compiled ms':>12}{'eager/e':>9}{'compiled/e':>11}{'switch':>8}")
    for row in rows(options):
        compiled = f"{row.compiled * 1e3:12.2f}" if row.compiled else f"{'':12}"
        ratio = f"{row.compiled / row.engine:11.2f}" if row.compiled else f"{'':11}"
        switch = f"{row.switch:8.3f}" if row.switch else ""
        print(
            f"{row.name:16}{row.engine * 1e3:10.2f}{row.eager * 1e3:10.2f}{compiled}"
            f"{row.eager / row.engine:9.2f}{ratio}{switch}",
            flush=True,
        )


if __name__ == "__main__":
    main()
