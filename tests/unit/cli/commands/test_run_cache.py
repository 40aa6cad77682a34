"""``tmmu run`` and the plan cache: a plan is found by its graph, and no entry makes a run wrong."""

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.unit.cache.cached import program
from tests.unit.cli.graphs import Shell
from tmmu import driver as pipeline
from tmmu.cache import store
from tmmu.cache.entry import encode_entry
from tmmu.codec.read import read_graph, read_plan
from tmmu.driver import cache_folder
from tmmu.runtime.execute.executor import Executor

NET = """
import torch
from torch import nn
class Net(nn.Module):
    def __init__(self, width: int = 8):
        super().__init__()
        self.first = nn.Linear(width, width)
        self.second = nn.Linear(width, width)
    def forward(self, x):
        return self.second(torch.relu(self.first(x)))
def loss(model, x):
    return model(x).sum()
model = Net
inputs = (torch.zeros(2, 8),)
"""


@pytest.fixture
def net(shell: Shell) -> Shell:
    """A folder with a model."""
    (shell.folder / "net.py").write_text(NET)
    return shell


@pytest.fixture
def planned_hashes(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Hashes of the graphs that are planned, in order."""
    hashes: list[str] = []
    original = pipeline.prepare_memory

    def prepare(planned_graph: Any, **options: Any) -> Any:
        hashes.append(planned_graph.ir_hash.hex())
        return original(planned_graph, **options)

    monkeypatch.setattr(pipeline, "prepare_memory", prepare)
    return hashes


@pytest.fixture
def results(monkeypatch: pytest.MonkeyPatch) -> list[torch.Tensor]:
    """Outputs of all runs, in order."""
    outputs: list[torch.Tensor] = []
    original = Executor.run

    def run(self: Executor, *args: Any, **kwargs: Any) -> tuple[torch.Tensor, ...]:
        returned = original(self, *args, **kwargs)
        outputs.extend(tensor.clone() for tensor in returned)
        return returned

    monkeypatch.setattr(Executor, "run", run)
    return outputs


def run_record(shell: Shell, *options: object, target: str = "net.py") -> dict[str, Any]:
    done = shell.tmmu("run", target, "--json", *options)
    assert done.code == 0, done.err
    record: dict[str, Any] = json.loads(done.out)
    return record


def test_second_run_plans_nothing_and_is_the_same(
    net: Shell, planned_hashes: list[str], results: list[torch.Tensor]
) -> None:
    cold, warm = run_record(net), run_record(net)
    assert cold.pop("cache") == {"origin": "cold", "miss": "nothing is stored under this key", "unkept": ""}
    assert warm.pop("cache") == {"origin": "disk", "miss": "", "unkept": ""}
    assert len(planned_hashes) == 1
    assert "plan" in cold.pop("seconds")
    assert {"capture", "judge", "run"} <= (took := warm.pop("seconds")).keys()
    assert not {"check", "plan"} & took.keys()
    assert cold.pop("allocation_time_ns") > 0
    assert warm.pop("allocation_time_ns") is None
    assert warm == cold
    assert results[0].equal(results[1])
    assert [path.name for path in net.folder.iterdir() if path.suffix == ".cbor"] == []


def test_options_and_edits_that_decide_a_plan_are_in_its_key(net: Shell, planned_hashes: list[str]) -> None:
    ways: list[tuple[str, ...]] = [(), ("--preset", "train_full"), ("--seed", "1"), ("--nodes", "5")]
    ways += [("--arena", "parameters=alignment:512"), ("--mode", "forward")]
    for origin in ("cold", "disk"):
        assert [run_record(net, *way)["cache"]["origin"] for way in ways] == [origin] * len(ways)
    (net.folder / "net.py").write_text(NET.replace("torch.relu", "torch.sigmoid"))
    assert run_record(net)["cache"]["origin"] == "cold"
    assert len(planned_hashes) == len(ways) + 1


def test_no_cache_neither_looks_nor_stores(net: Shell, planned_hashes: list[str]) -> None:
    assert run_record(net, "--no-cache")["cache"] is None
    assert store.entries(cache_folder()) == ()
    run_record(net)
    assert run_record(net, "--no-cache")["cache"] is None
    assert len(planned_hashes) == 3


def test_plan_and_run_of_a_python_file_share_an_entry(net: Shell, planned_hashes: list[str]) -> None:
    assert net.tmmu("plan", "net.py", "--device", "cpu").code == 0
    assert (run_record(net)["cache"]["origin"], len(planned_hashes)) == ("disk", 1)


def test_plan_option_asks_no_cache(net: Shell, planned_hashes: list[str]) -> None:
    assert net.tmmu("plan", "net.py", "--device", "cpu", "-o", "p.plan.cbor", "--no-cache").code == 0
    assert run_record(net, "--plan", "p.plan.cbor")["cache"] is None
    assert (len(planned_hashes), store.entries(cache_folder())) == (1, ())


def test_copy_of_a_model_shares_the_plan_under_its_own_name(net: Shell, planned_hashes: list[str]) -> None:
    run_record(net)
    (net.folder / "copy.py").write_text(NET)
    copy = run_record(net, target="copy.py")
    assert (copy["name"], copy["cache"]["origin"], len(planned_hashes)) == ("copy", "disk", 1)


def test_ring_run_shares_the_stored_plan(net: Shell, planned_hashes: list[str]) -> None:
    run_record(net)
    streamed = run_record(net, "--ring", "--budget", "1KiB", "--check")
    assert (streamed["cache"]["origin"], len(planned_hashes)) == ("disk", 1)
    assert streamed["ring"]["host_bytes"] > 0


DAMAGE: list[tuple[Callable[[Path], Any], str]] = [
    (lambda path: path.write_bytes(path.read_bytes()[:-9]), "shorter than it says"),
    (lambda path: path.write_bytes(path.read_bytes()[:-1] + b"\0"), "not what was written"),
    (lambda path: path.write_bytes(b"x"), "no entry"),
    (lambda path: os.truncate(path, 0), "shorter than it says"),
]


@pytest.mark.parametrize(("spoil", "reason"), DAMAGE)
def test_damaged_entry_is_a_miss_and_is_planned_again(
    net: Shell, planned_hashes: list[str], spoil: Callable[[Path], Any], reason: str
) -> None:
    digest = run_record(net)["plan"]
    (entry_file,) = store.entries(cache_folder())
    spoil(entry_file.path)
    again = run_record(net, "--check")
    assert (again["plan"], again["cache"]["origin"]) == (digest, "cold")
    assert reason in again["cache"]["miss"]
    assert run_record(net)["cache"]["origin"] == "disk"
    assert len(planned_hashes) == 2


def test_forged_plan_is_judged_before_it_runs(net: Shell) -> None:
    """Every digest of the entry is right, and all buffers of the plan have one offset."""
    digest = run_record(net)["plan"]
    (entry_file,) = store.entries(cache_folder())
    entry = store.read_entry(entry_file.path)
    sound = read_plan(entry.plan)
    forged = replace(sound, buffers=replace(sound.buffers, offset=(0,) * len(sound.buffers)))
    entry_file.path.write_bytes(encode_entry(entry.key, read_graph(entry.graph), forged))
    replanned = run_record(net)
    assert replanned["plan"] == digest
    assert replanned["cache"]["miss"].startswith("the judge refused the stored plan: ")


def test_sound_plan_of_another_graph_is_a_miss(net: Shell) -> None:
    digest = run_record(net)["plan"]
    (entry_file,) = store.entries(cache_folder())
    entry_file.path.write_bytes(encode_entry(store.read_entry(entry_file.path).key, *program()))
    replanned = run_record(net)
    assert (replanned["plan"], replanned["cache"]["origin"]) == (digest, "cold")
    assert "the plan is for graph" in replanned["cache"]["miss"]


def test_terminal_shows_where_the_plan_came_from(net: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = net.tmmu("run", "net.py").out
    assert "cache" not in plain
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert "cache: disk" in net.tmmu("run", "net.py").out
