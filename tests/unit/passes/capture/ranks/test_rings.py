"""Ring attention over a sequence that ranks have parts of: bytes of a step, kinds of ranks, and what is refused."""

import gc
import importlib.util
import re
import sys
import warnings
from functools import partial
from math import prod
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass_type

from tests.eager.interceptor import Interceptor
from tests.eager.test_steps import total_levels
from tests.ring_kernels import attention_of_gpu
from tmmu.errors import CaptureFailed, UnsupportedOp
from tmmu.passes.capture.program import CapturedProgram
from tmmu.passes.capture.ranks.process_group import process_group
from tmmu.passes.capture.request import CaptureRequest
from tmmu.passes.capture.trace import capture
from tmmu.torch_private import RING_MODULE

pytest.importorskip(RING_MODULE)
FLASH = "aten._scaled_dot_product_flash_attention.default"
SLOW, LONG = pytest.mark.slow, (pytest.mark.slow, pytest.mark.long)
_SCRIPT = """
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.experimental import context_parallel
from torch.distributed.tensor.experimental import _attention as rings
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

WIDTH, HEADS, LENGTH, WORDS = 32, 2, 128, 96

class Norm(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))
    def forward(self, x):
        return self.weight * (x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6))

class Attention(nn.Module):
    def forward(self, query, key, value):
        return F.scaled_dot_product_attention(query, key, value, is_causal=CAUSAL)

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.before, self.after, self.attention = Norm(), Norm(), Attention()
        self.query, self.key, self.value, self.out = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))
        self.gate, self.up = (nn.Linear(WIDTH, 2 * WIDTH, bias=False) for _ in range(2))
        self.down = nn.Linear(2 * WIDTH, WIDTH, bias=False)
    def forward(self, x, cos, sin):
        y = self.before(x)
        query, key, value = (
            part(y).unflatten(-1, (-1, WIDTH // HEADS)).transpose(1, 2) for part in (self.query, self.key, self.value)
        )
        query, key = query * cos + query.roll(1, -1) * sin, key * cos + key.roll(1, -1) * sin
        x = x + self.out(self.attention(query, key, value).transpose(1, 2).flatten(-2))
        y = self.after(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.head = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WORDS, bias=False)
        self.blocks = nn.ModuleList(Block() for _ in range(1))
        angles = torch.outer(torch.arange(LENGTH), torch.arange(WIDTH // HEADS) / 7)
        self.register_buffer("cos", angles.cos().to(torch.DTYPE))
        self.register_buffer("sin", angles.sin().to(torch.DTYPE))
    def forward(self, ids, cos, sin):
        x = self.table(ids)
        for block in self.blocks:
            x = block(x, cos, sin)
        return self.head(x)

dist.init_process_group("nccl")
mesh = init_device_mesh("cpu", MESH, mesh_dim_names=NAMES)
ring = mesh["cp"]
torch.manual_seed(0)
net = Net().to(torch.DTYPE)
SPREAD
optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, foreach=False)

def train(ids, labels, cos, sin):
    loss = F.cross_entropy(net(ids, cos, sin).float().flatten(0, 1), labels.flatten())
    loss.backward()
    return loss.detach()

STEP

def inputs():
    return torch.randint(0, WORDS, (2, LENGTH)), torch.randint(0, WORDS, (2, LENGTH))
"""
CONTEXT = """
rings.set_rotate_method(ROTATE)

def step(ids, labels):
    buffers = [ids, labels, net.cos, net.sin]
    with context_parallel(ring, buffers=buffers, buffer_seq_dims=[1, 1, 0, 0], no_restore_buffers={ids, labels}):
        loss = train(ids, labels, net.cos, net.sin)
    optimizer.step()
    optimizer.zero_grad()
    return loss
"""
"""A block in which attention is a ring, and tensors are cut where they lie."""
PLAN = """
sdpa = rings._ContextParallel.AttentionType.SDPA
for block in net.blocks:
    parallelize_module(block.attention, ring, rings._ContextParallel(seq_dim=2, attention_type=sdpa))
balancer = rings._HeadTailLoadBalancer(LENGTH, ring.size(), "cpu")
rings.set_rotate_method(ROTATE)
rings._enable_context_parallel_dispatcher()

def step(ids, labels):
    parts = rings._context_parallel_shard(ring, [ids, labels, net.cos, net.sin], [1, 1, 0, 0], balancer)
    loss = train(*parts)
    optimizer.step()
    optimizer.zero_grad()
    return loss
"""
"""A style of the attention's module, and copies that are cut."""
SHARDS = "for block in net.blocks:\n    fully_shard(block, mesh=mesh)\nfully_shard(net, mesh=mesh)"
"""Weights are cut over all ranks that have a part of the sequence, and those that have other sequences."""
COLUMNS = """
for block in net.blocks:
    styles = {name: ColwiseParallel() for name in ("query", "key", "value", "gate", "up")}
    parallelize_module(block, mesh["tp"], styles | {name: RowwiseParallel() for name in ("out", "down")})
    fully_shard(block, mesh=mesh["dp", "cp"]._flatten())
fully_shard(net, mesh=mesh["dp", "cp"]._flatten())
"""


def script_of(
    step: str = CONTEXT,
    *,
    mesh: dict[str, int],
    spread: str = "",
    dtype: str = "bfloat16",
    rotate: str = "allgather",
    causal: bool = True,
    length: int = 128,
) -> str:
    """A training step of a small Llama whose sequence the ranks of the mesh's dimension ``cp`` have a part of each."""
    names = {
        "SPREAD": spread,
        "STEP": step,
        "ROTATE": repr(rotate),
        "MESH": repr(tuple(mesh.values())),
        "NAMES": repr(tuple(mesh)),
        "DTYPE": dtype,
        "CAUSAL": repr(causal),
    }
    text = re.sub(r"\b(SPREAD|STEP)\b", lambda found: names[found[0]], _SCRIPT)
    text = re.sub(rf"\b({'|'.join(names)})\b", lambda found: names[found[0]], text)
    return text.replace("LENGTH, WORDS = 32, 2, 128", f"LENGTH, WORDS = 32, 2, {length}")


def captured(folder: Path, text: str, *, rank: int = 0, world: int = 2) -> CapturedProgram:
    """The step of one rank."""
    (folder / "ring.py").write_text(text)
    return capture(
        CaptureRequest(model=f"{folder / 'ring.py'}:step", mode="step", world=world, rank=rank, device="cuda")
    )


class _LocalInterceptor(Interceptor):
    """Of distributed tensors the calls on what they wrap; what a call between ranks reads, it holds until the wait."""

    def __init__(self, before: Any) -> None:
        super().__init__(before, count=True)
        self._under_way: dict[int, Any] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(map(is_traceable_wrapper_subclass_type, types)):
            return NotImplemented
        if "_wrap_tensor" in str(func):  # in a handle, which has no memory
            return func(*args)
        has = partial(torch._C._dispatch_has_kernel_for_dispatch_key, func.name())
        if has("CompositeImplicitAutograd") and not has("CPU"):
            with self:  # below autograd composites arrive whole
                return func.decompose(*args, **(kwargs or {}))
        if str(func).startswith("_c10d_functional.wait"):
            self._under_way.pop(args[0].untyped_storage()._cdata, None)
        result = super().__torch_dispatch__(func, types, args, kwargs)
        if str(func).startswith("_c10d_functional.all_"):
            self._under_way[result.untyped_storage()._cdata] = args[0]
        return result


def load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def real_levels(path: Path, world: int, rank: int) -> list[int]:
    """Live bytes during each call of the third of three steps on real tensors, where nobody else is there."""
    gc.collect()
    gc.freeze()
    try:
        with warnings.catch_warnings(), process_group(world, rank), attention_of_gpu():
            warnings.simplefilter("ignore")
            module = load(path)
            for _ in range(2):
                module.step(*module.inputs())
            batch = module.inputs()
            gc.collect()
            before = [found for found in gc.get_objects() if issubclass(type(found), torch.Tensor)]
            local = [getattr(tensor, "_local_tensor", tensor) for tensor in before]
            interceptor = _LocalInterceptor(tensor for tensor in local if tensor.dtype is not torch.int32)
            del before, local
            gc.disable()
            with interceptor:
                module.step(*batch)
            return interceptor.live
    finally:
        gc.enable()
        gc.unfreeze()


BY_CASE = pytest.mark.parametrize(
    ("options", "rank"),
    [
        pytest.param({"mesh": {"cp": 2}}, 1, id="the second of two"),
        pytest.param({"mesh": {"cp": 4}, "rotate": "alltoall"}, 0, id="all to all, the first of four", marks=LONG),
        pytest.param({"mesh": {"cp": 4}, "rotate": "alltoall"}, 2, id="all to all, the third", marks=SLOW),
        pytest.param({"mesh": {"cp": 2}, "dtype": "float32"}, 0, id="single precision", marks=LONG),
        pytest.param({"mesh": {"cp": 2}, "step": PLAN}, 0, id="a style of the module", marks=SLOW),
        pytest.param({"mesh": {"cp": 4}, "length": 132}, 1, id="unbalanced, since 8 parts are unlike", marks=LONG),
    ],
)


@BY_CASE
def test_each_call_finds_what_a_real_one_finds(tmp_path: Path, options: dict[str, Any], rank: int) -> None:
    """Of the third step on real tensors, in a group of which nobody else is there, every live byte."""
    world = prod(options["mesh"].values())
    program = captured(tmp_path, script_of(**options), rank=rank, world=world)
    assert total_levels(program.eager) == real_levels(tmp_path / "ring.py", world, rank)
    assert program.rank_kinds is not None
    assert program.rank_kinds.kind_of == tuple(range(world)), "what a rank computes depends on its place"
    assert not program.rank_kinds.reads


def tracked_bytes(path: Path, world: int, rank: int) -> int:
    """The peak of the third of three steps, by torch's own tracker, which counts the batch too."""
    from torch.distributed._tools.mem_tracker import MemTracker  # noqa: PLC0415 - it looks for a GPU

    with warnings.catch_warnings(), process_group(world, rank), attention_of_gpu():
        warnings.simplefilter("ignore")
        module = load(path)
        for _ in range(2):
            module.step(*module.inputs())
        tracker, batch = MemTracker(), module.inputs()
        tracker.track_external(module.net, module.optimizer)
        with tracker:
            module.step(*batch)
        (peaks,) = tracker.get_tracker_snapshot("peak").values()
        return int(peaks["Total"])


@pytest.mark.parametrize(
    ("mesh", "spread", "kinds"),
    [
        pytest.param({"dp": 2, "cp": 2}, SHARDS, (0, 1, 0, 1), id="shards", marks=SLOW),
        pytest.param({"dp": 2, "cp": 2, "tp": 2}, COLUMNS, (0, 0, 1, 1) * 2, id="shards of columns", marks=LONG),
    ],
)
def test_spread_weights_have_the_bytes_of_torchs_tracker(
    tmp_path: Path, mesh: dict[str, int], spread: str, kinds: tuple[int, ...]
) -> None:
    world = prod(mesh.values())
    program = captured(tmp_path, script_of(mesh=mesh, spread=spread), rank=world - 1, world=world)
    assert max(total_levels(program.eager)) == tracked_bytes(tmp_path / "ring.py", world, world - 1)
    assert program.rank_kinds is not None
    assert program.rank_kinds.kind_of == kinds


def test_what_is_passed_on_is_there_while_the_first_part_is_computed(tmp_path: Path) -> None:
    program = captured(tmp_path, script_of(mesh={"cp": 2}))
    names = [str(node.target) for node in program.graph.nodes if node.op == "call_function"]
    sent = names.index("_c10d_functional.all_gather_into_tensor.default")
    computed, awaited = names.index(FLASH), names.index("_c10d_functional.wait_tensor.default")
    assert sent < computed < awaited


def test_ranks_do_the_same_where_nothing_is_masked(tmp_path: Path) -> None:
    text = script_of(mesh={"cp": 2}, causal=False).replace(
        "def train", "rings._cp_options.enable_load_balance = False\n\ndef train"
    )
    program = captured(tmp_path, text)
    assert program.rank_kinds is not None
    assert program.rank_kinds.kind_of == (0, 0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"length": 127}, r"ring\.py:\d+: a sequence of 127 is cut into 2 parts, one for each of 2 ranks"),
        ({"length": 126, "step": PLAN}, r"ring\.py:\d+: a sequence of 126 is cut into 4 parts, a head and a tail for"),
    ],
    ids=["parts", "heads and tails"],
)
def test_unlike_parts_are_refused(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(CaptureFailed, match=message):
        captured(tmp_path, script_of(mesh={"cp": 2}, **options))


def test_a_buffer_of_the_model_that_stays_cut_is_refused(tmp_path: Path) -> None:
    text = script_of(mesh={"cp": 2}).replace("={ids, labels}", "={ids, net.cos}")
    with pytest.raises(UnsupportedOp, match=r"ring\.py:\d+: aten.resize_.default changes where constant cos lies"):
        captured(tmp_path, text)


def test_settings_of_rings_are_as_before_a_trace(tmp_path: Path) -> None:
    captured(tmp_path, script_of(PLAN, mesh={"cp": 2}, rotate="alltoall"))
    rings = sys.modules[RING_MODULE]
    dispatcher = torch.distributed.tensor.DTensor._op_dispatcher
    assert dispatcher._custom_op_handlers is rings.existing_custom_ops
    assert rings._cp_options.rotate_method is rings._RotateMethod.ALL_GATHER
    assert rings._cp_options.enable_load_balance
    assert torch.nn.functional.scaled_dot_product_attention.__module__ != RING_MODULE
