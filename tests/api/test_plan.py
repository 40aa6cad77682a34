"""``tmmu.plan`` and ``tmmu.load``: what they say, and that nothing of the caller's is changed."""

import hashlib
import json
import random
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 - the name everyone uses

import tmmu
from tmmu.cli.app import run
from tmmu.errors import InvalidConfig, PlanMismatch, UnsupportedOp
from tmmu.report.contents import report_contents
from tmmu.report.page import page_html


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 10))


X = torch.ones(16, 32)
WEIGHTS = 4 * (32 * 64 + 64 + 64 * 10 + 10)


class Training:
    """A model with all that a loop has beside it."""

    def __init__(self) -> None:
        self.model = net()
        self.optimizer = torch.optim.AdamW(self.model.parameters())
        self.schedule = torch.optim.lr_scheduler.StepLR(self.optimizer, 10)
        self.average = {name: p.detach().clone() for name, p in self.model.named_parameters()}
        self.losses: list[float] = []

    def step(self, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        """One update."""
        x, y = batch
        self.optimizer.zero_grad()
        loss = F.cross_entropy(self.model(F.dropout(x, 0.5)), y)
        loss.backward()
        self.optimizer.step()
        self.schedule.step()
        for name, p in self.model.named_parameters():
            self.average[name].lerp_(p.detach(), 0.1)
        self.losses.append(random.random())
        return loss.detach()

    def fingerprint(self) -> str:
        """Of weights, gradients, buffers, all states, attributes and generators."""
        tensors = [*self.model.parameters(), *self.average.values(), *(p.grad for p in self.model.parameters())]
        digest = hashlib.sha256()
        for tensor in tensors:
            digest.update(b"" if tensor is None else tensor.detach().numpy().tobytes())
        for state in (self.optimizer.state_dict(), self.schedule.state_dict(), self.losses, sorted(vars(self))):
            digest.update(repr(state).encode())
        digest.update(torch.get_rng_state().numpy().tobytes() + repr(random.getstate()).encode())
        return digest.hexdigest()


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.ones(16, 32), torch.zeros(16, dtype=torch.int64)


def test_figures_of_a_module() -> None:
    plan = tmmu.plan(net(), X, device="cpu")
    assert plan.stack == 4 * 16 * 64 + 768  # the activation in place, and the result in whole blocks of 256
    assert plan.eager.stack_bytes == 2 * 4 * 16 * 64
    assert plan.eager.total_bytes == WEIGHTS + 4 * 16 * 32 + plan.eager.stack_bytes
    assert [buffer.op for buffer in plan.largest(1)] == ["aten.gelu.default"]
    assert plan.total == tmmu.plan(net(), X, device=torch.device("cpu")).total
    with pytest.raises(InvalidConfig, match="no device 'mps'"):
        tmmu.plan(net(), X, device=torch.device("mps"))
    assert plan.by_module() == {"1": 4096, "2": 768}
    assert max(plan.timeline().planned) == plan.stack
    assert max(plan.timeline().eager) == plan.eager.stack_bytes


def test_first_run_of_a_step_has_to_fit_too() -> None:
    model, seen = nn.Linear(4, 4), []

    def step(x: torch.Tensor) -> torch.Tensor:
        if not seen:
            seen.append(torch.zeros(1 << 20).sum().item())
        return model(x).sum().detach()

    plan = tmmu.plan(step, torch.zeros(2, 4), device="cpu")
    assert plan.first_step is not None
    assert plan.needed_bytes == plan.first_step.total_bytes > 4 << 20 > plan.eager.total_bytes
    assert plan.fits(plan.needed_bytes, reserve=0)
    assert not plan.fits(plan.needed_bytes - 1, reserve=0)


def test_fits_is_said_of_each_run() -> None:
    plan = tmmu.plan(net(), X, device="cpu")
    between = (plan.total + plan.eager.total_bytes) // 2
    assert plan.total < plan.eager.total_bytes
    assert plan.fits(between, run="planned", reserve=0)
    assert not plan.fits(between, reserve=0)
    assert plan.fits("24GB")
    assert not plan.fits("1GiB")
    with pytest.raises(InvalidConfig, match=r"24.5 is not a size"):
        plan.fits(24.5)  # type: ignore[arg-type]
    with pytest.raises(InvalidConfig, match="neither eager nor planned"):
        plan.fits("24GB", run="both")  # type: ignore[arg-type]


def test_training_step_of_a_module() -> None:
    plain = tmmu.plan(net(), X, loss="sum", device="cpu")
    updated = tmmu.plan(net(), X, loss="sum", optimizer="adamw", device="cpu")
    assert plain.plan.mode == updated.plan.mode == "backward"
    assert updated.total > plain.total + 2 * WEIGHTS - 1024
    assert "sum" in json.dumps(plain.to_dict())


@pytest.mark.parametrize("form", ["closure", "method", "partial", "object", "method of an object beside it"])
def test_step_is_planned_and_nothing_of_it_changes(form: str) -> None:
    training = Training()
    training.step(batch())
    before = training.fingerprint()

    def step(both: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        return training.step(both)

    class Runs:
        def __call__(self, both: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
            return training.step(both)

    forms = {
        "closure": step,
        "method": training.step,
        "partial": partial(step),
        "object": Runs(),
        "method of an object beside it": Runs().__call__,
    }
    plan = tmmu.plan(forms[form], batch(), device="cpu")
    assert training.fingerprint() == before
    assert plan.first_step is not None
    assert plan.first_step.growth == 0
    states = [n for n, role in zip(plan.graph.notes.buffers, plan.graph.buffers.role, strict=True) if role == "state"]
    assert sum("exp_avg" in name for name in states) == 8
    assert plan.eager.total_bytes - plan.eager.stack_bytes >= 4 * WEIGHTS


def test_step_that_fails_changes_nothing() -> None:
    training = Training()
    before = training.fingerprint()

    def step(both: tuple[torch.Tensor, torch.Tensor]) -> None:
        training.step(both)
        raise RuntimeError("after an update")

    with pytest.raises(tmmu.TmmuError, match="after an update"):
        tmmu.plan(step, batch(), device="cpu")
    assert training.fingerprint() == before


def test_refused_trace_logs_nothing(caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(tmmu.TmmuError, match="same reduction dim"):
        tmmu.plan(net(), torch.ones(4, 9))
    assert not caplog.records
    assert capfd.readouterr().err == ""


def test_optimizer_keeps_the_attributes_that_its_pickled_form_lacks() -> None:
    model = net()
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=1)
    optimizer.own = model[0].weight  # type: ignore[attr-defined]

    def step(x: torch.Tensor) -> None:
        model(x).sum().backward()
        with torch.no_grad():
            optimizer.own.add_(1)  # type: ignore[attr-defined]

    graph = tmmu.plan(step, X).graph
    roles = dict(zip(graph.notes.buffers, graph.buffers.role, strict=True))
    assert roles["0.weight"] == "state"


def test_what_a_model_writes_in_place_is_written_in_no_tensor_of_the_caller() -> None:
    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("count", torch.zeros(1))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.count.add_(1)  # type: ignore[operator, union-attr]
            return x.mul_(3) + self.count

    model, x = Counting(), torch.ones(4)
    tmmu.plan(model, x)
    assert (float(model.count), x.sum()) == (0, 4)  # type: ignore[arg-type]


def test_model_and_inputs_may_lie_on_meta() -> None:
    with torch.device("meta"):
        model, x = net(), torch.ones(16, 32)
    assert tmmu.plan(model, x, device="cpu").total == tmmu.plan(net(), X, device="cpu").total
    assert next(model.parameters()).device.type == "meta"


def test_inputs_are_a_tensor_a_tuple_or_names() -> None:
    class Two(nn.Module):
        def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
            return a @ b

    a, b = torch.ones(8, 16), torch.ones(16, 4)
    by_place, by_name = tmmu.plan(Two(), (a, b)), tmmu.plan(Two(), {"a": a, "b": b})
    assert by_place.graph.ir_hash == by_name.graph.ir_hash


def test_small_constants_are_known_to_control_flow() -> None:
    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("rows", torch.tensor([1, 3]))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x[: int(self.rows.max())] * 2  # type: ignore[operator]

    plan = tmmu.plan(Masked(), torch.ones(8, 4))
    assert (3, 4) in plan.graph.values.shape
    assert plan.assumed == ("rows",)
    assert tmmu.plan(net(), X).assumed == ()


def test_shared_weights_stay_shared() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tokens, self.head = nn.Embedding(50, 8), nn.Linear(8, 50, bias=False)
            self.head.weight = self.tokens.weight
            self.register_buffer("part", self.tokens.weight.detach()[:4])

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            return self.head(self.tokens(ids)) + self.part.sum()  # type: ignore[no-any-return, operator]

    graph = tmmu.plan(Tied(), torch.zeros(1, 6, dtype=torch.int64)).graph
    assert [
        size for size, role in zip(graph.buffers.bytes, graph.buffers.role, strict=True) if role == "parameter"
    ] == [4 * 50 * 8]


def test_transformers_model_is_planned_as_it_is() -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(n_layer=2, n_embd=32, n_head=2, vocab_size=64, n_positions=32)
    model = transformers.GPT2LMHeadModel(config)
    plan = tmmu.plan(model, {"input_ids": torch.zeros(2, 16, dtype=torch.int64)}, device="cpu")
    assert plan.eager.total_bytes > plan.eager.stack_bytes > 0
    assert all(p.device.type == "cpu" and type(p) is nn.Parameter for p in model.parameters())


def test_saved_plan_comes_back(tmp_path: Path) -> None:
    plan = tmmu.plan(net(), X)
    path = plan.save(tmp_path / "net")
    assert sorted(file.name for file in tmp_path.iterdir()) == ["net.ir.cbor", "net.plan.cbor"]
    again = tmmu.load(path)
    assert (again.total, again.eager, again.to_dict()) == (plan.total, plan.eager, plan.to_dict())
    assert again.graph.ir_hash == plan.graph.ir_hash
    tmmu.plan(net(), torch.ones(4, 32)).save(tmp_path / "other")
    (tmp_path / "other.ir.cbor").replace(tmp_path / "net.ir.cbor")
    with pytest.raises(PlanMismatch):
        tmmu.load(path)


def test_difference_is_what_tmmu_diff_says(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before, after = tmmu.plan(net(), X), tmmu.plan(net(), torch.ones(32, 32))
    paths = [str(plan.save(tmp_path / name)) for name, plan in (("one", before), ("two", after))]
    texts = []
    for more in ([], ["--json"]):
        assert run(["diff", *paths, *more]) == 0
        texts.append(capsys.readouterr().out)
    difference = before.diff(after, names=(paths[0], paths[1]))
    assert str(difference) == texts[0].rstrip()
    printed = json.loads(texts[1])
    assert json.loads(json.dumps(difference.to_dict())) == {key: printed[key] for key in difference.to_dict()}
    assert difference.eager.after == difference.report.eager.after
    assert difference.over("1%") == ("total", "stack", "eager total", "eager stack")
    assert difference.over(1) == difference.over("1") == difference.over("1%")
    assert difference.over(1 << 40) == ()
    for limit in (0.01, -1, True, None):
        with pytest.raises(InvalidConfig, match="is no limit"):
            difference.over(limit)  # type: ignore[arg-type]
    assert repr(difference).startswith("<PlanDiff ")
    assert difference._repr_html_().count("<table>") == 2
    assert before.diff(tmmu.plan(net(), X)).is_same
    with pytest.raises(InvalidConfig, match="str is no plan"):
        before.diff("two.plan.cbor")  # type: ignore[arg-type]


def test_report_is_the_page_of_tmmu_report(tmp_path: Path) -> None:
    plan, other = tmmu.plan(net(), X), tmmu.plan(net(), torch.ones(32, 32))
    page = plan.report(tmp_path, against=other)
    assert page == tmp_path / "Sequential.html"
    assert plan.report(tmp_path / "one.html").read_bytes() == page_html(
        [report_contents("Sequential", plan.plan, plan.graph)]
    )
    assert page.stat().st_size > (tmp_path / "one.html").stat().st_size


def test_page_of_a_notebook_escapes_names() -> None:
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.add_module("<b>", nn.Linear(32, 4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self._modules["<b>"](x)  # type: ignore[misc, no-any-return]

    page = tmmu.plan(Odd(), X)._repr_html_()
    assert "<td>&lt;b&gt;</td>" in page
    assert "<b>" not in page


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({"model_or_step": lambda x: x, "optimizer": "adamw"}, InvalidConfig, "are for a module"),
        ({"model_or_step": 3}, InvalidConfig, "int is no step"),
        ({"model_or_step": nn.Linear, "inputs": X}, InvalidConfig, "is neither a module nor a function"),
        ({"model_or_step": net(), "inputs": X, "device": "tpu"}, InvalidConfig, "no device 'tpu'"),
        ({"model_or_step": nn.LazyLinear(4), "inputs": X}, UnsupportedOp, "has no shape yet"),
        ({"model_or_step": net(), "inputs": X, "optimizer": "nothing"}, InvalidConfig, "no such optimizer"),
        ({"model_or_step": net(), "inputs": X.to_sparse()}, UnsupportedOp, "layout torch.sparse_coo"),
    ],
)
def test_errors_are_coded_exceptions(arguments: dict[str, Any], error: type[tmmu.TmmuError], text: str) -> None:
    with pytest.raises(error, match=text) as caught:
        tmmu.plan(**arguments)
    assert caught.value.code
    assert caught.value.fix


def test_import_is_lazy_and_names_are_listed() -> None:
    code = """
import sys, tmmu
assert dir(tmmu) == tmmu.__all__
assert tmmu.TmmuError.__module__ == "tmmu.errors"
assert "torch" not in sys.modules and "tmmu.api" not in sys.modules
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    with pytest.raises(AttributeError):
        tmmu.nothing  # noqa: B018
