"""A step that pauses behind its 15th layer beside a whole one: what the cut costs, and what another's job moves.

    python -m benchmarks.pause [--rounds 7] [--width 256] [--only GPT2]

The third experiment of the source documents: layers 1 to 15, a value is copied out, another session's job runs, layers
16 to 24. A row is a step (one token, or a prompt of 128) of an architecture of ``benchmarks.run`` with 24 layers, and
the job of another session meanwhile. Steps alternate in one process; times are the least of the rounds. `cut` is a step
that is resumed at once, over a whole one; `first` the first pause and resume, which capture the pieces where no row
before has; `copy` the time to read the value; `overhead` that to save and restore bytes of the stack over that of a
whole step. Logits are compared bit for bit in each round.
"""

import argparse
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
import transformers

from benchmarks.run import gpt2, llama
from tmmu.engine.engine import Engine
from tmmu.engine.session import Session
from tmmu.runtime.execute.pieces import PausedRun

LAYERS, PAUSE_BEHIND = 24, 14
PROMPT, READ = 128, 129
SIZES = {"GPT2": (gpt2, "transformer.h"), "Llama": (llama, "model.layers")}


@dataclass(slots=True)
class Clock:
    """Seconds by what they were spent on, one number a round."""

    seconds: dict[str, list[float]] = field(default_factory=dict)

    @contextmanager
    def timing(self, name: str) -> Iterator[None]:
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds.setdefault(name, []).append(time.perf_counter() - start)

    def least(self, name: str) -> float:
        return min(self.seconds.get(name, [0.0]))

    def patched(self, method: str, name: str, count: str) -> None:
        """Has calls of a method of paused runs be timed, those that move something: their ``count`` of bytes grows."""
        original: Callable[..., Any] = getattr(PausedRun, method)

        def run(paused: PausedRun, *args: Any) -> Any:
            before, start = getattr(paused, count), time.perf_counter()
            original(paused, *args)
            if getattr(paused, count) > before:
                self.seconds.setdefault(name, []).append(time.perf_counter() - start)

        setattr(PausedRun, method, run)


class Bench:
    """One model, and sessions whose steps have one shape; ``read`` makes one step of a session."""

    def __init__(self, architecture: str, width: int) -> None:
        sizes, layers = SIZES[architecture]
        config = getattr(transformers, f"{architecture}Config")(**sizes(width, layers=LAYERS))
        torch.manual_seed(0)
        kind = "LMHeadModel" if architecture == "GPT2" else "ForCausalLM"
        model = getattr(transformers, f"{architecture}{kind}")(config).eval()
        self.engine = Engine(model, max_tokens=192, max_batch=1)
        self.module = f"{layers}.{PAUSE_BEHIND}"

    def reader(self, *, is_prompt: bool) -> Session:
        session = self.engine.open()
        if not is_prompt:
            session.prefill([1] * READ)
        return session

    def close(self, session: Session, *, is_prompt: bool) -> Session:
        """The session of the next round: a prompt needs an empty one."""
        if not is_prompt:
            return session
        session.close()
        return self.reader(is_prompt=True)


def measure(bench: Bench, clock: Clock, *, is_prompt: bool, is_job_prompt: bool, rounds: int) -> dict[str, float]:
    """The figures of one row; every session of the step reads the same tokens."""
    ids: Any = [3 + n % 90 for n in range(PROMPT)] if is_prompt else 3
    whole, cut, moved = (bench.reader(is_prompt=is_prompt) for _ in range(3))
    other = bench.reader(is_prompt=is_job_prompt)
    figures: dict[str, float] = {}
    for number in range(rounds + 2):
        if number in (0, 2):  # the first rounds bind and capture
            clock.seconds.clear()
        with clock.timing("whole"):
            expected = whole.prefill(ids) if is_prompt else whole.decode(ids)
        with clock.timing("cut"):
            found = cut.run_until(bench.module, ids).resume()
        if number == 0:
            figures["first"] = clock.seconds["cut"][0]
        paused = moved.run_until(bench.module, ids)
        figures["live"] = paused.live_bytes
        with clock.timing("copy"):
            paused.values[bench.module]
        _ = other.prefill([7] * PROMPT) if is_job_prompt else other.decode(7)
        figures["saved"] = paused.bytes_saved
        resumed = paused.resume()
        if not (found.equal(expected) and resumed.equal(expected)):
            raise SystemExit(f"{bench.module}: other bits than a whole step")
        whole, cut, moved = (bench.close(session, is_prompt=is_prompt) for session in (whole, cut, moved))
        other = bench.close(other, is_prompt=is_job_prompt)
    for session in (whole, cut, moved, other):
        session.close()
    return figures | {name: clock.least(name) for name in ("whole", "cut", "copy", "save", "restore")}


def line(name: str, figures: dict[str, float], stack: int) -> str:
    overhead = (figures["save"] + figures["restore"]) / figures["whole"]
    return (
        f"{name:26}{figures['whole'] * 1e3:9.2f}{figures['cut'] / figures['whole']:8.3f}{figures['first'] * 1e3:10.0f}"
        f"{figures['live'] / 1024:10.1f}{stack / 1024:10.1f}{figures['saved'] / 1024:10.1f}"
        f"{figures['save'] * 1e6:9.0f}{figures['restore'] * 1e6:11.0f}{figures['copy'] * 1e6:9.0f}{overhead:10.2%}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    clock = Clock()
    clock.patched("make_room", "save", "bytes_saved")
    clock.patched("_restore", "restore", "bytes_restored")
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, {LAYERS} layers, width {options.width}")
    print(
        f"{'step, then job':26}{'whole ms':>9}{'cut':>8}{'first ms':>10}{'live KiB':>10}{'stack KiB':>10}"
        f"{'saved KiB':>10}{'save us':>9}{'restore us':>11}{'copy us':>9}{'overhead':>10}"
    )
    for architecture in SIZES:
        if options.only not in ("", architecture):
            continue
        bench = Bench(architecture, options.width)
        with bench.engine:
            stack = bench.engine.usage["stack"].capacity
            for is_prompt, is_job_prompt in ((False, False), (False, True), (True, False), (True, True)):
                names = ["prompt" if kind else "token" for kind in (is_prompt, is_job_prompt)]
                figures = measure(bench, clock, is_prompt=is_prompt, is_job_prompt=is_job_prompt, rounds=options.rounds)
                print(line(f"{architecture} {names[0]}, {names[1]}", figures, stack), flush=True)


if __name__ == "__main__":
    main()
