"""The plan cache as ``tmmu plan`` uses it: what is served, what decides a key, what is damaged or forged."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.unit.cli.graphs import Shell, small
from tmmu import driver
from tmmu.cache import store
from tmmu.cache.entry import encode_entry
from tmmu.codec.read import read_graph, read_plan
from tmmu.driver import cache_folder
from tmmu.ir.graph import encode_graph

NET = """
import torch
from torch import nn

SCALE = 2

class Net(nn.Module):
    def __init__(self, width: int = 8, steps: int = 2) -> None:
        super().__init__()
        self.first = nn.Linear(width, width)
        self.second = nn.Linear(width, width)
        self.steps = torch.full((), steps)

    def forward(self, x):
        for _ in range(int(self.steps)):
            x = torch.relu(self.first(x)) * SCALE
        return self.second(x)

def model(width: int = 8, steps: int = 2):
    return Net(width, steps)

def inputs(batch: int = 2, width: int = 8):
    return (torch.zeros(batch, width),)

def loss(model, x):
    return model(x).sum()
"""

CONFIG = {
    "model_type": "gpt2",
    "architectures": ["GPT2LMHeadModel"],
    "n_layer": 1,
    "n_embd": 8,
    "n_head": 2,
    "vocab_size": 16,
    "n_positions": 16,
    "bos_token_id": 0,
    "eos_token_id": 0,
}


@pytest.fixture
def net(shell: Shell) -> Shell:
    """A folder with a model."""
    (shell.folder / "net.py").write_text(NET)
    return shell


@pytest.fixture
def untraced(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """A function after whose call tracing a model fails the test."""

    def forbid() -> None:
        module = import_module("tmmu.passes.capture.trace")
        monkeypatch.setattr(module, "trace", lambda *args: pytest.fail("the model is traced"))

    return forbid


def plan(shell: Shell, *options: object, target: str = "net.py") -> Any:
    done = shell.tmmu("plan", target, "--json", *options)
    assert done.code == 0, done.err
    return done.record


def origin(shell: Shell, *options: object, target: str = "net.py") -> str:
    return str(plan(shell, *options, target=target)["cache"]["origin"])


# -- warm plans


def test_warm_plan_packs_nothing_and_has_the_same_bytes(net: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    cold = net.tmmu("plan", "net.py")
    files = {name: (net.folder / name).read_bytes() for name in ("net.plan.cbor", "net.ir.cbor")}
    for name in files:
        (net.folder / name).unlink()
    monkeypatch.setattr(driver, "prepare_memory", lambda *_, **__: pytest.fail("the graph is planned"))
    warm = net.tmmu("plan", "net.py")
    assert (warm.code, warm.out, warm.err) == (0, cold.out, "")
    assert {name: (net.folder / name).read_bytes() for name in files} == files


def test_plan_says_where_it_came_from(net: Shell) -> None:
    assert plan(net)["cache"] == {"origin": "cold", "miss": "nothing is stored under this key", "unkept": ""}
    warm = plan(net)
    assert warm["cache"] == {"origin": "disk", "miss": "", "unkept": ""}
    assert "plan" not in warm["seconds"]
    assert {"capture", "judge"} <= set(warm["seconds"])


def test_no_cache_neither_looks_nor_stores(net: Shell) -> None:
    assert plan(net, "--no-cache")["cache"] is None
    assert store.entries(cache_folder()) == ()
    plan(net)
    assert plan(net, "--no-cache")["cache"] is None
    assert origin(net) == "disk"


def test_folder_and_output_do_not_decide_a_plan(net: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    plan(net)
    (net.folder / "moved").mkdir()
    (net.folder / "moved" / "net.py").write_text(NET)
    assert origin(net, "-o", "other.plan.cbor", "--ir", "other.ir.cbor", target="moved/net.py") == "disk"
    monkeypatch.chdir(net.folder / "moved")
    assert origin(net, "--reserve", "2GiB") == "disk"


OPTIONS = [
    ("--target", "cpu"),
    ("--mode", "forward"),
    ("--mode", "backward"),
    ("--preset", "train_full"),
    ("--seed", "1"),
    ("--arena", "activations=capacity:1GiB"),
    ("--nodes", "5"),
    ("--set", "batch=3"),
    ("--set", "width=16"),
]


def test_options_that_decide_a_plan_are_in_its_key(net: Shell) -> None:
    plan(net)
    for options in OPTIONS:
        assert origin(net, *options) == "cold", options
    for options in OPTIONS:
        assert origin(net, *options) == "disk", options


AGAIN = [("--seed", "1"), ("--preset", "train_full"), ("--arena", "activations=capacity:1GiB"), ("--nodes", "5")]
"""Options of planning alone, which leave the graph as it is."""


def test_stored_graph_of_a_configuration_is_planned_again_without_a_trace(
    shell: Shell, untraced: Callable[[], None]
) -> None:
    (shell.folder / "gpt2").mkdir()
    (shell.folder / "gpt2" / "config.json").write_text(json.dumps(CONFIG))
    digests = {options: plan(shell, "--no-cache", *options, target="hf:gpt2")["digest"] for options in AGAIN}
    plan(shell, target="hf:gpt2")
    untraced()
    for options in AGAIN:
        record = plan(shell, *options, target="hf:gpt2")
        assert (record["digest"], record["cache"]["origin"]) == (digests[options], "cold")
        assert "capture" not in record["seconds"]
        assert origin(shell, *options, target="hf:gpt2") == "disk"


EDITS = {
    "a number in forward": ("* SCALE", "* 3"),
    "a global": ("SCALE = 2", "SCALE = 3"),
    "the value of a constant": ("torch.full((), steps)", "torch.full((), steps + 1)"),
    "the class of a layer": ("self.second = nn.Linear(width, width)", "self.second = nn.Identity()"),
    "an operator": ("torch.relu", "torch.sigmoid"),
    "a default of the model": ("def model(width: int = 8", "def model(more: int = 1, width: int = 8"),
    "the size of an input": ("batch: int = 2", "batch: int = 3"),
    "lines": ("SCALE = 2", "SCALE = 2\n"),
    "the strides of an input": ("torch.zeros(batch, width)", "torch.zeros(width, batch).t()"),
    "frozen": ("return Net(width, steps)", "net = Net(width, steps); net.first.requires_grad_(False); return net"),
    "a switch of torch": ("SCALE = 2", "SCALE = 2; torch.backends.cuda.enable_flash_sdp(False)"),
    "a comment": ("SCALE = 2", "SCALE = 2  # twice"),
    "what the file does when it is read": ("SCALE = 2", "SCALE = 2; print(end='')"),
    "the loss": ("model(x).sum()", "model(x).mean()"),
}


@pytest.mark.parametrize("mode", ["backward", pytest.param("inference", marks=pytest.mark.slow)])
def test_stored_plan_is_that_of_the_edited_model(net: Shell, mode: str) -> None:
    """A plan from the cache and the graph written beside it equal those of the same file with ``--no-cache``."""
    try:
        plan(net, "--mode", mode)
        for name, (before, after) in EDITS.items():
            (net.folder / "net.py").write_text(NET.replace(before, after))
            cached = [plan(net, "--mode", mode) for _ in range(2)]
            graph_bytes = (net.folder / "net.ir.cbor").read_bytes()
            fresh = plan(net, "--mode", mode, "--no-cache")
            assert [record["digest"] for record in cached] == [fresh["digest"]] * 2, name
            assert cached[1]["cache"]["origin"] == "disk", name
            assert (net.folder / "net.ir.cbor").read_bytes() == graph_bytes, name
            torch.backends.cuda.enable_flash_sdp(True)
    finally:
        torch.backends.cuda.enable_flash_sdp(True)


def test_model_that_cannot_be_traced_is_not_remembered(net: Shell) -> None:
    (net.folder / "net.py").write_text(NET.replace("return self.second(x)", "raise ValueError('no')"))
    for _ in range(2):
        assert net.tmmu("plan", "net.py").code == 2
    assert store.entries(cache_folder()) == ()


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda path: path.write_bytes(path.read_bytes()[:-9]), "shorter than it says"),
        (lambda path: path.write_bytes(path.read_bytes()[:-1] + b"\0"), "not what was written"),
        (lambda path: path.write_bytes(b"x"), "no entry"),
        (lambda path: path.unlink(), "nothing is stored"),
    ],
)
def test_damaged_entry_is_planned_again(net: Shell, spoil: Callable[[Path], Any], reason: str) -> None:
    digest = plan(net)["digest"]
    (entry_file,) = store.entries(cache_folder())
    spoil(entry_file.path)
    again = plan(net)
    assert (again["digest"], again["cache"]["origin"]) == (digest, "cold")
    assert reason in again["cache"]["miss"]
    assert origin(net) == "disk"


def test_forged_plan_is_judged(net: Shell) -> None:
    """Every digest of the entry is right, and all buffers of the plan have one offset."""
    original = plan(net)
    (entry_file,) = store.entries(cache_folder())
    entry = store.read_entry(entry_file.path)
    graph, sound = read_graph(entry.graph), read_plan(entry.plan)
    forged = replace(sound, buffers=replace(sound.buffers, offset=(0,) * len(sound.buffers)))
    entry_file.path.write_bytes(encode_entry(entry.key, graph, forged))
    replanned = plan(net)
    assert replanned["digest"] == original["digest"]
    assert "the judge refused the stored plan" in replanned["cache"]["miss"]


def test_folder_that_cannot_be_written_is_reported_and_no_error(net: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    (net.folder / "file").touch()
    monkeypatch.setenv("TMMU_CACHE_DIR", str(net.folder / "file"))
    assert "file" in plan(net)["cache"]["unkept"]


def test_cache_folder_follows_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TMMU_CACHE_DIR", str(tmp_path))
    assert cache_folder() == tmp_path / "plans"
    monkeypatch.chdir(tmp_path.parent)
    monkeypatch.setenv("TMMU_CACHE_DIR", tmp_path.name)
    assert cache_folder() == tmp_path / "plans"
    monkeypatch.setenv("TMMU_CACHE_DIR", "")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "user"))
    assert cache_folder() in (
        (tmp_path / "user" / "tmmu" / "plans"),
        Path.home() / "Library" / "Caches" / "tmmu" / "plans",
    )


# -- targets whose files say all


def run_in_process(*arguments: str, torch: bool = False) -> Any:
    """The JSON of a command in a process of its own, which must import torch or must not."""
    program = (
        f"import sys; from tmmu.cli.app import run; code = run({list(arguments)}); "
        f"sys.exit(code or ('torch' in sys.modules) is not {torch})"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr or done.stdout
    return json.loads(done.stdout)


@pytest.mark.slow
def test_warm_configuration_needs_no_torch(shell: Shell) -> None:
    folder = shell.folder / "tiny"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG))
    cold = run_in_process("plan", "hf:tiny", "--batch", "2", "--json", torch=True)
    files = {name: (shell.folder / name).read_bytes() for name in ("tiny.plan.cbor", "tiny.ir.cbor")}
    warm = run_in_process("plan", "hf:tiny", "--batch", "2", "--json")
    assert (cold["cache"]["origin"], warm["cache"]["origin"]) == ("cold", "disk")
    assert warm["digest"] == cold["digest"]
    assert {name: (shell.folder / name).read_bytes() for name in files} == files
    assert run_in_process("cache", "why", "hf:tiny", "--batch", "2", "--json")["kept"] is True
    again = run_in_process("plan", "hf:tiny", "--batch", "2", "--seed", "9", "--json")
    assert (again["ir_hash"], again["cache"]["origin"]) == (cold["ir_hash"], "cold")
    assert again["digest"] != cold["digest"]
    answer = run_in_process("cache", "why", "hf:tiny/config.json", "--batch", "3", "--json")
    assert {"workload": ["batch 3", "batch 2"]} in [entry["parts"] for entry in answer["nearest"]]
    (folder / "config.json").write_text(json.dumps(CONFIG | {"n_head": 4}))
    answer = run_in_process("cache", "why", "hf:tiny", "--batch", "2", "--json")
    assert list(answer["nearest"][0]["parts"]) == ["model"]


class Exported(nn.Module):
    def __init__(self, factor: float) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.factor = factor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x) * self.factor


@pytest.mark.slow
def test_warm_exported_program_needs_no_torch_and_no_weights(shell: Shell) -> None:
    def export(factor: float) -> None:
        torch.export.save(torch.export.export(Exported(factor), (torch.zeros(2, 4),)), "net.pt2")

    export(2.0)
    cold = run_in_process("plan", "net.pt2", "--json", torch=True)
    warm = run_in_process("plan", "net.pt2", "--json")
    assert (warm["digest"], warm["cache"]["origin"]) == (cold["digest"], "disk")
    export(2.0)  # other random weights
    assert run_in_process("cache", "why", "net.pt2", "--json")["kept"] is True
    export(3.0)
    assert list(run_in_process("cache", "why", "net.pt2", "--json")["nearest"][0]["parts"]) == ["model"]


def test_graph_file_is_planned_once(shell: Shell) -> None:
    shell.graph(small())
    assert [origin(shell, "-o", "x.plan.cbor", target="small.ir.cbor") for _ in range(2)] == ["cold", "disk"]
    assert origin(shell, "-o", "x.plan.cbor", "--nodes", 9, target="small.ir.cbor") == "cold"
    graph = small()
    renamed = replace(graph, notes=replace(graph.notes, name="other"))
    Path("small.ir.cbor").write_bytes(encode_graph(renamed))
    record = plan(shell, "-o", "x.plan.cbor", target="small.ir.cbor")
    assert (record["cache"]["origin"], record["model"]) == ("cold", "other")


# -- another process


@pytest.mark.slow
def test_key_is_the_same_under_other_hash_seeds(net: Shell) -> None:
    program = "from tmmu.cli.app import run; run(['cache', 'why', 'net.py', '--json'])"
    keys = set()
    for seed in ("0", "1"):
        env = os.environ | {"PYTHONHASHSEED": seed}
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, env=env)
        keys.add(json.loads(done.stdout)["key"])
    assert len(keys) == 1
    assert None not in keys


# -- ls, why, verify, prune
