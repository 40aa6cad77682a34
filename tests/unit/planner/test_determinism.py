"""Plan bytes do not depend on the process: hash seed, working folder, number of threads."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
PROGRAM = """
import sys
sys.path.insert(0, sys.argv[1])
from tests.strategies import random_graph, seeded
from tmmu.ir.plan import MODES, PRESETS
from tmmu.planner.arenas import default_arenas
from tmmu.planner.prepare import prepare_memory
from tmmu.planner.token import token_from_seed
from tmmu.planner.trace import encode_trace
from blake3 import blake3
state = blake3()
for seed in range(6):
    graph = random_graph(seeded(seed), ops=40, joint=seed % 2 == 0, shuffled=seed % 3 == 0)
    for mode in MODES:
        for preset in PRESETS:
            token = token_from_seed(seed)
            plan = prepare_memory(graph, mode=mode, preset=preset, token=token, arenas=default_arenas())
            state.update(plan.digest + encode_trace(plan))
print(state.hexdigest())
"""


def digest(hash_seed: str, threads: str, folder: Path) -> str:
    env = {key: value for key, value in os.environ.items() if key not in ("PYTHONHASHSEED", "OMP_NUM_THREADS")}
    env |= {"PYTHONHASHSEED": hash_seed, "OMP_NUM_THREADS": threads, "OPENBLAS_NUM_THREADS": threads}
    command = [sys.executable, "-c", PROGRAM, str(ROOT)]
    return subprocess.run(command, cwd=folder, env=env, check=True, capture_output=True, text=True).stdout.strip()


def test_plans_have_the_same_bytes_in_every_process(tmp_path: Path) -> None:
    base = digest("0", "1", ROOT)
    assert len(base) == 64
    assert digest("1", "4", tmp_path) == base
    assert digest("4242", "2", ROOT / "tests") == base
