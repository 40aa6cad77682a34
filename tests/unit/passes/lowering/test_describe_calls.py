"""Calls in the graph: a program comes back from its file without tracing, and runs with the same bits."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tmmu.codec.read import read_graph
from tmmu.errors import UnsupportedOp
from tmmu.ir.call_text import decode_call
from tmmu.ir.edit import keep_ops
from tmmu.ir.graph import Graph, encode_graph
from tmmu.ir.program import Call, Program
from tmmu.judge.rules import check_graph
from tmmu.passes.capture.request import CaptureRequest
from tmmu.passes.capture.trace import capture
from tmmu.passes.lowering.describe_calls import describe_calls
from tmmu.passes.lowering.read_calls import read_program
from tmmu.passes.pipeline import lower_program

NET = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(8, 16)
        self.norm = nn.BatchNorm1d(16)
        self.second = nn.Linear(16, 4)
        self.register_buffer("table", torch.arange(4.0))

    def forward(self, x):
        h = nn.functional.dropout(nn.functional.gelu(self.norm(self.first(x)), approximate="tanh"), 0.25, self.training)
        a, b = self.second(h).sub(self.table, alpha=2).chunk(2, dim=-1)
        picked = a.to(torch.float64)[:, torch.tensor([1, 0])]
        return torch.where(b > 0.5, picked, float("-inf")).to(torch.float32) + torch.complex(a, b).conj().abs()

model = Net()

def inputs():
    return torch.ones(6, 8)

def loss(model, x):
    return model(x).clamp(min=-3).sum()
"""


def program_of(folder: Path, mode: str = "inference", optimizer: str | None = None, text: str = NET) -> Program:
    (folder / "net.py").write_text(text)
    request = CaptureRequest(model=str(folder / "net.py"), device="cpu", mode=mode, optimizer=optimizer)
    return lower_program(capture(request))


def normal(call: Call) -> tuple[object, ...]:
    """A call by its schema: two spellings of one call are equal."""
    schema = call.operator._schema.arguments
    given = dict(zip((argument.name for argument in schema), call.args, strict=False)) | dict(call.kwargs)
    full = {a.name: given.get(a.name, a.default_value if a.has_default_value() else None) for a in schema}
    texts = {name: repr(list(value) if isinstance(value, tuple) else value) for name, value in full.items()}
    return str(call.operator), texts, call.results


@pytest.mark.parametrize(
    ("mode", "optimizer"),
    [
        ("inference", None),
        ("backward", None),
        ("backward", "adamw"),
        ("backward", "adamw:foreach"),
        ("backward", "nadam"),
    ],
)
def test_program_comes_back_from_its_file(tmp_path: Path, mode: str, optimizer: str | None) -> None:
    program = program_of(tmp_path, mode, optimizer)
    graph = read_graph(encode_graph(program.graph))
    assert graph == program.graph
    assert list(map(normal, read_program(graph).calls)) == list(map(normal, program.calls))


def test_calls_of_a_file_compute_eagers_bits(tmp_path: Path) -> None:
    """By a plain interpreter of calls, on buffers of their own."""
    program = program_of(tmp_path)
    torch.manual_seed(0)
    first = run_calls(program)
    again = run_calls(read_program(read_graph(encode_graph(program.graph))))
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))


def run_calls(program: Program) -> list[torch.Tensor]:
    graph = program.graph
    dtypes = {graph.values.buffer[v]: graph.values.dtype[v] for v in reversed(graph.values.ids)}
    generator = torch.Generator().manual_seed(3)
    memory = [torch.zeros(size, dtype=torch.uint8) for size in graph.buffers.bytes]
    for buffer, role in enumerate(graph.buffers.role):
        if role != "activation":
            window = memory[buffer].view(getattr(torch, dtypes.get(buffer, "uint8")))
            if window.dtype.is_floating_point:
                window.copy_(torch.rand(window.shape, generator=generator))

    def tensor(value: int) -> torch.Tensor:
        table = graph.values
        flat = memory[table.buffer[value]].view(getattr(torch, table.dtype[value]))
        offset = table.offset[value] // flat.element_size()
        return flat.as_strided(table.shape[value], table.stride[value], offset)

    def argument(item: object) -> object:
        if isinstance(item, (list, tuple)):
            return [argument(part) for part in item]
        if not hasattr(item, "value"):
            return item
        window = tensor(item.value)
        return torch.conj(window) if item.conj else window  # type: ignore[attr-defined]

    for call in program.calls:
        args = [argument(item) for item in call.args]
        made = call.operator(*args, **{key: argument(item) for key, item in call.kwargs})
        leaves = made if isinstance(made, (tuple, list)) else [made]
        for value, leaf in zip(call.results, leaves, strict=True):
            if value is not None:
                tensor(value).copy_(leaf)
    return [tensor(value).clone() for value in graph.outputs]


def test_learning_rate_is_a_number_input_and_no_part_of_the_hash(tmp_path: Path) -> None:
    slow = program_of(tmp_path, "backward", "sgd:lr=0.001,momentum=0.5")
    fast = program_of(tmp_path, "backward", "sgd:lr=0.5,momentum=0.25")
    assert slow.graph.ir_hash == fast.graph.ir_hash
    assert slow.graph.calls is not None
    assert fast.graph.calls is not None
    assert slow.graph.calls.numbers != fast.graph.calls.numbers
    assert [normal(c) for c in read_program(fast.graph).calls] == [normal(c) for c in fast.calls]


def test_order_of_arguments_is_part_of_the_hash(tmp_path: Path) -> None:
    swapped = NET.replace("self.second(h).sub(self.table, alpha=2)", "self.table.sub(self.second(h), alpha=2)")
    assert program_of(tmp_path).graph.ir_hash != program_of(tmp_path, text=swapped).graph.ir_hash


def test_equal_layers_share_their_texts(tmp_path: Path) -> None:
    deep = NET.replace(
        "h = ", "x = self.first(self.second(self.first(x))[:, :1].expand(-1, 8))\n        h = ", 1
    ).replace("self.norm(self.first(x))", "self.norm(x)")
    calls = program_of(tmp_path, text=deep).graph.calls
    assert calls is not None
    texts = [decode_call(text) for text in calls.texts]
    products = [text for text in texts if text and text.operator == "aten.addmm.default"]
    assert len(products) == 1
    assert calls.call.count(texts.index(products[0])) >= 4


def test_effects_are_what_comes_of_an_op_beside_its_values(tmp_path: Path) -> None:
    graph = program_of(tmp_path, "backward", "sgd:momentum=0.9").graph
    assert graph.calls is not None
    effects = dict(zip(graph.ops.target, graph.calls.effect, strict=True))
    assert effects["aten.addmm.default"] == "pure"
    assert {effects[name] for name in effects if "dropout" in name or "bernoulli" in name} == {"random"}
    assert effects["aten.native_batch_norm.default"] == "state"
    assert "once" not in effects.values()


def test_operator_of_nobody_knows_which_effect_runs_once(tmp_path: Path) -> None:
    own = NET.replace(
        "class Net",
        '@torch.library.custom_op("test_describe::twice", mutates_args=())\n'
        "def twice(x: torch.Tensor) -> torch.Tensor:\n    return x * 2\n\n"
        "@twice.register_fake\ndef _(x):\n    return torch.empty_like(x)\n\nclass Net",
        1,
    )
    own = own.replace("self.norm(self.first(x))", "self.norm(twice(self.first(x)))")
    graph = program_of(tmp_path, text=own).graph
    assert graph.calls is not None
    assert graph.calls.effect[graph.ops.target.index("test_describe.twice.default")] == "once"


def test_call_with_a_number_that_no_text_says_runs_once(tmp_path: Path) -> None:
    own = NET.replace("self.norm(self.first(x))", "self.norm((y := self.first(x)) * y.sum().item() / y.amax().item())")
    graph = program_of(tmp_path, text=own).graph
    assert graph.calls is not None
    effects = dict(zip(graph.ops.target, graph.calls.effect, strict=True))
    assert effects["aten.mul.Tensor"] == effects["aten.div.Tensor"] == "once"
    assert effects["aten.sum.default"] == effects["aten.amax.default"] == "pure"


def test_draws_are_random_whether_the_table_knows_the_operator_or_only_torch(tmp_path: Path) -> None:
    drawn = NET.replace(
        "self.norm(self.first(x))", "self.norm(self.first(x) + torch.rand(6, 16) + torch.poisson(x[:, :1]))"
    )
    graph = program_of(tmp_path, text=drawn).graph
    assert graph.calls is not None
    effects = dict(zip(graph.ops.target, graph.calls.effect, strict=True))
    assert {effects[name] for name in effects if "rand" in name or "poisson" in name} == {"random"}


def test_call_keeps_the_switches_under_which_it_was_made(tmp_path: Path) -> None:
    plain = program_of(tmp_path).graph
    before = torch.backends.mkldnn.deterministic  # type: ignore[attr-defined]
    torch.backends.mkldnn.deterministic = not before  # type: ignore[attr-defined]
    try:
        program = program_of(tmp_path)
    finally:
        torch.backends.mkldnn.deterministic = before  # type: ignore[attr-defined]
    assert program.calls[0].switches
    graph = read_graph(encode_graph(program.graph))
    assert [call.switches for call in read_program(graph).calls] == [call.switches for call in program.calls]
    assert graph.ir_hash != plain.ir_hash


def test_random_states_of_a_checkpoint_come_back_in_a_fresh_process(tmp_path: Path) -> None:
    inner = "lambda h: nn.functional.dropout(h, 0.25, True)"
    text = NET.replace(
        "self.norm(self.first(x))", f"torch.utils.checkpoint.checkpoint({inner}, self.first(x), use_reentrant=False)"
    )
    program = program_of(
        tmp_path, "backward", text=text.replace("import torch\n", "import torch\nimport torch.utils.checkpoint\n", 1)
    )
    assert any("random_state" in target for target in program.graph.ops.target)
    (tmp_path / "net.ir.cbor").write_bytes(encode_graph(program.graph))
    code = (
        "import sys; from pathlib import Path; from tmmu.codec.read import read_graph; "
        "from tmmu.passes.lowering.read_calls import read_program; "
        "print(len(read_program(read_graph(Path(sys.argv[1]))).calls))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "net.ir.cbor")], capture_output=True, text=True, check=False
    )
    assert done.stdout.strip() == str(len(program.calls)), done.stderr


def test_edited_program_has_no_columns_until_they_are_written_again(tmp_path: Path) -> None:
    program = program_of(tmp_path)
    some = keep_ops(replace(program, graph=replace(program.graph, outputs=())), [0, 1])
    assert some.graph.calls is None
    assert describe_calls(some).graph.calls is not None
    assert check_graph(describe_calls(some).graph) == ()


def test_graph_of_version_1_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedOp, match="does not say its calls"):
        read_program(without_calls(program_of(tmp_path).graph))


def test_operator_that_torch_has_not_is_refused(tmp_path: Path) -> None:
    graph = program_of(tmp_path).graph
    assert graph.calls is not None
    texts = tuple(text.replace(b"aten.addmm.default", b"aten.adbmm.default") for text in graph.calls.texts)
    with pytest.raises(UnsupportedOp, match=r"no operator aten\.adbmm\.default"):
        read_program(replace(graph, calls=replace(graph.calls, texts=texts)))


def test_version_1_keeps_its_hash(tmp_path: Path) -> None:
    graph = program_of(tmp_path).graph
    first, data = without_calls(graph), encode_graph(without_calls(graph))
    assert read_graph(data) == first
    assert read_graph(data).version == 1
    assert graph.version == 2
    assert read_graph(data).ir_hash == first.ir_hash != graph.ir_hash


def without_calls(graph: Graph) -> Graph:
    return replace(graph, calls=None, notes=replace(graph.notes, eager=None))
