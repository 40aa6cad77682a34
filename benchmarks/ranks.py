"""One rank of a large model: how long its plan takes, how much memory that needs, and what the rank needs.

    python -m benchmarks.ranks [--model 70B 405B] [--layout 8x8 1x512] [--sequence 8192] [--beside-torch]
    python -m benchmarks.ranks --model 70B --sweep 64 [--axis tp=1,2,4,8 batch=1,2,3,4,8 checkpoint] [--jobs 2]

Each row is a fresh process, `tmmu plan hf:PATH --tp T --fsdp F --mode backward --optimizer adamw --rank first`, timed
from start to the written plan, imports included. No weights and no GPU. A layout is `TPxFSDP`. `--beside-torch` adds
the seconds of processor time that torch's own code takes, and the ratio: forward and backward pass on torch's fake
tensors, where nothing is recorded (`benchmarks.rank_models.fake_step`).

With `--sweep N`, one sweep does what `tmmu plan --world N --sweep AXIS ... --budget 80GB --jobs J` does. Each row is
printed as it is planned: those that differ in their batch alone together. Seconds of processor time are of all its
processes.
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tmmu.cli.commands.plan import PlanCommandOptions, sweep_job
from tmmu.cli.options import CaptureOptions, PlanningOptions, RankOptions, TokenOptions
from tmmu.cli.output.sweep_report import SweepReport, fits
from tmmu.cli.sweep import run_sweep
from tmmu.rank_sweep import RefusedLayout

MODELS = {
    "70B": {"hidden_size": 8192, "intermediate_size": 28672, "num_attention_heads": 64, "num_hidden_layers": 80},
    "405B": {"hidden_size": 16384, "intermediate_size": 53248, "num_attention_heads": 128, "num_hidden_layers": 126},
}
COMMON = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "tie_word_embeddings": False,
    "dtype": "bfloat16",
}
LAYOUTS = ("8x1", "1x8", "8x8", "1x64", "8x64", "1x512")
AXES = ("tp=1,2,4,8", "batch=1,2,3,4,8", "checkpoint")
BUDGET = "80GB"

PLAN = """
import json, resource, sys
from tmmu.cli.main import main
try:
    main()
except SystemExit as stop:
    assert not stop.code, stop.code
usage = resource.getrusage(resource.RUSAGE_SELF)
print(json.dumps({"mib": usage.ru_maxrss / 1024, "cpu": usage.ru_utime + usage.ru_stime}))
"""


def folder_of(parent: Path, name: str) -> Path:
    """A new folder with the configuration of a model, and no weights."""
    folder = parent / f"llama-{name}"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(COMMON | MODELS[name]))
    return folder


def plan_of(folder: Path, layout: str, sequence: int) -> dict[str, Any]:
    """The record of one plan, with wall-clock seconds and the peak MiB of its process."""
    tp, fsdp = layout.split("x")
    options = ["--mode", "backward", "--optimizer", "adamw", "--seq", str(sequence), "--rank", "first", "--no-cache"]
    command = [sys.executable, "-c", PLAN, "plan", f"hf:{folder}", "--tp", tp, "--fsdp", fsdp, *options, "--json"]
    start = time.perf_counter()
    output = ["-o", str(folder / "rank.plan.cbor")]
    done = subprocess.run([*command, *output], capture_output=True, text=True, check=False)
    seconds = time.perf_counter() - start
    if done.returncode:
        sys.exit(f"{layout}: {done.stderr}")
    record, memory = map(json.loads, done.stdout.splitlines())
    return record | memory | {"wall": seconds}


def seconds_of_torch(folder: Path, layout: str, sequence: int) -> float:
    """Of processor time, of the same pass on torch's fake tensors."""
    command = [sys.executable, "-m", "benchmarks.rank_models.fake_step", str(folder), *layout.split("x"), str(sequence)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{layout}: {done.stderr}")
    seconds: float = json.loads(done.stdout.splitlines()[-1])["cpu"]
    return seconds


def sweep_of(folder: Path, world: int, axes: list[str], sequence: int, jobs: int | None) -> None:
    """Print a row for each layout as it is planned, and what all took."""
    job = sweep_job(
        f"hf:{folder}",
        CaptureOptions(mode="backward", optimizer="adamw", seq=sequence),
        PlanningOptions(no_cache=True),
        TokenOptions(),
        PlanCommandOptions(sweep=axes, budget=BUDGET, jobs=jobs),
        ranks=RankOptions(world=world),
    )
    base = job.request.base
    report = SweepReport(name=base.model.name, mode=base.plan.mode, device=base.capture.device, world=world,
                         budget=job.budget, reserve=job.reserve, rows=())  # fmt: skip
    head = "| tp | fsdp | batch | layers again | traced | as it is GiB | in the plan GiB | sent GiB | FLOPs T | fits |"
    print(f"{head} after s |\n|{' --- |' * 11}")
    start, count = time.perf_counter(), 0
    for row in run_sweep(job.request, jobs=job.jobs):
        count += 1
        layout = row.layout
        cells = [layout.tp, layout.fsdp, layout.batch, "yes" if layout.checkpoint else "no"]
        if isinstance(row, RefusedLayout):
            cells += ["", "refused:", row.error.code, "", "", ""]
        else:
            sizes = [f"{size / 2**30:.1f}" for size in (row.needed, row.planned, row.sent)]
            cells += ["no" if row.follows_from else "yes", *sizes, f"{row.flops / 1e12:.0f}", fits(row, report) or "no"]
        print(f"| {' | '.join(map(str, [*cells, f'{time.perf_counter() - start:.0f}']))} |", flush=True)
    used = [resource.getrusage(whose) for whose in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    processor = sum(usage.ru_utime + usage.ru_stime for usage in used) / 60
    peak = max(usage.ru_maxrss for usage in used) / 1024
    minutes = (time.perf_counter() - start) / 60
    print(f"{count} layouts: {minutes:.1f} min, {processor:.1f} min of CPU, peak of a process {peak:.0f} MiB")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", nargs="*", choices=MODELS, default=list(MODELS))
    parser.add_argument("--layout", nargs="*", default=LAYOUTS)
    parser.add_argument("--sequence", type=int, default=8192)
    parser.add_argument("--beside-torch", action="store_true")
    parser.add_argument("--sweep", type=int, metavar="RANKS")
    parser.add_argument("--axis", nargs="*", default=AXES)
    parser.add_argument("--jobs", type=int, metavar="N")
    options = parser.parse_args()
    if options.sweep:
        for name in options.model:
            with tempfile.TemporaryDirectory() as text:
                sweep_of(folder_of(Path(text), name), options.sweep, list(options.axis), options.sequence, options.jobs)
        return
    columns = ["model", "tp x fsdp", "ranks", "ops", "whole s", "CPU s", "peak MiB", "rank as it is GiB"]
    columns += ["in the plan GiB", *["torch alone CPU s", "ratio"] * options.beside_torch]
    print(f"| {' | '.join(columns)} |\n|{' --- |' * len(columns)}")
    for name in options.model:
        with tempfile.TemporaryDirectory() as text:
            folder = folder_of(Path(text), name)
            for layout in options.layout:
                record = plan_of(folder, layout, options.sequence)
                eager, planned = record["eager"]["total_bytes"] / 2**30, record["planned"]["total_bytes"] / 2**30
                row = [name, layout, record["ranks"]["world"], record["ops"], f"{record['wall']:.0f}",
                       f"{record['cpu']:.0f}", f"{record['mib']:.0f}", f"{eager:.1f}", f"{planned:.1f}"]  # fmt: skip
                if options.beside_torch:
                    seconds = seconds_of_torch(folder, layout, options.sequence)
                    row += [f"{seconds:.0f}", f"{record['cpu'] / seconds:.2f}"]
                print(f"| {' | '.join(map(str, row))} |", flush=True)


if __name__ == "__main__":
    main()
