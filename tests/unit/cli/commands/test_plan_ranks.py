"""One rank of a sharded model: what eager holds in a step is what torch's own tracker counts, to the byte."""

import gc
import importlib.util
import re
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from tests.unit.cli.graphs import Shell, small
from tmmu.codec.read import read_graph
from tmmu.passes.capture.ranks.process_group import process_group
from tmmu.passes.capture.record.recorder import Recorder
from tmmu.passes.operators.schema import written_arguments

distributed = pytest.importorskip("torch.distributed")
INPUT_BYTES = 4 * 32 * 8
SCRIPT = """
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.testing._internal.distributed.fake_pg import FakeStore

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.RMSNorm(64)
        self.gate, self.up, self.down = nn.Linear(64, 256), nn.Linear(64, 256), nn.Linear(256, 64)
    def forward(self, x):
        h = self.norm(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(128, 64)
        self.blocks = nn.ModuleList(Block() for _ in range(3))
        self.head = nn.Linear(64, 128)
    def forward(self, x):
        h = self.table(x)
        for block in self.blocks:
            h = block(h)
        return self.head(h)

COLUMNS = {"gate": ColwiseParallel(), "up": ColwiseParallel(), "down": RowwiseParallel()}

def meshes(*shape):
    if not dist.is_initialized():
        dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=8)
    return init_device_mesh("cpu", shape, mesh_dim_names=("outer", "inner")[-len(shape):])

def shard(net, mesh, **options):
    for block in net.blocks:
        fully_shard(block, mesh=mesh, **options)
    return fully_shard(net, mesh=mesh, **options)

def columns(net, mesh):
    for block in net.blocks:
        parallelize_module(block, mesh, COLUMNS)
    return net

def shards_of_columns(net, both):
    return shard(columns(net, both["inner"]), both["outer"])

def model():
    net = Net()
    return {make}
inputs = lambda: (torch.zeros(4, 32, dtype=torch.long),)
"""
REPLICAS = SCRIPT.replace(
    "def model",
    "def replicas(net, **options):\n    meshes(2)\n"
    "    return nn.parallel.DistributedDataParallel(net, bucket_cap_mb=0.05, **options)\n\ndef model",
)
"""The whole model on each rank, with its gradients reduced in buckets."""
HALF = "MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)"
KINDS = {
    "whole": "net",
    "columns": "columns(net, meshes(8))",
    "shards": "shard(net, meshes(8))",
    "shards in half precision": f"shard(net, meshes(8), mp_policy={HALF})",
    "shards of replicas": "shard(net, meshes(2, 4))",
    "shards of columns": "shards_of_columns(net, meshes(4, 2))",
    "shards that stay whole": "shard(net, meshes(2, 4), reshard_after_forward=False)",
}


@pytest.fixture
def _no_process_group() -> Iterator[None]:
    yield
    if distributed.is_initialized():
        distributed.destroy_process_group()


def load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def tracked_bytes(module: ModuleType, optimizer: str | None) -> int:
    """The peak of the third of three steps, weights and optimizer counted, by torch's own tracker."""
    from torch.distributed._tools.mem_tracker import MemTracker  # noqa: PLC0415 - it looks for a GPU

    warnings.simplefilter("ignore")  # of a view that is returned; pytest puts the filters back
    net, (x,) = module.model(), module.inputs()
    update = torch.optim.AdamW(net.parameters()) if optimizer else None

    def step() -> None:
        net(x).sum().backward()
        if update is not None:
            update.step()
        net.zero_grad()

    for _ in range(2):
        step()
    tracker = MemTracker()
    tracker.track_external(net, *([] if update is None else [update]))
    with tracker:
        step()
    (peaks,) = tracker.get_tracker_snapshot("peak").values()
    return int(peaks["Total"])


def plan_of(shell: Shell, make: str, *options: str) -> dict[str, Any]:
    """The record of ``tmmu plan`` of a training step."""
    Path("sharded.py").write_text(SCRIPT.replace("{make}", make))
    ran = shell.tmmu("plan", "sharded.py", "--mode", "backward", "--loss", "sum", "--device", "cpu", "--json", *options)
    assert ran.code == 0, ran.err
    return ran.record


@pytest.mark.usefixtures("_no_process_group")
@pytest.mark.parametrize("optimizer", ["adamw", pytest.param(None, marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", KINDS)
def test_a_rank_holds_what_torchs_tracker_counts(shell: Shell, kind: str, optimizer: str | None) -> None:
    record = plan_of(shell, KINDS[kind], *(["--optimizer", optimizer] if optimizer else []))
    assert record["eager"]["total_bytes"] - INPUT_BYTES == tracked_bytes(load(Path("sharded.py")), optimizer)


@pytest.mark.usefixtures("_no_process_group")
def test_what_a_rank_computes_of_whole_tensors_is_no_work(shell: Shell) -> None:
    """To know shapes, torch makes each kind of call once on tensors of the sizes of all ranks together."""
    record = plan_of(shell, KINDS["columns"])
    graph = read_graph(Path("sharded.ir.cbor"))
    assert graph.ops.target.count("_c10d_functional.all_reduce.default") == 3 * 3, (
        "of each block its result, and the gradients of both its columns"
    )
    assert max(graph.buffers.bytes) == 4 * 4 * 32 * 128, "the logits, and nothing of all ranks"
    assert record["eager"]["stack_bytes"] < 20 * max(graph.buffers.bytes)
    assert record["unplanned"] == ["device context", "library workspaces", "buffers of the communication library"]


@pytest.mark.usefixtures("_no_process_group")
def test_what_fsdp_makes_on_streams_of_its_own_is_known(shell: Shell) -> None:
    plan_of(shell, KINDS["shards"])
    eager = read_graph(Path("sharded.ir.cbor")).notes.eager
    assert eager is not None
    table = eager.storages
    makers = {stream: {table.maker[row] for row, other in enumerate(table.stream) if other == stream}
              for stream in set(table.stream)}  # fmt: skip
    others = [names for stream, names in makers.items() if stream]
    assert others == [{"aten.empty.memory_format"}] * 2, "gathered weights, and reduced gradients"
    plan_of(shell, KINDS["columns"])
    eager = read_graph(Path("sharded.ir.cbor")).notes.eager
    assert eager is not None
    assert eager.storages.stream == ()


@pytest.mark.usefixtures("_no_process_group")
def test_a_trace_is_gone_when_the_next_is_done(shell: Shell) -> None:
    """A view in a weight holds the tensor under it, where the garbage collector does not look, and that its maker."""
    counts = []
    for _ in range(4):
        plan_of(shell, KINDS["shards"])
        counts.append(recorders())
    assert counts[3] == counts[1], "those of the last trace"


def recorders() -> int:
    """Recorders that are not garbage."""
    gc.collect()
    return sum(type(found) is Recorder for found in gc.get_objects())


UNEVEN = SCRIPT.replace("64, 256", "64, 257").replace("256, 64", "257, 64").replace("128", "130")
"""Of 8 shards the last is smaller, and FSDP2 pads it."""


@pytest.mark.usefixtures("_no_process_group")
def test_ranks_with_unlike_shards_are_kinds_and_each_holds_what_torchs_tracker_counts(shell: Shell) -> None:
    Path("uneven.py").write_text(UNEVEN.replace("{make}", KINDS["shards"]))
    options = ("--mode", "backward", "--loss", "sum", "--optimizer", "adamw", "--device", "cpu")
    ran = shell.tmmu("plan", "uneven.py", *options, "--world", 8, "--report", "kinds.html", "--json")
    assert ran.code == 0, ran.err
    page = Path("kinds.html").read_text(encoding="utf-8")
    assert re.findall("<h2><bdi>(.*?)</bdi></h2>", page) == ["uneven, ranks 0-6", "uneven, ranks 7"]
    ranks = ran.record["ranks"]
    assert [kind["text"] for kind in ranks["kinds"]] == ["0-6", "7"]
    assert (ranks["world"], ranks["rank"], ranks["reads"]) == (8, 0, [])
    assert ran.record["model"] == "uneven, rank 0 of 8"
    assert ran.record["eager"]["total_bytes"] == ranks["kinds"][0]["eager"] > ranks["kinds"][1]["eager"]
    assert not distributed.is_initialized()
    for kind in ranks["kinds"]:
        with process_group(8, kind["rank"]):
            assert kind["eager"] - INPUT_BYTES == tracked_bytes(load(Path("uneven.py")), "adamw")


STEP = """
net = model()
optimizer = torch.optim.AdamW(net.parameters())
def step(x):
    net(x).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.mark.usefixtures("_no_process_group")
def test_a_step_of_sharded_weights_leaves_none_of_them_gathered(shell: Shell) -> None:
    """FSDP2 keeps the storages of whole weights from step to step, without bytes between two of them."""
    text = UNEVEN.replace("{make}", KINDS["shards"]).replace("(torch.zeros(4, 32, dtype=torch.long),)", "X")
    Path("loop.py").write_text(text.replace("def model", "X = torch.zeros(4, 32, dtype=torch.long)\ndef model") + STEP)
    ran = shell.tmmu("plan", "loop.py:step", "--device", "cpu", "--world", 8, "--rank", "last", "--json")
    assert ran.code == 0, ran.err
    assert ran.record["first_step"]["growth"] == 0
    nameless = [name for name in read_graph(Path("loop.step.ir.cbor")).notes.buffers if name.startswith("constant_")]
    assert nameless == [], "the optimizer's states are found again in another load of the file"
    Path("uneven.py").write_text(UNEVEN.replace("{make}", KINDS["shards"]))
    with process_group(8, 7):
        tracked = tracked_bytes(load(Path("uneven.py")), "adamw")
    assert ran.record["eager"]["total_bytes"] - INPUT_BYTES == tracked


@pytest.mark.usefixtures("_no_process_group")
def test_a_mesh_of_gpus_is_planned_where_there_is_none(shell: Shell) -> None:
    """Beside a model that is moved to the GPU, where the name of the CPU would mean the host."""
    text = SCRIPT.replace('"cpu"', '"cuda"').replace("net = Net()", 'net = Net().to("cuda")')
    records = []
    for number, script in enumerate((SCRIPT, text)):
        Path(f"{number}.py").write_text(script.replace("{make}", KINDS["shards of columns"]))
        ran = shell.tmmu("plan", f"{number}.py", "--world", 8, "--rank", "last", "--no-cache", "--json")
        assert ran.code == 0, ran.err
        records.append(ran.record)
    assert records[0]["eager"]["total_bytes"] == records[1]["eager"]["total_bytes"]
    assert records[1]["model"] == "1, rank 7 of 8"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--rank", "3"), "--rank: only with --world"),
        (("--world", "8", "--rank", "8"), "rank 8 is none of 8"),
        (("--world", "8", "--rank", "middle"), "rank 'middle' is none of 8"),
        (("--world", "8", "--rank", ""), "rank '' is none of 8"),
        (("--world", "8", "--rank", "9" * 5000), "rank '9999999"),
        (("--world", "0"), "world 0 is not in 1..131072"),
        (("small.ir.cbor", "--world", "2"), "--world: only for a model.py"),
    ],
)
def test_ranks_that_are_none_are_refused(shell: Shell, options: tuple[str, ...], said: str) -> None:
    shell.graph(small())
    Path("net.py").write_text(SCRIPT.replace("{make}", "net"))
    ran = shell.tmmu("plan", *(options if ".cbor" in options[0] else ("net.py", *options)))
    assert ran.code == 2
    assert ran.err.startswith(f"tmmu: INVALID_CONFIG: {said}")


@pytest.mark.usefixtures("_no_process_group")
def test_a_program_whose_group_is_another_is_refused(shell: Shell) -> None:
    text = SCRIPT.replace("if not dist.is_initialized():", "if True:").replace("{make}", KINDS["columns"])
    Path("own.py").write_text(text)
    ran = shell.tmmu("plan", "own.py", "--world", 16, "--rank", 0)
    assert ran.code == 2
    assert "makes a process group of world_size 8, where world says 16" in ran.err


def test_a_collective_is_waited_for_before_its_result_is_read() -> None:
    tensor = torch.zeros(2)
    assert written_arguments(torch.ops._c10d_functional.wait_tensor.default, (tensor,), {}) == [tensor]
