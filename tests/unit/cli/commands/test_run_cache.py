"""``tmmu run`` and the plan cache: a plan that was made once is found by its graph, and no entry can spoil a run."""

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
def planned(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The graph hashes that were planned, in order."""
    asked: list[str] = []
    original = pipeline.prepare_memory

    def counted(graph: Any, **how: Any) -> Any:
        asked.append(graph.ir_hash.hex())
        return original(graph, **how)

    monkeypatch.setattr(pipeline, "prepare_memory", counted)
    return asked


@pytest.fixture
def results(monkeypatch: pytest.MonkeyPatch) -> list[torch.Tensor]:
    """What each run returned."""
    seen: list[torch.Tensor] = []
    original = Executor.run

    def run(self: Executor, *args: Any, **kwargs: Any) -> tuple[torch.Tensor, ...]:
        found = original(self, *args, **kwargs)
        seen.extend(one.clone() for one in found)
        return found

    monkeypatch.setattr(Executor, "run", run)
    return seen


def ran(shell: Shell, *options: object, target: str = "net.py") -> dict[str, Any]:
    done = shell.tmmu("run", target, "--json", *options)
    assert done.code == 0, done.err
    record: dict[str, Any] = json.loads(done.out)
    return record


def test_the_second_run_plans_nothing_and_is_the_same(
    net: Shell, planned: list[str], results: list[torch.Tensor]
) -> None:
    cold, warm = ran(net), ran(net)
    assert cold.pop("cache") == {"origin": "cold", "miss": "nothing is stored under this key", "unkept": ""}
    assert warm.pop("cache") == {"origin": "disk", "miss": "", "unkept": ""}
    assert len(planned) == 1
    assert "plan" in cold.pop("seconds")
    assert {"capture", "judge", "run"} <= (took := warm.pop("seconds")).keys()
    assert not {"check", "plan"} & took.keys()
    assert warm == cold
    assert results[0].equal(results[1])
    assert [path.name for path in net.folder.iterdir() if path.suffix == ".cbor"] == []


def test_what_decides_a_plan_is_another_plan(net: Shell, planned: list[str]) -> None:
    ways: list[tuple[str, ...]] = [(), ("--preset", "train_full"), ("--seed", "1"), ("--nodes", "5")]
    ways += [("--arena", "parameters=alignment:512"), ("--mode", "forward")]
    for origin in ("cold", "disk"):
        assert [ran(net, *way)["cache"]["origin"] for way in ways] == [origin] * len(ways)
    (net.folder / "net.py").write_text(NET.replace("torch.relu", "torch.sigmoid"))
    assert ran(net)["cache"]["origin"] == "cold"
    assert len(planned) == len(ways) + 1


def test_no_cache_neither_looks_nor_keeps(net: Shell, planned: list[str]) -> None:
    assert ran(net, "--no-cache")["cache"] is None
    assert store.entries(cache_folder()) == ()
    ran(net)
    assert ran(net, "--no-cache")["cache"] is None
    assert len(planned) == 3


def test_a_plan_that_is_given_asks_no_cache(net: Shell, planned: list[str]) -> None:
    assert net.tmmu("plan", "net.py", "--target", "cpu", "-o", "p.plan.cbor", "--no-cache").code == 0
    assert ran(net, "--plan", "p.plan.cbor")["cache"] is None
    assert (len(planned), store.entries(cache_folder())) == (1, ())


def test_a_copy_under_another_name_has_the_plan_and_its_own_name(net: Shell, planned: list[str]) -> None:
    ran(net)
    (net.folder / "copy.py").write_text(NET)
    found = ran(net, target="copy.py")
    assert (found["name"], found["cache"]["origin"], len(planned)) == ("copy", "disk", 1)


def test_weights_that_stream_have_the_plan_that_is_kept(net: Shell, planned: list[str]) -> None:
    ran(net)
    streamed = ran(net, "--ring", "--budget", "1KiB", "--check")
    assert (streamed["cache"]["origin"], len(planned)) == ("disk", 1)
    assert streamed["ring"]["host_bytes"] > 0


SPOILT: list[tuple[Callable[[Path], Any], str]] = [
    (lambda path: path.write_bytes(path.read_bytes()[:-9]), "shorter than it says"),
    (lambda path: path.write_bytes(path.read_bytes()[:-1] + b"\0"), "not what was written"),
    (lambda path: path.write_bytes(b"x"), "no entry"),
    (lambda path: os.truncate(path, 0), "shorter than it says"),
]


@pytest.mark.parametrize(("spoil", "why"), SPOILT)
def test_a_spoilt_entry_is_a_miss_and_is_made_again(
    net: Shell, planned: list[str], spoil: Callable[[Path], Any], why: str
) -> None:
    digest = ran(net)["plan"]
    (one,) = store.entries(cache_folder())
    spoil(one.path)
    again = ran(net, "--check")
    assert (again["plan"], again["cache"]["origin"]) == (digest, "cold")
    assert why in again["cache"]["miss"]
    assert ran(net)["cache"]["origin"] == "disk"
    assert len(planned) == 2


def test_a_forged_plan_is_judged_before_it_runs(net: Shell) -> None:
    """Every digest of the entry is right, and all its buffers lie on one another."""
    digest = ran(net)["plan"]
    (one,) = store.entries(cache_folder())
    entry = store.read_entry(one.path)
    sound = read_plan(entry.plan)
    forged = replace(sound, buffers=replace(sound.buffers, offset=(0,) * len(sound.buffers)))
    one.path.write_bytes(encode_entry(entry.key, read_graph(entry.graph), forged))
    found = ran(net)
    assert found["plan"] == digest
    assert found["cache"]["miss"].startswith("the judge refused the stored plan: ")


def test_a_sound_plan_of_another_graph_is_no_plan_of_this_one(net: Shell) -> None:
    digest = ran(net)["plan"]
    (one,) = store.entries(cache_folder())
    one.path.write_bytes(encode_entry(store.read_entry(one.path).key, *program()))
    found = ran(net)
    assert (found["plan"], found["cache"]["origin"]) == (digest, "cold")
    assert "the plan is for graph" in found["cache"]["miss"]


def test_a_terminal_is_told_where_the_plan_came_from(net: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = net.tmmu("run", "net.py").out
    assert "cache" not in plain
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert "cache: disk" in net.tmmu("run", "net.py").out
