"""Tokens of a model whose weights stream, beside its peers: ``python -m benchmarks.ring_generation [--rounds N]``.

Needs ``pip install '.[bench]'``. A Llama of 12 layers in an engine, prefill and decode over one ring of a quarter of
the weights; one run, one thread for computing. Per contestant: the least time of a token, over that of weights that
stay, bytes that were moved for each token and GB/s of them, and bytes of the device that weights take.

- ``cyclic``, ``double``: ours, a part resident, or double buffering for all layers; ``no prefetch``: the ablation.
- ``accelerate``: ``disk_offload`` to a folder, as a ``device_map`` of ``disk`` does, under transformers' ``generate``:
  each layer's weights are read from the folder's memory map before it runs. ``stay``: transformers with all of them.

All tokens must be those of transformers' ``generate``: exits 1 where one is not.
"""

import argparse
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

import torch

from benchmarks.generate import PROMPT, model_of
from tmmu.engine.capture.step import StepShape
from tmmu.engine.engine import Engine
from tmmu.engine.steps.planned_steps import PlannedStep
from tmmu.engine.steps.weight_stream import WeightStream

SHARE = 4
OURS = (("cyclic", "cyclic", True), ("double", "double", True), ("no prefetch", "cyclic", False))


@dataclass(frozen=True, slots=True, kw_only=True)
class Contestant:
    """``run`` generates so many tokens and returns them; ``moved``: bytes so far; ``resident``: on the device."""

    name: str
    run: Callable[[int], list[int]]
    moved: Callable[[], int]
    resident: int


class StreamingEngine(Engine):
    """An engine whose ring has a policy, and may not prefetch."""

    def __init__(self, model: Any, *, ring_policy: str, prefetch: bool, **options: Any) -> None:
        self._rule = {"policy": ring_policy, "prefetch": prefetch}
        super().__init__(model, **options)

    def _stream_of(self, largest: Mapping[Any, PlannedStep], capacity: int) -> WeightStream:
        planned = largest[next(shape for shape in largest if isinstance(shape, StepShape))]
        return WeightStream(
            planned.program.graph, planned.plan, capacity=capacity, device=torch.device("cpu"), **self._rule
        )


def session_tokens(engine: Engine, prompt: list[int], count: int) -> list[int]:
    with engine.open(len(prompt) + count) as session:
        return list(session.generate(prompt, count, stop=()))


def model_tokens(model: Any, prompt: list[int], count: int) -> list[int]:
    ids = torch.tensor([prompt])
    found = model.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=count, do_sample=False, eos_token_id=None,
        pad_token_id=0,
    )  # fmt: skip
    return found[0, len(prompt) :].tolist()  # type: ignore[no-any-return]


def contestants(width: int, prompt: list[int], longest: int, stack: ExitStack) -> Iterator[Contestant]:
    model = model_of("Llama", width)
    size = sum(parameter.numel() * parameter.itemsize for parameter in model.parameters())
    none = lambda: 0  # noqa: E731
    yield Contestant(name="stay", run=partial(model_tokens, model, prompt), moved=none, resident=size)
    options: dict[str, Any] = {"max_tokens": longest, "max_batch": 1, "max_sessions": 1}
    engine = stack.enter_context(Engine(model, **options))
    yield Contestant(name="engine", run=partial(session_tokens, engine, prompt), moved=none, resident=size)
    for name, policy, prefetch in OURS:
        engine = stack.enter_context(
            StreamingEngine(model, ring_policy=policy, prefetch=prefetch, ring=size // SHARE, **options)
        )
        stream = engine.stream
        assert stream is not None
        yield Contestant(
            name=name,
            run=partial(session_tokens, engine, prompt),
            moved=lambda stream=stream: stream.weights.figures["moved_bytes"] if stream.weights else 0,
            resident=stream.ring.bytes,
        )
    if find_spec("accelerate") is None:
        print("accelerate is not installed and left out: pip install '.[bench]'")
        return
    yield offloaded(model_of("Llama", width), prompt, Path(stack.enter_context(TemporaryDirectory())), size)


def offloaded(model: Any, prompt: list[int], folder: Path, size: int) -> Contestant:
    """Weights in a folder; each pass reads all of them, so moved bytes are counted by passes."""
    from accelerate import disk_offload  # noqa: PLC0415 - an extra

    disk_offload(model, folder, execution_device=torch.device("cpu"))
    passes = 0

    def count(*_: Any) -> None:
        nonlocal passes
        passes += 1

    model.model.layers[0].register_forward_pre_hook(count)
    return Contestant(
        name="accelerate", run=partial(model_tokens, model, prompt), moved=lambda: passes * size, resident=0
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--width", type=int, default=512)
    options = parser.parse_args()
    torch.set_num_threads(1)
    count = options.tokens
    prompt = torch.randint(1, 999, (PROMPT,), generator=torch.Generator().manual_seed(0)).tolist()
    with ExitStack() as stack:
        rows = list(contestants(options.width, prompt, PROMPT + count + 1, stack))
        least, moved, same = measure(rows, count, options.rounds)
        print(
            f"Llama, 12 layers, width {options.width}, {rows[0].resident / 1e6:.1f} MB, {count} tokens behind {PROMPT}"
        )
        print(f"{'':12}{'ms/token':>9}{'ratio':>7}{'MB/token':>10}{'GB/s':>7}{'weights MB':>12}  tokens")
        for row in rows:
            per = moved[row.name] / count
            print(
                f"{row.name:12}{least[row.name] * 1e3:9.2f}{least[row.name] / least['engine']:7.2f}"
                f"{per / 1e6:10.1f}{per / least[row.name] / 1e9:7.2f}{row.resident / 1e6:12.1f}  "
                f"{'equal' if same[row.name] else 'OTHERS'}"
            )
    return 0 if all(same.values()) else 1


def measure(
    rows: list[Contestant], count: int, rounds: int
) -> tuple[dict[str, float], dict[str, int], dict[str, bool]]:
    """Least seconds of a token behind the first, bytes moved for all of them, and whether all tokens are equal."""
    least: dict[str, float] = {}
    moved: dict[str, int] = {}
    same = dict.fromkeys((row.name for row in rows), True)
    expected = rows[0].run(count + 1)
    for number in range(rounds + 1):
        for row in rows:
            start = perf_counter()
            row.run(1)
            first, before = perf_counter() - start, row.moved()
            start = perf_counter()
            same[row.name] &= row.run(count + 1) == expected
            spent = perf_counter() - start - first
            moved[row.name] = (row.moved() - before) * count // (count + 1)
            if number:  # the first round binds
                least[row.name] = min(spent / count, least.get(row.name, spent))
    return least, moved, same


if __name__ == "__main__":
    sys.exit(main())
