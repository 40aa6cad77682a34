"""The cost of finding a plan beside making it: ``python -m benchmarks.cache`` from the repository root.

GPT-2 (124M parameters, 1,024 tokens). For each level: the median wall time, the mean processor time (which other
processes do not disturb), and how many times as long a cold plan takes. Lookups are of stored keys. The key of a step
is what a decode loop pays for one: its inputs are padded to a bucket and replace a part of the key. Commands are whole
processes, with the import of torch where there is one. Exits 1 unless both bounds hold.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import perf_counter, process_time

from tmmu.cache import Buckets, InputShape, PlanCache, inputs_part, pad_inputs
from tmmu.driver import PlanRequest, compile_model, key_of_graph
from tmmu.ir.graph import encode_graph
from tmmu.ir.plan import encode_plan
from tmmu.judge.check import judge
from tmmu.passes.capture.request import CaptureRequest, no_progress
from tmmu.planner.arenas import default_arenas
from tmmu.planner.token import token_from_seed

MODEL = Path(__file__).parents[1] / "examples" / "gpt2.py"
CONFIG = {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"]}
TABLE_US, DISK_MS = 20, 5
"""Bounds of a lookup in the table and on disk, at the median."""


@dataclass(frozen=True)
class Duration:
    """Seconds: median of the wall time, mean of the processor time, whose clock is coarse."""

    wall: float
    processor: float


def median_duration(step: Callable[[], object], times: int) -> Duration:
    wall, processor = [], []
    for _ in range(times):
        start, used = perf_counter(), process_time()
        step()
        wall.append(perf_counter() - start)
        processor.append(process_time() - used)
    return Duration(statistics.median(wall), statistics.fmean(processor))


def fail() -> None:
    raise AssertionError("the plan is there")


def measure_lookups(folder: Path) -> bool:
    """Prints one line for each level; returns whether both bounds hold."""
    capture = CaptureRequest(model=str(MODEL))
    request = PlanRequest(
        mode="inference", preset="inference", token=token_from_seed(0), arenas=default_arenas(alignment=256)
    )
    cold = median_duration(lambda: compile_model(capture, request, no_progress), 5)
    compiled = compile_model(capture, request, no_progress)
    graph_key = median_duration(lambda: key_of_graph(compiled.graph, request), 9)
    key = key_of_graph(compiled.graph, request)
    size = len(encode_graph(compiled.graph)) + len(encode_plan(compiled.plan))
    cache = PlanCache(folder)
    cache.get_or_make(key, lambda: (compiled.graph, compiled.plan))
    judge_plan = partial(judge, token=request.token)
    table = median_duration(lambda: cache.get_or_make(key, fail), 10_000)
    disk = median_duration(lambda: PlanCache(folder).get_or_make(key, fail), 200)
    reverified = median_duration(lambda: PlanCache(folder, reverify=True).get_or_make(key, fail, judge_plan), 200)
    buckets = Buckets(lengths=(128, 256, 512, 1024), axes={"ids": (1,)})
    ids = (InputShape(name="ids", dtype="int64", shape=(1, 200)),)
    step_key = median_duration(lambda: key.with_parts(inputs_part(pad_inputs(ids, buckets).inputs)).digest, 2_000)
    print(f"{len(compiled.graph.ops)} ops, {len(compiled.graph.buffers)} buffers, {size} bytes of graph and plan")
    print(f"{'':38} {'wall ms':>10} {'processor':>10}  cold / this")
    print(f"{'cold: build, trace, lower, plan, judge':38} {1e3 * cold.wall:10.4f} {1e3 * cold.processor:10.4f}")
    for name, taken in (
        ("key of a traced graph", graph_key),
        ("disk, judged again", reverified),
        ("disk", disk),
        ("key of a step", step_key),
        ("table", table),
    ):
        ratio = cold.wall / taken.wall
        print(f"{name:38} {1e3 * taken.wall:10.4f} {1e3 * taken.processor:10.4f} {ratio:12,.0f}")
    print(f"table {1e6 * table.wall:.2f} us of {TABLE_US} us; disk {1e3 * disk.wall:.2f} ms of {DISK_MS} ms")
    return table.wall <= TABLE_US / 1e6 and disk.wall <= DISK_MS / 1e3


def measure_commands(folder: Path) -> None:
    """Times whole processes with an empty cache, then with a filled one."""
    (folder / "gpt2").mkdir()
    (folder / "gpt2" / "config.json").write_text(json.dumps(CONFIG))
    env = os.environ | {"TMMU_CACHE_DIR": str(folder / "cache")}
    program = "from tmmu.cli.main import main; main()"
    for target in (str(MODEL), "hf:gpt2"):
        command = [sys.executable, "-c", program, "plan", target, "-o", "x.plan.cbor"]
        run = partial(subprocess.run, command, cwd=folder, env=env, check=True, stdout=subprocess.DEVNULL)
        cold, warm = median_duration(run, 1).wall, median_duration(run, 3).wall
        print(f"tmmu plan {Path(target).name:14} cold {cold:6.2f} s, warm {warm:6.2f} s: {cold / warm:.1f} times")


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        is_within_bounds = measure_lookups(Path(folder) / "plans")
        measure_commands(Path(folder))
    return 0 if is_within_bounds else 1


if __name__ == "__main__":
    sys.exit(main())
