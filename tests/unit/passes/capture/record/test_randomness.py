"""The random state is in a graph where it matters, and nowhere else."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tests.runtime.harness import capture_program
from tests.runtime.test_checkpoint import GET_STATE, SET_STATE, WAYS, Blocks, DrawingAnew, Nested, loss, x
from tmmu.errors import UnsupportedOp
from tmmu.ir.graph import Graph
from tmmu.passes.capture.record.randomness import Randomness
from tmmu.passes.capture.request import CaptureRequest
from tmmu.passes.capture.trace import capture
from tmmu.passes.pipeline import lower_program

HEAD = """
import torch
from torch.utils.checkpoint import checkpoint


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.drop = torch.nn.Linear(4, 8), torch.nn.Dropout(0.5)

    def body(self, x):
        return torch.tanh(self.drop(self.up(x)))

    def forward(self, x):
        {}


model, inputs = Net(), (torch.zeros(2, 4),)
"""
AGAIN = "return checkpoint(self.body, x, use_reentrant=False).square().mean()"


def graph_of(folder: Path, forward: str, *, device: str = "cpu", head: str = HEAD) -> Graph:
    file = folder / "net.py"
    file.write_text(head.format(forward), "utf-8")
    return lower_program(capture(CaptureRequest(model=str(file), device=device, mode="backward"))).graph


def states(graph: Graph) -> list[str]:
    """Who reads and who sets the random state, and in which stage, in order."""
    rows = zip(graph.ops.target, graph.ops.stage, strict=True)
    return [f"{target.split('.')[1]} {stage}" for target, stage in rows if target in (GET_STATE, SET_STATE)]


ONE = ["random_state forward", "random_state backward", "set_random_state backward", "set_random_state backward"]


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_states_are_read_in_place_and_set_before_the_next_draw(tmp_path: Path, device: str) -> None:
    graph = graph_of(tmp_path, AGAIN, device=device)
    assert states(graph) == ONE
    first = graph.ops.target.index(GET_STATE)
    drawn = [op for op, name in enumerate(graph.ops.target) if "bernoulli" in name or "native_dropout.d" in name]
    assert first < drawn[0]
    assert graph.ops.target[drawn[1] - (2 if device == "cpu" else 1)] in (SET_STATE, "aten.empty_like.default")
    size = graph.buffers.bytes[graph.values.buffer[graph.ops.writes[first][0]]]
    assert size == (torch.get_rng_state().numel() if device == "cpu" else 16)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize(
    "forward",
    [
        AGAIN.replace("self.body", "self.up"),
        "return self.body(x).square().mean()",
        "return self.drop(checkpoint(self.up, self.drop(x), use_reentrant=False)).square().mean()",
        AGAIN.replace("False", "False, preserve_rng_state=False"),
        "torch.set_rng_state(torch.get_rng_state()); return self.body(x).square().mean()",
    ],
)
def test_states_without_a_draw_between_are_not_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, forward: str, device: str
) -> None:
    graph = graph_of(tmp_path, forward, device=device)
    assert states(graph) == []
    monkeypatch.setattr(Randomness, "read_state", lambda _: torch._C.default_generator.get_state())
    monkeypatch.setattr(Randomness, "restore_state", lambda *_: None)
    assert graph_of(tmp_path, forward, device=device).ir_hash == graph.ir_hash


def test_attention_without_dropout_draws_nothing(tmp_path: Path) -> None:
    body = "torch.nn.functional.scaled_dot_product_attention(*[self.up(t).view(1, 2, 1, 8)] * 3)"
    again = f"return checkpoint(lambda t: {body}, x, use_reentrant=False).square().mean()"
    assert states(graph_of(tmp_path, again)) == []
    assert states(graph_of(tmp_path, again, device="cuda")) == []


def test_states_used_twice_are_read_once() -> None:
    program, _ = capture_program(Blocks, x(0), mode="backward", loss=loss)
    assert states(program.graph) == 3 * ONE[:1] + ONE[1:2] + 4 * ONE[2:3]
    program, _ = capture_program(DrawingAnew, x(0), mode="backward", loss=loss)
    assert states(program.graph) == []


@pytest.mark.parametrize("make", WAYS, ids=lambda way: way.__name__)
def test_states_that_are_read_are_set_again(make: Callable[[], Blocks]) -> None:
    program, _ = capture_program(make, x(0), mode="backward", loss=loss)
    ops, read = program.graph.ops, set[int]()
    for reads in ops.reads:
        read |= set(reads)
    assert all(set(ops.writes[op]) & read for op, target in enumerate(ops.target) if target == GET_STATE)


def test_last_set_is_an_op_of_the_stage_that_asked() -> None:
    program, _ = capture_program(Nested, x(0), mode="backward", loss=loss)
    assert program.graph.ops.target[-1] == SET_STATE
    assert program.graph.ops.stage[-1] == "backward"


def test_states_of_a_gpu_are_followed_without_one(tmp_path: Path) -> None:
    forward = (
        "before = torch.cuda.get_rng_state(); y = self.body(x); torch.cuda.set_rng_state(before)\n"
        "        with torch.random.fork_rng():\n            torch.manual_seed(3); y = y + self.body(x)\n"
        "        return y.square().mean()"
    )
    # The first state, read and put back. Setting it again inside is no change; the seed and the end of the fork are.
    for text in (forward, forward.replace("torch.cuda.", "torch.")):
        operators = [entry.split()[0] for entry in states(graph_of(tmp_path, text, device="cuda"))]
        assert operators == ["random_state", "set_random_state", "set_random_state"]


def test_checkpoint_on_a_gpu_keeps_the_state_of_its_tensors_device(tmp_path: Path) -> None:
    hidden = AGAIN.replace("self.body, x,", "lambda: self.body(x),")
    assert states(graph_of(tmp_path, hidden)) == ONE
    assert states(graph_of(tmp_path, hidden, device="cuda")) == []  # eager keeps none, and draws anew


@pytest.mark.parametrize(
    ("forward", "message"),
    [
        ("torch.seed(); return self.body(x).square().mean()", "by chance"),
        ("s = torch.get_rng_state(); s[0] = 1; torch.set_rng_state(s); return self.body(x).mean()", "changed in place"),
        ("s = torch.get_rng_state(); s.zero_(); torch.get_rng_state(); return self.body(x).mean()", "changed in place"),
    ],
)
def test_chance_seeds_and_states_changed_in_place_are_refused(tmp_path: Path, forward: str, message: str) -> None:
    with pytest.raises(UnsupportedOp, match=message):
        graph_of(tmp_path, forward)


def test_torchs_functions_are_restored(tmp_path: Path) -> None:
    owners = (torch, torch.random, torch.cuda, torch.cuda.random, torch.utils.checkpoint)
    before = [dict(vars(owner)) for owner in owners]
    state = torch.get_rng_state()
    graph_of(tmp_path, "torch.manual_seed(4); " + AGAIN)
    graph_of(tmp_path, "torch.manual_seed(4); " + AGAIN, device="cuda")
    changed = [
        name
        for owner, values in zip(owners, before, strict=True)
        for name, value in values.items()
        if vars(owner)[name] is not value and not name.startswith("_")
    ]
    assert changed == []
    assert torch.get_rng_state().equal(state)
