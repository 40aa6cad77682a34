"""The golden case with a ring: its ring is planned, judged and recorded, and a change is named."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.golden.graphs import FOLDER, LAYERS
from tests.unit.cli.graphs import Shell
from tmmu.cli.app import run
from tmmu.codec.read import read_graph
from tmmu.errors import ArenaTooSmall
from tmmu.golden import replay, store
from tmmu.golden.cases import CONFIGS, PlanConfig, read_cases
from tmmu.golden.difference import first_difference
from tmmu.ir.plan import Plan
from tmmu.ir.ring import Copy, VisitRef
from tmmu.judge.check import check_plan
from tmmu.planner.arenas import default_arenas
from tmmu.planner.prepare import prepare_memory
from tmmu.planner.ring.prepare import RingRequest, prepare_ring
from tmmu.planner.token import token_from_seed

pytestmark = pytest.mark.slow

GRAPH = read_graph(FOLDER / "weight-ring.ir.cbor")
PLANS = store.decode_plans((FOLDER / "weight-ring.plans.cbor").read_bytes())
BACKWARD = PlanConfig(preset="train_full", mode="backward")
CASE = '[weight-ring]\nreason = "streams"\nring = "150KiB"\nseeds = [0, 7]\n'


@pytest.fixture(scope="module")
def ring_files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of golden files with this case alone, recorded; only to be copied."""
    folder = tmp_path_factory.mktemp("ring") / "golden"
    folder.mkdir()
    (folder / "cases.toml").write_text(CASE)
    shutil.copy(FOLDER / "weight-ring.ir.cbor", folder)
    assert run(["golden", "update", "--jobs", "1", "--dir", str(folder)]) == 0
    return folder


@pytest.fixture
def ring_folder(
    ring_files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Shell:
    """The program in a folder with a copy of ``ring_files``."""
    shutil.copytree(ring_files, tmp_path / "golden")
    monkeypatch.chdir(tmp_path)
    return Shell(tmp_path, capsys)


def check(shell: Shell) -> Any:
    return shell.tmmu("golden", "check", "--jobs", 1)


def test_recorded_plans_of_the_ring_case_are_sound() -> None:
    assert set(PLANS) == set(CONFIGS)
    for plan in PLANS.values():
        assert plan.ring
        assert (plan.ring.policy, plan.ring.capacity) == ("cyclic", 150 << 10)
        assert not check_plan(GRAPH, plan, token=token_from_seed(0))
    rings = [plan.ring for plan in PLANS.values()]
    assert len({(ring.blocks, ring.visits, ring.copies) for ring in rings if ring}) == 3, "one for each mode"


def test_ring_case_has_what_a_ring_planner_can_get_wrong() -> None:
    ring = PLANS[BACKWARD].ring
    assert ring
    assert {block.resident for block in ring.blocks} == {True, False}
    assert len(ring.copies) > len({ring.visits[copy.visit].block for copy in ring.copies}), "some stream twice"
    assert {when.lag for copy in ring.copies for when in copy.waits} == {0, 1}
    assert max(len(copy.waits) for copy in ring.copies) > 2
    assert any(copy.start.visit < copy.visit - 1 for copy in ring.copies if not copy.start.lag), "some run ahead"
    assert any(len(block.members) > 1 for block in ring.blocks)
    assert len(set(LAYERS.values())) > 5
    forward = PLANS[PlanConfig(preset="train_full", mode="forward")].ring
    assert forward
    assert next(block for block in forward.blocks if block.name == "h.2").resident, "the gradient reads its weight"


def test_ring_is_the_same_under_every_token() -> None:
    """So one ring stands for all seeds of a case."""
    for seed in (7, 2**64 - 1):
        token = token_from_seed(seed)
        plan = prepare_memory(GRAPH, mode="inference", preset="inference", token=token, arenas=default_arenas())
        streamed_plan = prepare_ring(GRAPH, plan, RingRequest(capacity=150 << 10))
        assert streamed_plan.ring == PLANS[PlanConfig(preset="inference", mode="inference")].ring
        text = (FOLDER / "weight-ring.digests.txt").read_text()
        row = store.parse_digests(text)[seed, PlanConfig(preset="inference", mode="inference")]
        assert row[-1] == streamed_plan.digest[:16].hex()


def test_changed_ring_is_named_and_takes_a_minor_version(ring_folder: Shell) -> None:
    Path("golden/cases.toml").write_text(CASE.replace("150KiB", "200KiB"))
    done = check(ring_folder)
    assert done.code == 3
    moved = [line for line in done.out.splitlines() if " plan moved: " in line]
    assert len(moved) == 9
    assert "the ring's ring cyclic capacity 204800 alignment 256 depth" in moved[0]
    assert ", was ring cyclic capacity 153600 alignment 256 depth" in moved[0]
    assert " (seed 0, 7)" in moved[0]
    assert ring_folder.tmmu("golden", "update", "--jobs", 1).out.splitlines()[-1].startswith("minor version: ")
    assert "ring cyclic capacity 204800 " in Path("golden/weight-ring.plan.txt").read_text()
    assert check(ring_folder).code == 0


def test_ring_that_comes_or_goes_is_named() -> None:
    plan = PLANS[BACKWARD]
    bare = replace(plan, ring=None)
    line = "ring cyclic capacity 153600 alignment 256 depth 0"
    assert first_difference(GRAPH, "plan", bare, plan) == f"the ring's {line}, was not there"
    assert first_difference(GRAPH, "plan", plan, bare) == f"the ring's not there, was {line}"


LIES: dict[str, tuple[Callable[[Plan], Plan], str]] = {
    "an address": (lambda plan: with_block(plan, 10, address=0), "[ring-"),
    "a copy too early": (lambda plan: with_copy(plan, 3, start=VisitRef(visit=1, lag=0)), "[ring-starts]"),
    "a wait for nobody": (lambda plan: with_copy(plan, 3, waits=()), "[ring-"),
}


def with_block(plan: Plan, index: int, **fields: Any) -> Plan:
    assert plan.ring
    blocks = list(plan.ring.blocks)
    blocks[index] = replace(blocks[index], **fields)
    return replace(plan, ring=replace(plan.ring, blocks=tuple(blocks)))


def with_copy(plan: Plan, index: int, **fields: Any) -> Plan:
    assert plan.ring
    copies: list[Copy] = list(plan.ring.copies)
    copies[index] = replace(copies[index], **fields)
    return replace(plan, ring=replace(plan.ring, copies=tuple(copies)))


@pytest.mark.parametrize("lie", LIES)
def test_unsound_ring_is_found_by_the_judge(ring_folder: Shell, monkeypatch: pytest.MonkeyPatch, lie: str) -> None:
    broken, rule = LIES[lie]
    planned = replay.prepare_ring
    monkeypatch.setattr(replay, "prepare_ring", lambda *request: broken(planned(*request)))
    out = check(ring_folder).out
    assert f"weight-ring: train_full/backward: disagreement: seed 0: the judge refuses the plan: {rule}" in out
    assert "GOLDEN_MISMATCH" in ring_folder.tmmu("golden", "update", "--jobs", 1).err


def test_ring_that_does_not_fit_is_a_refusal_that_is_recorded(ring_folder: Shell) -> None:
    Path("golden/cases.toml").write_text(CASE.replace("150KiB", "112KiB"))
    out = check(ring_folder).out
    assert "weight-ring: train_full/forward: refusal: is now refused with ARENA_TOO_SMALL, was planned" in out
    assert "disagreement" not in out
    assert "weight-ring: train_full/inference: plan moved: the ring's " in out


def test_refusal_of_weights_that_all_fit_is_found(ring_folder: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    def timid(*request: Any) -> Plan:
        raise ArenaTooSmall("no ring fits for me")

    monkeypatch.setattr(replay, "prepare_ring", timid)
    assert "disagreement" not in check(ring_folder).out
    Path("golden/cases.toml").write_text(CASE.replace("150KiB", "1MiB"))
    message = "disagreement: seed 0: the planner refuses what by the simulator's slots fits: no ring fits for me"
    assert message in check(ring_folder).out


def test_ring_of_a_case_is_read_from_its_table() -> None:
    rings = {case.name: case.ring for case in read_cases(FOLDER)}
    assert rings.pop("weight-ring") == 150 << 10
    assert set(rings.values()) == {0}
