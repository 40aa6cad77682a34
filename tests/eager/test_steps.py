"""Steps of the user's: live bytes call by call, first and steady, are those of real runs; state is found by itself."""

import gc
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.eager.interceptor import Interceptor
from tests.eager.loops import HEAD, LOOPS, loop_text
from tests.eager.test_lifetimes import levels_that_differ, loaded
from tmmu.eager.peak import live_levels
from tmmu.errors import CaptureFailed, InvalidConfig
from tmmu.ir.lifetimes import EagerRun
from tmmu.judge.rules import check_graph
from tmmu.passes.capture.program import CapturedProgram
from tmmu.passes.capture.request import CaptureRequest
from tmmu.passes.capture.trace import capture
from tmmu.passes.pipeline import lower_program


def traced(folder: Path, text: str, *, device: str = "cpu", **options: Any) -> CapturedProgram:
    (folder / "train.py").write_text(text)
    return capture(CaptureRequest(model=f"{folder / 'train.py'}:step", mode="step", device=device, **options))


def total_levels(run: EagerRun | None) -> list[int]:
    """Bytes of all tensors during each call, those from before among them."""
    assert run is not None
    return [run.persistent_bytes + level for level in live_levels(run.storages, run.calls)]


def real_levels(path: Path) -> list[list[int]]:
    """The same of three runs of the step on real tensors: of what the file made, and what the runs make."""
    gc.collect()
    gc.freeze()  # what was there before is neither collected again nor among the objects
    try:
        file = loaded(path)
        batch = file.inputs()
        takes_parts = file.step.__code__.co_varnames[: file.step.__code__.co_argcount][-1] == "y"
        return [levels_of_run(file.step, batch if takes_parts else (batch,)) for _ in range(3)]
    finally:
        gc.unfreeze()


def levels_of_run(step: Callable[..., Any], arguments: tuple[Any, ...]) -> list[int]:
    gc.collect()
    before = [found for found in gc.get_objects() if issubclass(type(found), torch.Tensor)]
    interceptor = Interceptor(before, count=True)
    del before
    gc.disable()
    try:
        with interceptor:
            result = step(*arguments)
        del result
    finally:
        gc.enable()
    return interceptor.live


QUICK = frozenset({"accumulation and clipping", "mixed precision with a scaler", "two optimizers", "checkpointing"})
BY_LOOP = pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in LOOPS]
)


TracedLoop = Callable[[str], tuple[CapturedProgram, Path]]


@pytest.fixture(scope="module")
def traced_loop(tmp_path_factory: pytest.TempPathFactory) -> TracedLoop:
    """The program of a loop, traced once for the tests of this file, and its file."""

    @cache
    def trace_loop(name: str) -> tuple[CapturedProgram, Path]:
        folder = tmp_path_factory.mktemp("loop")
        return traced(folder, loop_text(name)), folder / "train.py"

    return trace_loop


@BY_LOOP
def test_first_and_steady_step_hold_what_real_ones_hold(traced_loop: TracedLoop, name: str) -> None:
    program, path = traced_loop(name)
    first, steady, again = real_levels(path)
    assert max(steady) == max(again)
    assert max(total_levels(program.first)) == max(first)
    assert max(total_levels(program.eager)) == max(steady)
    assert levels_that_differ(total_levels(program.eager)) == levels_that_differ(steady)


@BY_LOOP
def test_steady_step_is_a_legal_graph_whose_state_has_names(traced_loop: TracedLoop, name: str) -> None:
    graph = lower_program(traced_loop(name)[0]).graph
    assert check_graph(graph) == ()
    states = [n for n, role in zip(graph.notes.buffers, graph.buffers.role, strict=True) if role == "state"]
    assert states
    assert not [state for state in states if state.startswith("constant_")]


def test_stages_are_those_of_the_step(tmp_path: Path) -> None:
    program = traced(tmp_path, loop_text("accumulation and clipping"))
    nodes = [node for node in program.graph.nodes if "call" in node.meta]
    by_stage = {
        stage: [str(n.target) for n in nodes if n.meta["stage"] == stage] for stage in ("forward", "backward", "update")
    }
    assert by_stage["forward"].count("aten.addmm.default") == 8
    assert "aten.mm.default" in by_stage["backward"]
    assert any("addcdiv" in name for name in by_stage["update"])
    assert not any("addcdiv" in name for name in by_stage["forward"])


def test_constant_at_the_address_of_a_gradient_that_went_is_not_called_so(tmp_path: Path) -> None:
    text = HEAD + (
        "def step(batch):\n"
        "    for p in model.parameters():\n"
        "        p.grad = None\n"
        "    scales = [torch.tensor([1.0] * p.numel()) for p in model.parameters() for _ in range(8)]\n"
        "    (model(batch[0]).sum() * sum(scale.sum() for scale in scales)).backward()\n"
    )
    program = traced(tmp_path, text)
    assert not [storage.name for storage in program.storages if storage.name.startswith("grad.")]


def targets(program: CapturedProgram) -> set[str]:
    return {str(node.target) for node in program.graph.nodes if "call" in node.meta}


def test_optimizer_without_a_form_takes_lists_on_a_gpu_alone(tmp_path: Path) -> None:
    text = loop_text("default adamw and a schedule")
    assert not any("_foreach_add" in name for name in targets(traced(tmp_path, text)))
    assert any("_foreach_add" in name for name in targets(traced(tmp_path, text, device="cuda")))
    named = text.replace("lr=1e-3", "foreach=False")
    assert not any("_foreach_add" in name for name in targets(traced(tmp_path, named, device="cuda")))


def test_rows_of_one_hot_are_scattered_and_looked_at_on_a_cpu_alone(tmp_path: Path) -> None:
    text = loop_text("two optimizers")
    on_cpu, on_gpu = (targets(traced(tmp_path, text, device=device)) for device in ("cpu", "cuda"))
    assert "aten.scatter_.value" in on_cpu & on_gpu
    assert "aten.aminmax.default" in on_cpu - on_gpu


def test_what_a_list_keeps_grows_by_its_bytes(tmp_path: Path) -> None:
    text = HEAD + "kept = []\ndef step(batch):\n    with torch.no_grad():\n        kept.append(model(batch[0]))\n"
    assert traced(tmp_path, text).growth == 16 * 10 * 4
    assert traced(tmp_path, loop_text("last logits kept")).growth == 0


CHECKPOINTED_DROPOUT = (
    HEAD
    + """
from torch.utils.checkpoint import checkpoint

block = nn.Sequential(nn.Linear(32, 32), nn.Dropout(0.1))
opt = torch.optim.SGD(block.parameters(), lr=0.1)
kept = []
def step(batch):
    loss = checkpoint(block, batch[0], use_reentrant=False).square().mean()
    loss.backward()
    opt.step()
    opt.zero_grad()
    return loss.item()
"""
)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_generators_state_that_a_checkpoint_puts_back_is_nothing_left(tmp_path: Path, device: str) -> None:
    program = traced(tmp_path, CHECKPOINTED_DROPOUT, device=device)
    assert any("random_state" in str(node.target) for node in program.graph.nodes)
    assert program.growth == 0
    assert program.outputs == ()


def test_generators_state_that_a_list_keeps_is_left(tmp_path: Path) -> None:
    keeps = "    kept.append(torch.get_rng_state())\n    torch.set_rng_state(kept[-1].clone())\n"
    text = CHECKPOINTED_DROPOUT.replace("    return loss.item()\n", keeps)
    assert traced(tmp_path, text).growth == torch.get_rng_state().numel()


def test_step_that_changes_each_time_is_refused_by_its_line(tmp_path: Path) -> None:
    text = HEAD + (
        "runs = []\n"
        "def step(batch):\n"
        "    x = batch[0]\n"
        "    for _ in runs:\n"
        "        x = x + 1\n"
        "    runs.append(1)\n"
        "    return model(x)\n"
    )
    with pytest.raises(CaptureFailed, match=r"does otherwise each time: call \d+ is aten"):
        traced(tmp_path, text)


@pytest.mark.parametrize("call", ["checkpoint(block, x, use_reentrant=False)", "block(x)"])
def test_accumulation_by_a_counter_is_refused_by_a_line_and_with_what_to_plan(tmp_path: Path, call: str) -> None:
    counts = "    runs.append(1)\n    if len(runs) % 2 == 0:\n        opt.step()\n        opt.zero_grad()\n"
    text = CHECKPOINTED_DROPOUT.replace("checkpoint(block, batch[0], use_reentrant=False)", call)
    text = text.replace("    loss =", "    x = batch[0]\n    loss =").replace("kept = []", "runs = []")
    text = text.replace("    opt.step()\n    opt.zero_grad()\n", counts)
    line = text.splitlines().index("    loss.backward()") + 1
    with pytest.raises(CaptureFailed) as refused:
        traced(tmp_path, text)
    place = f"train.py:{line}"
    differs = rf"call \d+ is aten\.add_\.Tensor at {place}, and the next time aten\.detach\.default at {place}$"
    assert re.search(differs, refused.value.what)
    assert refused.value.fix is not None
    assert refused.value.fix.startswith("it called an optimizer's step 1 times, and the next time 0: plan one function")


def test_call_on_another_tensor_each_time_is_refused_as_that(tmp_path: Path) -> None:
    text = HEAD + (
        "twins = nn.ParameterList([torch.zeros(4), torch.ones(4)])\n"
        "order = [0, 1]\n"
        "def step(batch):\n"
        "    order.reverse()\n"
        "    twins[order[0]].data.add_(1)\n"
    )
    with pytest.raises(
        CaptureFailed, match=r"call \d+, aten\.detach\.default at train\.py:\d+, works on another tensor"
    ):
        traced(tmp_path, text)


@pytest.mark.parametrize(
    ("keeps", "differs"),
    [
        (
            "    if len(runs) % 2:\n        del hidden\n    batch[1] + 1\n    batch[1] + 2\n",
            r"the [\d,]+ bytes of {relu} stay until the step ends, and the next time go before call \d+ ",
        ),
        (
            "    kept[:] = [hidden] if len(runs) % 2 else []\n    batch[1] + 1\n",
            r"the result of {relu} is held after the step the next time alone ",
        ),
    ],
    ids=["in a local", "in a list"],
)
def test_tensor_that_is_kept_each_second_time_is_refused_by_its_line(tmp_path: Path, keeps: str, differs: str) -> None:
    begin = "runs, kept = [], []\ndef step(batch):\n    runs.append(1)\n    hidden = batch[0].relu()\n"
    text = HEAD + begin + keeps
    line = (HEAD + begin).count("\n")
    relu = rf"aten\.relu\.default at train\.py:{line}"
    with pytest.raises(CaptureFailed, match="holds otherwise each time: " + differs.replace("{relu}", relu)):
        traced(tmp_path, text)


def test_queue_is_counted_as_long_as_it_gets(tmp_path: Path) -> None:
    """Of two losses it lets go of the first in the third step: that, not the second, is what all later ones hold."""
    text = HEAD + (
        "from collections import deque\n"
        "kept = deque(maxlen=2)\n"
        "def step(batch):\n"
        "    with torch.no_grad():\n"
        "        kept.append(model(batch[0]))\n"
    )
    program = traced(tmp_path, text)
    assert max(total_levels(program.eager)) == max(real_levels(tmp_path / "train.py")[2])
    assert program.growth == 0


def test_rate_that_a_hand_written_optimizer_moves_is_a_number_input(tmp_path: Path) -> None:
    """No byte of the graph depends on it; the same rate each time is part of it."""

    def hash_of(rate: str) -> bytes:
        text = HEAD + (
            "runs = []\n"
            "def step(batch):\n"
            "    model(batch[0]).sum().backward()\n"
            "    runs.append(1)\n"
            "    with torch.no_grad():\n"
            "        for p in model.parameters():\n"
            f"            p.sub_(p.grad, alpha={rate})\n"
            "            p.grad = None\n"
        )
        return lower_program(traced(tmp_path, text)).graph.ir_hash

    assert hash_of("0.1 / len(runs)") == hash_of("0.7 / len(runs)")
    assert hash_of("0.1") != hash_of("0.7")


def test_option_that_is_for_models_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig, match="--dtype is for a model"):
        traced(tmp_path, loop_text("foreach adamw"), dtype="bfloat16")


def test_step_without_batch_says_what_to_define(tmp_path: Path) -> None:
    text = HEAD.replace("def inputs():", "def nothing():") + LOOPS["foreach adamw"]
    with pytest.raises(CaptureFailed, match="defines neither inputs nor batch"):
        traced(tmp_path, text)
