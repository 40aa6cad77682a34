"""Updates by the code of ``torch.optim``: names and forms, their state, and the bits of the model's own step."""

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.unit.passes.capture.test_training import LOSS, NET, names, step
from tmmu.errors import InvalidConfig
from tmmu.ir.graph import UPDATE_MODULE, Graph
from tmmu.passes.capture.record.graph_builder import GraphBuilder, flatten
from tmmu.passes.capture.request import CaptureRequest
from tmmu.passes.capture.trace import capture
from tmmu.passes.capture.training import optimizers
from tmmu.passes.capture.training.optimizers import optimizer_classes, parse_optimizer
from tmmu.passes.pipeline import lower_program
from tmmu.torch_private import disable_current_modes

REFUSED = {"lbfgs", "sparseadam"}
"""One evaluates the model again, one wants sparse gradients."""
SQUARE = NET.replace("nn.Linear(4, 8), nn.Linear(8, 4)", "nn.Linear(4, 8, bias=False), nn.Linear(8, 4, bias=False)")
COMPLEX = """
import torch
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.w = torch.nn.Parameter(torch.randn(4, 4, dtype=torch.cfloat))
    def forward(self, x):
        return (x.cfloat() @ self.w).abs()
model = Net
inputs = lambda: (torch.randn(2, 4),)
"""


def updates(graph: Graph) -> list[str]:
    return [t for t, stage in zip(graph.ops.target, graph.ops.stage, strict=True) if stage == "update"]


@pytest.mark.parametrize(
    ("text", "device", "meant"),
    [
        ("adamw", "cuda", "adamw:foreach"),
        ("adamw", "cpu", "adamw:forloop"),
        ("adamw:fused", "cpu", "adamw:fused"),
        ("muon", "cuda", "muon:forloop"),
        ("adafactor", "cuda", "adafactor:forloop"),
        ("adafactor:foreach", "cuda", "adafactor:foreach"),
        ("sgd:momentum=0.9, nesterov=True", "cuda", "sgd:foreach,momentum=0.9,nesterov=True"),
        ("adam:betas=(0.8,0.9),foreach", "cpu", "adam:foreach,betas=(0.8, 0.9)"),
        ("adam:maximize=true", "cpu", "adam:forloop,maximize=True"),
        ("adam:lr=tensor(1e-2)", "cuda", "adam:forloop,lr=tensor(0.01)"),
        ("adam:capturable=true,lr=tensor(1)", "cuda", "adam:foreach,capturable=True,lr=tensor(1.0)"),
        ("sgd:lr=tensor(0.5)", "cuda", "sgd:foreach,lr=tensor(0.5)"),
        ("sgd:differentiable=true", "cuda", "sgd:forloop,differentiable=True"),
    ],
)
def test_texts_name_a_class_its_form_and_its_arguments(text: str, device: str, meant: str) -> None:
    spec = parse_optimizer(text, device)
    assert spec.text == meant
    assert parse_optimizer(spec.text, device) == spec


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("lion", "no such optimizer in torch.optim"),
        ("lbfgs", "how often a step of it evaluates the model depends on losses"),
        ("adamw:speed=1", "adamw takes no 'speed=1'"),
        ("adamw:fast", "adamw takes no 'fast'"),
        ("adamw:params=1", "adamw takes no 'params=1'"),
        ("muon:fused", "muon has no fused form"),
        ("adam:fused,foreach", "fused and foreach are two forms"),
        ("sgd:momentum=0.9,momentum=0.5", "momentum stands twice"),
        ("adam:lr=nan", "lr is the text 'nan'"),
        ("adam:lr=tensor([0.1])", r"lr is the text 'tensor\(\[0.1\]\)'"),
        ("sgd:nesterov=yes", "nesterov is the text 'yes'"),
    ],
)
def test_texts_that_torch_does_not_take_are_refused(text: str, says: str) -> None:
    with pytest.raises(InvalidConfig, match=says):
        parse_optimizer(text, "cpu")


@pytest.mark.parametrize("name", sorted(set(optimizer_classes()) - REFUSED))
def test_every_class_is_traced_in_the_middle_of_training(tmp_path: Path, name: str) -> None:
    graph = step(tmp_path, SQUARE + LOSS, optimizer=name)
    state = [text for text in names(graph, "state") if text.startswith("optimizer.")]
    assert {text.rpartition(".")[0].rpartition(".")[2] for text in state} == ({"up", "down"} if state else set())
    assert {m for m, s in zip(graph.notes.ops.module, graph.ops.stage, strict=True) if s == "update"} == {
        f"{UPDATE_MODULE}{parse_optimizer(name, 'cuda').text}"
    }
    assert bool(state) is (name != "sgd")


def test_foreach_needs_temporaries_of_the_size_of_the_parameters(tmp_path: Path) -> None:
    def made(form: str) -> int:
        graph = step(tmp_path, optimizer=f"adamw:{form}")
        first = graph.ops.stage.index("update")
        before, after = (
            {graph.values.buffer[v] for row in rows for v in row}
            for rows in (graph.ops.writes[:first], graph.ops.writes[first:])
        )
        return sum(graph.buffers.bytes[b] for b in after - before if graph.buffers.role[b] == "gradient")

    parameters = 4 * (4 * 8 + 8 + 8 * 4 + 4)
    assert made("fused") == 0
    assert made("foreach") >= parameters


def test_counts_of_steps_are_known_and_other_numbers_are_not(tmp_path: Path) -> None:
    graph = step(tmp_path, optimizer="adamw:forloop")
    assert "aten._local_scalar_dense.default" not in graph.ops.target
    assert updates(graph).count("aten.addcdiv_.default") == 4


def test_numbers_of_parameters_are_read_as_the_update_runs(tmp_path: Path) -> None:
    graph = step(tmp_path, optimizer="adafactor")
    norms, adds = (
        {op for op, target in enumerate(graph.ops.target) if target == name and graph.ops.stage[op] == "update"}
        for name in ("aten.linalg_vector_norm.default", "aten.add_.Tensor")
    )
    read_norms = {value for norm in norms for value in graph.ops.writes[norm]}
    scaled = [op for op in adds if len(read_norms & set(graph.ops.reads[op])) == 2]
    assert len(scaled) == 4, "one for each parameter, by its own norm and that of its update"
    assert graph.calls is not None
    assert {graph.calls.effect[op] for op in scaled} == {"once"}


@pytest.mark.parametrize(
    "text", ["adam", "adamw:foreach", "nadam:forloop", "adagrad:lr_decay=0.1", "adamax:foreach", "radam:forloop"]
)
def test_two_steps_of_training_have_one_graph(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    def numbers_and_hash(count: int) -> tuple[list[float], bytes]:
        declare = GraphBuilder.declare

        def declare_count(builder: GraphBuilder, tensor: torch.Tensor, *, is_zero: bool = False, **notes: Any) -> None:
            declare(builder, tensor, is_zero=is_zero, **notes)
            if is_zero:
                with disable_current_modes():
                    builder.node_of(tensor).meta["value"].fill_(count)

        with monkeypatch.context() as patch:
            patch.setattr(GraphBuilder, "declare", declare_count)
            (tmp_path / "net.py").write_text(SQUARE + LOSS)
            request = CaptureRequest(model=str(tmp_path / "net.py"), mode="backward", optimizer=text)
            program = lower_program(capture(request))
        arguments = [a for call in program.calls for a in (*call.args, *(value for _, value in call.kwargs))]
        return [a for a in flatten(arguments) if isinstance(a, float)], program.graph.ir_hash

    early, late = numbers_and_hash(7), numbers_and_hash(12)
    assert early[0] != late[0]  # bias correction, or a rate that decays
    assert early[1] == late[1]


@pytest.mark.parametrize("form", ["forloop", "foreach"])
def test_complex_parameters_are_updated_as_torch_does(tmp_path: Path, form: str) -> None:
    graph = step(tmp_path, COMPLEX + LOSS, optimizer=f"adamw:{form}")
    assert "optimizer.exp_avg.w" in names(graph, "state")


def test_forms_that_torch_refuses_are_refused_in_its_words(tmp_path: Path) -> None:
    with pytest.raises(Exception, match="requires all the params to be floating point"):
        step(tmp_path, COMPLEX + LOSS, optimizer="adamw:fused")
    with pytest.raises(Exception, match="Muon only supports 2D parameters"):
        step(tmp_path, optimizer="muon")


def forms_of(states: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [
        {
            key: (tuple(value.shape), value.stride(), value.dtype) if isinstance(value, torch.Tensor) else value
            for key, value in state.items()
        }
        for state in states
    ]


@pytest.mark.parametrize("name", sorted(set(optimizer_classes()) - REFUSED))
def test_a_twin_of_each_form_gives_the_states_that_a_twin_of_each_parameter_has(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = parse_optimizer(f"{name}:momentum=0.9" if name in {"sgd", "rmsprop"} else name, "cpu")
    tensors = [torch.ones(3, 4), torch.ones(4, 3).t(), torch.ones(3, 4), torch.ones(6, 8)[:3, :4], torch.ones(3, 4)]
    parameters = [torch.nn.Parameter(tensor) for tensor in tensors]
    stepped = list[int]()
    make = type(spec).make
    monkeypatch.setattr(type(spec), "make", lambda *a, **k: stepped.append(len(a[1])) or make(*a, **k))
    states = optimizers._states_of_twins(spec, parameters)
    monkeypatch.setattr(optimizers, "_form_of", id)
    assert forms_of(states) == forms_of(optimizers._states_of_twins(spec, parameters))
    assert stepped == [3, 5]
    addresses = [value.data_ptr() for state in states for value in state.values() if isinstance(value, torch.Tensor)]
    assert len(set(addresses)) == len(addresses)
