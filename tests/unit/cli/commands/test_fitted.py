"""Plans of rewritten graphs on the command line: verified with their base, run without it, shown and compared."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.fits import TOKEN, early_updates_and_reruns, fit_plan
from tests.unit.cli.graphs import Shell
from tests.unit.ir.samples import edit
from tests.unit.judge.rewrite.host_copies import copied, trips
from tmmu.cli.app import run
from tmmu.codec.fitted import write_fitted
from tmmu.codec.load import load_graph, load_plan
from tmmu.ir.plan import encode_plan

CLASS = """
import torch
from torch import nn
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = nn.BatchNorm1d(8), nn.Linear(8, 16), nn.Linear(16, 8)
    def forward(self, x):
        wide = nn.functional.gelu(self.up(self.norm(x)))
        return x + self.down(nn.functional.dropout(wide, 0.5))
"""
NET = (
    CLASS
    + """
def loss(model, x):
    return model(x).square().mean()
model = Net
inputs = (torch.zeros(4, 8),)
"""
)
TRAIN = (
    CLASS
    + """
net = Net()
optimizer = torch.optim.AdamW(net.parameters(), foreach=True)
schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
generator = torch.Generator().manual_seed(3)
memory = {"mean": torch.zeros(())}
inputs = torch.randn(4, 8)
def step(batch):
    optimizer.zero_grad()
    loss = net(batch + torch.rand(8, generator=generator)).square().mean()
    memory["mean"] = memory["mean"].mul(0.5).sub(loss.detach())
    loss.backward()
    optimizer.step()
    schedule.step()
    return loss
"""
)
ADAMW = ("--mode", "backward", "--optimizer", "adamw:foreach")
GELU = {"gelu.default": "gelu_backward.default"}


def write_plan(folder: Path, name: str, reruns: Mapping[str, str]) -> None:
    base = load_graph(folder / f"{name}.ir.cbor")
    plan = fit_plan(base, early_updates_and_reruns(base, reruns))
    write_fitted(folder, name, base=base, plan=plan, token=TOKEN)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model, a step of the user's, and plans of both: early updates, and what the gradient reads run again.

    Of the step, also its loss and what it keeps of it, once all else is done: outputs lie in other buffers.
    """
    folder = tmp_path_factory.mktemp("fitted")
    (folder / "net.py").write_text(NET)
    (folder / "train.py").write_text(TRAIN)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert run(["plan", "net.py", "--device", "cpu", *ADAMW, "--no-cache"]) == 0
        assert run(["plan", "train.py:step", "--device", "cpu", "-o", "train.plan.cbor", "--no-cache"]) == 0
    write_plan(folder, "net", GELU)
    write_plan(folder, "train", GELU | {"mean.default": "", "sub.Tensor": ""})
    return folder


@pytest.fixture
def fitted(shell: Shell, files: Path) -> Shell:
    """The files, in the folder where commands run."""
    shutil.copytree(files, shell.folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
    return shell


def record_of(shell: Shell, *arguments: object) -> dict[str, Any]:
    done = shell.tmmu(*arguments, "--json")
    assert done.code == 0, done.err
    record: dict[str, Any] = json.loads(done.out)
    return record


def test_plan_is_verified_with_its_base(fitted: Shell) -> None:
    done = fitted.tmmu("verify", "net.fit.plan.cbor", "--base", "net.ir.cbor")
    assert (done.code, done.err) == (0, "")
    plan, base = load_plan(Path("net.fit.plan.cbor")), load_graph(Path("net.ir.cbor"))
    assert plan.fit is not None
    assert done.out.splitlines() == [
        f"sound: net.fit.plan.cbor, {len(plan.order)} ops, {len(plan.buffers)} buffers",
        f"means its base: net.ir.cbor, {len(base.ops)} ops; run again 1, parts of lists 54",
    ]
    assert record_of(fitted, "verify", "net.fit.plan.cbor", "--base", "net.ir.cbor")["meaning_checked"] is True
    Path("net.fit.ir.cbor").unlink()
    assert fitted.tmmu("verify", "net.fit.plan.cbor", "--base", "net.ir.cbor") == done
    refused = fitted.tmmu("verify", "net.fit.plan.cbor")
    assert (refused.code, refused.out, refused.err.count("\n")) == (2, "", 1)
    assert "INVALID_CONFIG: cannot read net.fit.ir.cbor: there is no such file" in refused.err
    assert "name the graph that it was made of: --base net.ir.cbor)" in refused.err


def test_base_that_is_named_as_the_graph_of_the_plan_is_known(fitted: Shell) -> None:
    done = fitted.tmmu("verify", "net.fit.plan.cbor", "--ir", "net.ir.cbor")
    assert (done.code, done.out) == (3, "")
    assert done.err == (
        "tmmu: PLAN_MISMATCH: net.ir.cbor is the graph that the one of net.fit.plan.cbor was made of "
        "(name it with --base net.ir.cbor)\n"
    )
    other = fitted.tmmu("verify", "net.fit.plan.cbor", "--ir", "train.ir.cbor")
    assert other.err.startswith("tmmu: PLAN_MISMATCH: net.fit.plan.cbor on train.ir.cbor: [ir-hash]")


def test_without_its_base_the_meaning_is_said_to_be_open(fitted: Shell) -> None:
    done = fitted.tmmu("verify", "net.fit.plan.cbor")
    assert done.code == 0
    assert done.out.splitlines()[1] == (
        "meaning not checked: give --base net.ir.cbor, the graph that this one was made of"
    )
    assert record_of(fitted, "verify", "net.fit.plan.cbor")["meaning_checked"] is False
    assert record_of(fitted, "verify", "net.plan.cbor")["meaning_checked"] is None


def test_another_base_is_a_mismatch(fitted: Shell) -> None:
    done = fitted.tmmu("verify", "net.fit.plan.cbor", "--base", "train.ir.cbor")
    assert (done.code, done.out) == (3, "")
    assert done.err.startswith("tmmu: PLAN_MISMATCH: net.fit.plan.cbor on train.ir.cbor: the plan rewrites graph ")
    assert done.err.count("\n") == 1


def test_base_of_a_graph_as_it_is_is_refused(fitted: Shell) -> None:
    done = fitted.tmmu("verify", "net.plan.cbor", "--base", "net.ir.cbor")
    assert (done.code, done.err.startswith("tmmu: INVALID_CONFIG: --base: net.plan.cbor ")) == (2, True)
    done = fitted.tmmu("verify", "net.fit.plan.cbor", "--base", "nothing.ir.cbor")
    assert (done.code, done.err.startswith("tmmu: INVALID_CONFIG: cannot read nothing.ir.cbor: ")) == (2, True)


def test_model_runs_in_the_plan_with_its_own_bits(fitted: Shell) -> None:
    for name in ("net.ir.cbor", "net.fit.ir.cbor"):
        Path(name).unlink()
    record = record_of(
        fitted, "run", "net.py", *ADAMW[2:], "--plan", "net.fit.plan.cbor", "--check", "--sanitize", "--no-cache"
    )
    assert record["checked"] == record["same"] + record["near"] > 20
    assert record["near"] == 0
    assert record["steps"] == len(load_plan(Path("net.fit.plan.cbor")).order)
    assert (record["fit"]["again"], record["fit"]["levers"]) == (1, ["early updates"])
    done = fitted.tmmu("run", "net.py", *ADAMW[2:], "--plan", "net.fit.plan.cbor", "--no-cache")
    assert "\nrewritten: run again 1 (256 B written again, " in done.out


@pytest.mark.parametrize("model", ["net.py", "train.py:step"])
def test_values_that_were_on_the_host_have_their_own_bits(fitted: Shell, model: str) -> None:
    """Copies beside the ops, and as ops under the sanitizer; a run of the user's step twice."""
    file, options = ("net", ADAMW[2:]) if model == "net.py" else ("train", ())
    base = load_graph(Path(f"{file}.ir.cbor"))
    rewrite = copied(base, trips(base))
    write_fitted(Path(), file, base=base, plan=fit_plan(base, rewrite), token=TOKEN)
    assert rewrite.kind.count("to_host") > 4
    arguments = ("run", model, *options, "--plan", f"{file}.fit.plan.cbor", "--check", "--sanitize", "--no-cache")
    record = record_of(fitted, *arguments)
    assert record["checked"] == record["same"] > 20
    assert record["near"] == 0
    assert record["peak_bytes"]["host"] > 0
    assert record["fit"]["from_host"] == rewrite.kind.count("from_host")


def test_step_runs_twice_in_the_plan_with_its_own_bits(fitted: Shell) -> None:
    """What it returns and keeps lies elsewhere than in its base; numbers and draws are those of each step."""
    done = fitted.tmmu("verify", "train.fit.plan.cbor", "--base", "train.ir.cbor")
    assert "run again 3, " in done.out
    base, rewritten = (load_graph(Path(name)) for name in ("train.ir.cbor", "train.fit.ir.cbor"))
    places = [[graph.values.buffer[value] for value in graph.outputs] for graph in (base, rewritten)]
    assert sum(old != new for old, new in zip(*places, strict=True)) == 2
    record = record_of(
        fitted, "run", "train.py:step", "--plan", "train.fit.plan.cbor", "--check", "--sanitize", "--no-cache"
    )
    assert (record["runs"], record["near"]) == (2, 0)
    assert record["checked"] == record["same"] > 60
    assert record["numbers"] > 0


def test_plan_of_another_model_is_a_mismatch(fitted: Shell) -> None:
    Path("net.py").write_text(NET.replace("16", "24"))
    done = fitted.tmmu("run", "net.py", *ADAMW[2:], "--plan", "net.fit.plan.cbor", "--no-cache")
    assert done.code == 3
    assert done.err.startswith("tmmu: PLAN_MISMATCH: the plan rewrites graph ")


def test_plan_whose_rows_make_another_graph_is_not_run(fitted: Shell) -> None:
    plan = load_plan(Path("net.fit.plan.cbor"))
    assert plan.fit is not None
    row = plan.fit.rewrite.kind.index("rerun")
    broken = edit(plan, "fit.rewrite.origin", plan.fit.rewrite.origin[row - 1], row)
    Path("net.fit.plan.cbor").write_bytes(encode_plan(broken))
    done = fitted.tmmu("run", "net.py", *ADAMW[2:], "--plan", "net.fit.plan.cbor", "--no-cache")
    assert (done.code, "PLAN_UNSOUND: its key fit makes graph " in done.err) == (3, True)
    done = fitted.tmmu("verify", "net.fit.plan.cbor", "--base", "net.ir.cbor")
    assert (done.code, "PLAN_UNSOUND: net.fit.plan.cbor on net.ir.cbor: its key fit makes" in done.err) == (3, True)


def test_what_was_rewritten_is_shown(fitted: Shell) -> None:
    done = fitted.tmmu("show", "net.fit.plan.cbor")
    line = next(line for line in done.out.splitlines() if line.startswith("rewritten: "))
    assert line.startswith(
        "rewritten: run again 1 (256 B written again, 0 FLOPs more, about 4.0 % more time), parts of lists 54; "
        "levers: early updates; for 1.0 MiB; of graph "
    )
    assert any(line.startswith("run as it is: ") for line in done.out.splitlines())
    assert "rewritten" not in fitted.tmmu("show", "net.plan.cbor").out
    record = record_of(fitted, "show", "net.fit.plan.cbor", "--ops", "--trace", "--peak", "--plot")
    assert (record["fit"]["again"], record["fit"]["bytes"], record["fit"]["budget_bytes"]) == (1, 256, 1 << 20)
    assert record["fit"]["base_hash"] == load_graph(Path("net.ir.cbor")).ir_hash.hex()
    assert record_of(fitted, "show", "net.plan.cbor")["fit"] is None


@pytest.mark.parametrize(
    "arguments",
    [
        ("report", "net.fit.plan.cbor", "--against", "net.plan.cbor"),
        ("export", "net.fit.plan.cbor", "--to", "perfetto"),
        ("export", "net.fit.plan.cbor", "--to", "csv"),
        ("diff", "net.plan.cbor", "net.fit.plan.cbor"),
        ("show", "net.fit.plan.cbor", "--semantics"),
        ("plan", "net.fit.ir.cbor", "-o", "again.plan.cbor"),
    ],
)
def test_every_command_takes_such_a_plan(fitted: Shell, arguments: tuple[str, ...]) -> None:
    done = fitted.tmmu(*arguments)
    assert (done.code, done.err) == (0, "")
