"""Two checkouts beside each other, alternating: ``python -m benchmarks.revisions --old DIR [--rounds 3]``.

Each row is a whole process of one command in either checkout, in one run on one machine: the median of its processor
seconds (user and system, children included) and of its wall-clock seconds, and the ratio old / new of both; above 1,
the new one is faster. Commands are those that both checkouts have. ``--new DIR`` is this checkout unless it is named.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 16384,
    "intermediate_size": 53248,
    "num_hidden_layers": 126,
    "num_attention_heads": 128,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "dtype": "bfloat16",
}
PROGRAM = "from tmmu.cli.main import main; main()"
TMMU = [sys.executable, "-c", PROGRAM]
COMMANDS = {
    "plan Llama 405B": [*TMMU, "plan", "hf:LLAMA", "--seq", "2048", "--no-cache", "-o", "x.plan.cbor"],
    "plan gpt2.py, a step": [
        *(*TMMU, "plan", "CHECKOUT/examples/gpt2.py", "--mode", "backward", "--optimizer", "adamw", "--no-cache"),
        *("-o", "x.plan.cbor"),
    ],
    "corpus: Whisper small": [sys.executable, "-m", "benchmarks.corpus", "--only", "Whisper"],
    "corpus: Mixtral": [sys.executable, "-m", "benchmarks.corpus", "--only", "Mixtral", "--mode", "backward"],
    "pack G_1": [*TMMU, "pack", "INTERVALS", "-o", "x.csv"],
    "run decode": [
        *(sys.executable, "-m", "benchmarks.run", "--no-inductor", "--only", "decode", "--rounds", "4"),
    ],
}


def seconds(command: list[str], checkout: Path, folder: str) -> tuple[float, float]:
    """Processor and wall-clock seconds of one run; its output is thrown away, its failure is ours."""
    in_checkout = command[1] == "-m"
    env = os.environ | {"PYTHONPATH": str(checkout), "HF_HUB_OFFLINE": "1"}
    words = [word.replace("CHECKOUT", str(checkout)).replace("LLAMA", f"{folder}/llama") for word in command]
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(
        words,
        cwd=checkout if in_checkout else folder,
        env=env,
        check=not in_checkout,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    after, wall = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter() - start
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, wall


def main() -> None:
    """Print a row for each command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--old", type=Path, required=True)
    parser.add_argument("--new", type=Path, default=Path(__file__).parents[1])
    parser.add_argument("--intervals", type=Path, help="a CSV for tmmu pack; without it that row is left out")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    print(f"{'':24} {'old cpu':>8} {'new cpu':>8} {'ratio':>6} {'old wall':>9} {'new wall':>9} {'ratio':>6}")
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "llama").mkdir()
        (Path(folder) / "llama" / "config.json").write_text(json.dumps(LLAMA))
        for name, words in COMMANDS.items():
            if options.only not in name or ("INTERVALS" in words and options.intervals is None):
                continue
            command = [word.replace("INTERVALS", str(options.intervals)) for word in words]
            runs = [
                (seconds(command, options.old.absolute(), folder), seconds(command, options.new.absolute(), folder))
                for _ in range(options.rounds)
            ]
            old, new = (tuple(median(run[side][kind] for run in runs) for kind in (0, 1)) for side in (0, 1))
            cells = (
                f"{old[0]:8.2f} {new[0]:8.2f} {old[0] / new[0]:6.2f} {old[1]:9.2f} {new[1]:9.2f} {old[1] / new[1]:6.2f}"
            )
            print(f"{name:24} {cells}", flush=True)


if __name__ == "__main__":
    main()
