"""The golden files of the project: complete, reproduced by every process, and readable in old formats."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.golden.graphs import FOLDER, GRAPHS
from tests.unit.cli.graphs import Shell
from tmmu.codec.read import read_graph, read_plan
from tmmu.golden import store
from tmmu.golden.cases import CONFIGS, SEEDS, PlanConfig, read_cases
from tmmu.golden.digests import as_simulated, digests_of
from tmmu.golden.million import million_buffers
from tmmu.ir.graph import encode_graph
from tmmu.ir.plan import MODES, PRESETS
from tmmu.judge.check import check_plan
from tmmu.judge.rules import check_graph
from tmmu.planner.arenas import default_arenas, parse_arenas
from tmmu.planner.metrics import arena_reuse
from tmmu.planner.prepare import prepare_memory
from tmmu.planner.token import token_from_seed

CASES = read_cases(FOLDER)
FILED = [case.name for case in CASES if not case.recipe]
LARGE = ("llama-70b",)
MIDDLE = ("gpt2", "llama-training", "own-step")
QUICK = [name for name in FILED if name not in LARGE]
SMALL = [name for name in QUICK if name not in MIDDLE][::2]
FORMATS = sorted(path.relative_to(FOLDER / "formats").as_posix() for path in FOLDER.glob("formats/*/*"))


def test_plans_are_as_recorded(shell: Shell) -> None:
    """Of a few cases; those of more are reproduced by fresh processes, below."""
    done = shell.tmmu("golden", "check", *QUICK[:3], "--jobs", 1)
    assert (done.code, done.err) == (0, "")
    assert done.out == "golden: 3 cases, 270 plans as recorded\n"


@pytest.mark.long
def test_plans_of_large_cases_are_as_recorded(shell: Shell) -> None:
    """CI runs ``tmmu golden check``, of all cases, itself."""
    done = shell.tmmu("golden", "check", *LARGE, "--jobs", 1)
    assert (done.code, done.err, done.out) == (0, "", "golden: 1 cases, 90 plans as recorded\n")


@pytest.mark.parametrize(
    ("seed", "names"), [("1", SMALL), pytest.param("4242", QUICK, marks=pytest.mark.slow)], ids=["1", "4242"]
)
def test_fresh_processes_under_other_hash_seeds_reproduce_every_digest(
    seed: str, names: list[str], tmp_path: Path
) -> None:
    command = [sys.executable, "-c", "from tmmu.cli.main import main; main()", "golden", "check", *names]
    env = os.environ | {"PYTHONHASHSEED": seed}
    done = subprocess.run(
        [*command, "--dir", str(FOLDER)], cwd=tmp_path, env=env, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"golden: {len(names)} cases, {len(names) * 90} plans as recorded\n"


def test_replaying_needs_no_torch(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise ImportError('there is none')\n")
    program = "from tmmu.cli.main import main; main()"
    command = [sys.executable, "-c", program, "golden", "check", *QUICK[:3], "gpt2-training", "--dir", str(FOLDER)]
    env = os.environ | {"PYTHONPATH": str(tmp_path)}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_cases_have_the_shapes_that_break_planners() -> None:
    names = {"chain", "residual", "fan-out", "diamond", "zero-size", "mixed-roles", "near-capacity", "in-place-chain"}
    names |= {"gpt2", "llama-70b"}
    names |= {"gpt2-training", "gpt2-block", "llama-block", "llama-decode", "llama-training", "million-buffers"}
    assert names <= {case.name for case in CASES}
    assert all(case.seeds == SEEDS for case in CASES if not case.recipe)
    assert len(SEEDS) == 10
    assert {(c.preset, c.mode) for c in CONFIGS} == {(p, m) for p in PRESETS for m in MODES}


@pytest.mark.parametrize("name", GRAPHS)
def test_graphs_written_by_hand_are_what_the_files_hold(name: str) -> None:
    assert encode_graph(GRAPHS[name]()) == (FOLDER / f"{name}.ir.cbor").read_bytes()


def test_case_is_written_by_hand_or_says_how_it_was_made() -> None:
    assert {case.name for case in CASES if not case.origin and not case.recipe} == set(GRAPHS)


def test_capacity_of_a_case_is_met_to_the_byte_and_missed() -> None:
    rows = store.parse_digests((FOLDER / "near-capacity.digests.txt").read_text())
    refused = {str(config) for (_, config), digests in rows.items() if digests == ("ARENA_TOO_SMALL",)}
    assert refused == {"train_full/forward", "train_full/backward"}
    plans = store.decode_plans((FOLDER / "near-capacity.plans.cbor").read_bytes())
    peaks = {plan.arenas.peak[2] for plan in plans.values()}
    assert max(peaks) == plans[PlanConfig(preset="inference", mode="forward")].arenas.capacity[2] == 112 << 10


def test_whole_plans_are_those_of_the_first_seed() -> None:
    for name in FILED:
        plans = store.decode_plans((FOLDER / f"{name}.plans.cbor").read_bytes())
        assert {plan.token_prefix for plan in plans.values()} == {token_from_seed(0)[:8]}
        assert all(PlanConfig(preset=plan.preset, mode=plan.mode) == config for config, plan in plans.items())


def test_presets_and_modes_tell_the_cases_apart() -> None:
    """Over all cases, two configurations differ somewhere unless their rules are the same."""
    columns: dict[str, list[tuple[str, ...]]] = {str(config): [] for config in CONFIGS}
    for case in CASES:
        rows = store.parse_digests((FOLDER / store.digests_file(case)).read_text())
        for config in CONFIGS:
            columns[str(config)].append(rows[case.seeds[0], config][:2])
    assert columns.pop("remat_enabled/inference") == columns["inference/inference"], "where nothing is saved"
    assert len({tuple(column) for column in columns.values()}) == len(CONFIGS) - 1


@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_recipe_of_a_million_is_sound_in_small(config: PlanConfig) -> None:
    graph, token = million_buffers(4_000), token_from_seed(1)
    assert len(graph.buffers) == 4_000
    assert not check_graph(graph)
    for arenas in (default_arenas(), parse_arenas(["activations=layout:slots", "gradients=layout:slots"])):
        plan = prepare_memory(graph, mode=config.mode, preset=config.preset, token=token, arenas=arenas)
        assert not check_plan(graph, plan, token=token)
        assert digests_of(as_simulated(graph, plan, token=token, arenas=arenas)) == digests_of(plan)


@pytest.mark.parametrize("count", range(1, 60))
def test_recipe_of_a_million_makes_a_million_buffers(count: int) -> None:
    graph = million_buffers(count)
    assert len(graph.buffers) == len(graph.values) == count
    assert not check_graph(graph)


def test_recipe_of_a_million_uses_all_that_it_draws() -> None:
    graph = million_buffers(50_000)
    assert set(graph.buffers.role) == {"activation", "gradient"}
    assert {len(row) for row in graph.ops.writes} == {1, 2}
    assert {len(row) for row in graph.ops.overwrites} == {0, 1}
    assert any(graph.ops.saves)
    assert any(graph.ops.recompute)
    assert len(set(graph.buffers.bytes)) == 8


@pytest.mark.parametrize("name", FORMATS)
def test_files_of_every_format_are_read(name: str) -> None:
    path = FOLDER / "formats" / name
    if path.name.endswith(".ir.cbor"):
        graph = read_graph(path)
        assert encode_graph(graph) == path.read_bytes()
        sizes = {"gpt2-training": 52, "llama-decode": 80, "mixed-roles": 8, "own-step": 163}
        assert len(graph.ops) == sizes[path.name[:-8]]
        assert graph.version == int(path.parent.name.removeprefix("ir-v"))
    else:
        plan = read_plan(path)
        graph = read_graph(FOLDER / "formats" / "ir-v1" / path.name.replace(".plan.", ".ir."))
        assert not check_plan(graph, plan, token=token_from_seed(0))


def test_three_files_of_each_first_format_are_kept() -> None:
    names = ("gpt2-training", "llama-decode", "mixed-roles")
    assert set(FORMATS) >= {f"{kind}-v1/{name}.{kind}.cbor" for kind in ("ir", "plan") for name in names}
    assert "ir-v2/own-step.ir.cbor" in FORMATS


@pytest.mark.parametrize(
    ("name", "layers", "parameters"), [("gpt2", 12, 124_439_808), ("llama-70b", 80, 70_553_706_496)]
)
def test_full_models_have_their_published_size(name: str, layers: int, parameters: int) -> None:
    graph = read_graph(FOLDER / f"{name}.ir.cbor")
    bytes_each = {"gpt2": 4, "llama-70b": 2}[name]
    roles = zip(graph.buffers.bytes, graph.buffers.role, strict=True)
    assert sum(size for size, role in roles if role == "parameter") == parameters * bytes_each
    assert sum("attention" in target for target in graph.ops.target) == layers


@pytest.mark.parametrize(("name", "least"), [("gpt2", 970_000), ("llama-70b", 995_000)])
def test_activations_of_full_models_reuse_what_the_specification_expects(name: str, least: int) -> None:
    """More than 95 %, by arena; the metric of the whole plan counts weights, which share no slot."""
    plans = store.decode_plans((FOLDER / f"{name}.plans.cbor").read_bytes())
    plan = plans[PlanConfig(preset="inference", mode="inference")]
    reuse = dict(zip(plan.arenas.name, arena_reuse(plan.arenas, plan.buffers), strict=True))
    assert reuse["parameters"] == reuse["state"] == 0
    assert reuse["activations"] >= least
    assert plan.metrics["memory_reuse_ppm"] < 950_000
