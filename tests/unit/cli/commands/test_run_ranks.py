"""``tmmu run --world``: each rank is a process, runs inside its plan among the others, and has eager's bits."""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.unit.cli.commands.test_plan_ranks import KINDS, REPLICAS, SCRIPT, STEP, UNEVEN
from tests.unit.cli.graphs import Shell
from tests.unit.cli.test_rank_processes import await_that, is_gone
from tests.unit.passes.capture.ranks import test_rings
from tests.unit.passes.capture.ranks.test_pipelines import STAGES_OF, script_of
from tests.warm_server import WarmPython
from tmmu.cli import rank_processes
from tmmu.cli.commits import Checkout
from tmmu.cli.planning_process import command_line

pytest.importorskip("torch.distributed")
TRAINING = ("--mode", "backward", "--loss", "sum", "--optimizer", "adamw")
FAKE = '"fake", store=FakeStore(), rank=0, world_size=8'
ROOT = Path(__file__).parents[4]
OWN = SCRIPT.replace(FAKE, '"nccl"').replace('"cpu"', '"cuda"')
"""As it is written for GPUs: the ranks are of gloo and of the CPU all the same."""


@pytest.fixture(autouse=True)
def _warm_ranks(monkeypatch: pytest.MonkeyPatch, warm_python: WarmPython) -> None:
    """Ranks are processes that have imported all modules."""

    def warm_line(arguments: Sequence[str], checkout: Checkout | None) -> list[str]:
        return [str(warm_python.python()), *command_line(arguments, checkout)[1:]]

    monkeypatch.setattr(rank_processes, "command_line", warm_line)


def require_ran(shell: Shell, world: int, *options: object) -> None:
    """Every rank ran inside the plan that ``tmmu plan`` makes for it, with the bits of the model itself."""
    ran = shell.tmmu("run", "sharded.py", *options, "--world", world, "--check", "--json")
    assert ran.code == 0, ran.err
    assert ran.record["world"] == world
    for rank, record in enumerate(ran.record["ranks"]):
        assert (record["rank"], record["name"]) == (rank, f"sharded, rank {rank} of {world}")
        buckets = 1 if "replicas" in Path("sharded.py").read_text() and options else 0
        assert record["checked"] == record["same"] + buckets > 0 == record["near"]  # torch's own show theirs to nobody
        bytes_planned = {"stack_bytes": record["peak_bytes"]["stack"], "total_bytes": record["input_bytes"]}
        bytes_planned["total_bytes"] += sum(record["peak_bytes"].values())
        which = ("--world", world, "--rank", rank, "--device", "cpu", "--no-cache", "--json")
        assert shell.tmmu("plan", "sharded.py", *options, *which).record["planned"] == bytes_planned


def test_ranks_that_cut_columns_run_inside_their_plans(shell: Shell) -> None:
    Path("sharded.py").write_text(OWN.replace("{make}", "columns(net, meshes(2))"))
    require_ran(shell, 2)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "kind", "world"),
    [
        (OWN, "columns(net, meshes(2))", 2),
        (UNEVEN.replace(FAKE, '"gloo"').replace("257", "255"), "shard(net, meshes(2))", 2),
        (OWN, KINDS["shards in half precision"].replace("meshes(8)", "meshes(2)"), 2),
        (REPLICAS.replace(FAKE, '"gloo"'), "replicas(net)", 2),
        (OWN, "shards_of_columns(net, meshes(2, 2))", 4),
        (OWN, "shard(net, meshes(2, 2))", 4),
        (OWN, "shard(net, meshes(2, 2), reshard_after_forward=False)", 4),
    ],
    ids=[
        "columns",
        "unlike shards",
        "half precision",
        "replicas",
        "shards of columns",
        "shards of replicas",
        "stay whole",
    ],
)
def test_a_training_step_of_each_rank_has_the_bits_of_eager(shell: Shell, script: str, kind: str, world: int) -> None:
    Path("sharded.py").write_text(script.replace("{make}", kind))
    require_ran(shell, world, *TRAINING)


@pytest.mark.slow
def test_a_step_of_the_users_own_runs_on_each_rank(shell: Shell) -> None:
    text = OWN.replace("{make}", "shard(net, meshes(2))").replace("(torch.zeros(4, 32, dtype=torch.long),)", "X")
    Path("loop.py").write_text(text.replace("def model", "X = torch.zeros(4, 32, dtype=torch.long)\ndef model") + STEP)
    ran = shell.tmmu("run", "loop.py:step", "--world", 2, "--check", "--sanitize", "--json")
    assert ran.code == 0, ran.err
    for record in ran.record["ranks"]:
        assert record["checked"] == record["same"] > 150
        assert (record["near"], record["runs"]) == (0, 2)
        assert record["sanitized"] > 1000


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "world"),
    [
        pytest.param(script_of("Schedule1F1B"), 2, marks=pytest.mark.long),
        pytest.param(script_of("ScheduleInterleaved1F1B"), 2, marks=pytest.mark.long),
        pytest.param(script_of("Schedule1F1B"), 4, marks=pytest.mark.long),
        (script_of("ScheduleZBVZeroBubble"), 2),
        *(
            pytest.param(script_of("Schedule1F1B", **STAGES_OF[over]), 4, marks=pytest.mark.long)
            for over in ("shards", "columns", "replicas")
        ),
    ],
    ids=["1F1B", "interleaved", "four stages", "zero bubble", "of shards", "of columns", "of replicas"],
)
def test_the_stages_of_each_rank_have_the_bits_of_eager(shell: Shell, text: str, world: int) -> None:
    Path("pipe.py").write_text(text)
    ran = shell.tmmu("run", "pipe.py:step", "--mode", "step", "--world", world, "--check", "--json")
    assert ran.code == 0, ran.err
    for record in ran.record["ranks"]:
        assert record["checked"] == record["same"] > 20
        assert (record["near"], record["runs"]) == (0, 2)


@pytest.mark.slow
@pytest.mark.parametrize("rotate", [pytest.param("allgather", marks=pytest.mark.long), "alltoall"])
def test_the_parts_of_a_sequence_have_the_bits_of_eager(shell: Shell, rotate: str) -> None:
    """Torch has no attention of a ring on a CPU: its kernels are computed by NumPy."""
    head = f"import sys\nsys.path.insert(0, {str(ROOT)!r})\nfrom tests.ring_kernels import attention_of_gpu\n"
    text = test_rings.script_of(mesh={"cp": 2}, dtype="float32", rotate=rotate)
    Path("ring.py").write_text(head + text.replace("def step(", "@attention_of_gpu()\ndef step("))
    ran = shell.tmmu("run", "ring.py:step", "--mode", "step", "--world", 2, "--check", "--json")
    assert ran.code == 0, ran.err
    for record in ran.record["ranks"]:
        assert record["checked"] == record["same"] > 20
        assert (record["near"], record["runs"]) == (0, 2)


def test_a_rank_that_fails_ends_all_and_is_named(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rank_processes, "GRACE_SECONDS", 0)
    Path("bad.py").write_text(
        OWN.replace("{make}", "net").replace(
            "    net = Net()",
            "    meshes(2)\n    if dist.get_rank() == 1:\n        raise ValueError('not me')\n    net = Net()",
        )
    )
    ran = shell.tmmu("run", "bad.py", "--world", 2)
    assert ran.code == 2
    assert ran.out == ""
    assert ran.err.startswith("tmmu: CAPTURE_FAILED: rank 1: bad.py:")
    assert "ValueError: not me" in ran.err


@pytest.mark.skipif(sys.platform != "linux", reason="whether a process has ended is read from /proc")
@pytest.mark.usefixtures("shell")
def test_ranks_end_where_their_run_is_killed(warm_python: WarmPython) -> None:
    Path("slow.py").write_text(
        "import os, pathlib, time\ndef model():\n    pathlib.Path(f'{os.getpid()}.rank').touch()\n    time.sleep(600)\n"
        "def inputs():\n    return ()\n"
    )
    with subprocess.Popen([warm_python.tmmu(), "run", "slow.py", "--world", "2"]) as ran:
        try:
            await_that(lambda: len(list(Path().glob("*.rank"))) == 2)
        finally:
            ran.kill()
    ranks = [int(path.stem) for path in Path().glob("*.rank")]
    await_that(lambda: all(map(is_gone, ranks)))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--ring", "--budget", "1GiB"), "INVALID_CONFIG: --ring is for a model that is whole"),
        (("--bench",), "INVALID_CONFIG: --bench is for a model that is whole"),
        (("--weights", "w.safetensors"), "INVALID_CONFIG: --weights is for a model that is whole"),
        (("--device", "cuda"), "INVALID_CONFIG: ranks run on the CPU"),
        (("--world", "65"), "INVALID_CONFIG: 65 ranks are 65 processes of this machine, and 64 are run"),
        (("--world", "0"), "INVALID_CONFIG: world 0 is not in 1.."),
        (("--tp", "2"), "INVALID_CONFIG: --tp: only for an hf: model"),
    ],
)
def test_what_ranks_do_not_run_with_is_refused(shell: Shell, options: tuple[str, ...], said: str) -> None:
    Path("net.py").write_text(OWN.replace("{make}", "net"))
    world = () if "--world" in options or "--tp" in options else ("--world", "2")
    ran = shell.tmmu("run", "net.py", *world, *options)
    assert ran.code == 2
    assert ran.err.startswith(f"tmmu: {said}")


def test_a_process_that_was_started_as_another_number_of_ranks_is_refused(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("net.py").write_text(OWN.replace("{make}", "net"))
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "4")
    ran = shell.tmmu("run", "net.py", "--world", 2)
    assert ran.err.startswith("tmmu: INVALID_CONFIG: this process is rank 1 of 4, and the options say 2 ranks")
