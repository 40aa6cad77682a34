"""The GPU check of users' steps runs on the CPU too, with the few packages that it names alone."""

import json
import os
import subprocess
import sys

import pytest

from benchmarks import gpu_steps
from tests.eager.loops import LOOPS
from tests.runtime.test_gpu_check import ABSENT, ROOT


@pytest.mark.slow
def test_every_loop_has_eagers_bits_on_the_cpu() -> None:
    absent = tuple(name for name in ABSENT if name not in ("filelock", "networkx"))  # torch.compile takes them
    hide = f"import sys; sys.modules.update(dict.fromkeys({absent!r})); sys.argv = ['gpu_steps', *sys.argv[1:]]; "
    start = "import runpy; runpy.run_module('benchmarks.gpu_steps', run_name='__main__')"
    done = subprocess.run(
        [sys.executable, "-c", hide + start, "--device", "cpu", "--json"],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    rows = json.loads(done.stdout)["rows"]
    assert [row["name"] for row in rows] == list(LOOPS)
    assert all(row["checked"] == row["same"] > 0 for row in rows)


def test_row_of_a_step_that_cannot_run_has_its_fault() -> None:
    row = gpu_steps.row_of("foreach adamw", "meta")
    assert "meta" in row.fault
    assert "FAULT" in gpu_steps.table([row])[1]
