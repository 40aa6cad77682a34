"""The plugin of pytest, run by pytest."""

import re
import sys
from pathlib import Path

import pytest
import torch

import tmmu
from tmmu.errors import InvalidConfig
from tmmu.integrations.recorded_plans import parse_growth, recorded_path

pytest_plugins = ["pytester"]

MODEL = """
import torch
from torch import nn

width = 64
model = lambda: nn.Sequential(nn.Linear(32, width), nn.GELU(), nn.Linear(width, 8))
x = torch.ones(16, 32)
"""
GROWS = """
def test_grows(assert_no_growth):
    assert_no_growth("1%", model(), x, device="cpu")
"""


@pytest.fixture(scope="module")
def _imported() -> None:
    """Import all that a plan imports: pytest within pytest forgets what it imported, and torch does not bear it."""
    net = torch.nn.Linear(2, 2)

    def step(x: torch.Tensor) -> None:
        net(x).sum().backward()

    tmmu.plan(net, torch.ones(1, 2), loss="sum", optimizer="adamw", device="cpu")
    tmmu.plan(step, torch.ones(1, 2), device="cpu")


@pytest.fixture
def project(_imported: None, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """A project in which pytest runs in this process, with the plugin as it is installed."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setenv("PYTEST_ADDOPTS", "-p tmmu.integrations.pytest_plugin")
    return pytester


def test_fit_is_asserted_of_each_run(project: pytest.Pytester) -> None:
    project.makepyfile(
        MODEL
        + """
def test_fits(assert_fits):
    plan = assert_fits("24GB", model(), x, loss="sum", optimizer="adamw", device="cpu")
    assert plan.plan.mode == "backward"
    assert assert_fits(plan.total, plan, run="planned", reserve=0) is plan

def test_does_not(assert_fits):
    assert_fits("1GiB", model(), x, device="cpu")

def test_plan_with_inputs(assert_fits):
    assert_fits("1GiB", assert_fits("24GB", model(), x), x)
"""
    )
    done = project.runpytest_inprocess()
    done.assert_outcomes(passed=1, failed=2)
    done.stdout.fnmatch_lines(["*Sequential needs * as it is, and 1GiB in reserve: not in 1GiB", "* KiB: aten.gelu.*"])
    done.stdout.fnmatch_lines(["*takes no inputs*"])


def test_model_that_cannot_be_planned_fails_in_one_message(project: pytest.Pytester) -> None:
    project.makepyfile(
        MODEL
        + """
def test_refused(assert_fits):
    assert_fits("24GB", model(), torch.ones(16, 31), device="cpu")

def test_refused_too(assert_no_growth):
    assert_no_growth("1%", model(), x, device="mps")
"""
    )
    done = project.runpytest_inprocess()
    done.assert_outcomes(failed=2)
    done.stdout.fnmatch_lines(["E *CAPTURE_FAILED*", "E *no device 'mps'*"])
    text = done.stdout.str()
    assert "During handling" not in text
    assert "driver.py" not in text


def test_growth_is_refused_until_it_is_recorded(project: pytest.Pytester) -> None:
    file = project.makepyfile(test_it=MODEL + GROWS)
    missing = project.runpytest_inprocess()
    missing.assert_outcomes(failed=1)
    missing.stdout.fnmatch_lines(["*no recorded plan memory_plans/test_it.test_grows.plan.cbor: write it by*"])
    project.runpytest_inprocess("--tmmu-update").assert_outcomes(passed=1)
    names = sorted(path.name for path in (project.path / "memory_plans").iterdir())
    assert names == ["test_it.test_grows.ir.cbor", "test_it.test_grows.plan.cbor"]
    project.runpytest_inprocess().assert_outcomes(passed=1)
    file.write_text(file.read_text().replace("width = 64", "width = 80"))
    grown = project.runpytest_inprocess()
    grown.assert_outcomes(failed=1)
    grown.stdout.fnmatch_lines(
        ["*PEAK_OVER_LIMIT: more memory than test_it.test_grows.plan.cbor says: *total*stack* by more than 1% *"]
    )
    grown.stdout.fnmatch_lines(["*+2.0 KiB*grew*0.weight*"])
    grown.stdout.no_fnmatch_line("*During handling of the above exception*")
    project.runpytest_inprocess("--tmmu-update").assert_outcomes(passed=1)
    project.runpytest_inprocess().assert_outcomes(passed=1)


def test_tests_of_one_name_in_two_classes_have_plans_of_their_own(project: pytest.Pytester) -> None:
    project.makepyfile(
        test_it=MODEL
        + """
class TestSmall:
    def test_it(self, assert_no_growth):
        assert_no_growth("1%", model(), x)

class TestLarge:
    class TestInner:
        def test_it(self, assert_no_growth):
            assert_no_growth("1%", torch.nn.Sequential(model(), torch.nn.ReLU()), x)
"""
    )
    project.runpytest_inprocess("--tmmu-update").assert_outcomes(passed=2)
    names = sorted(path.name for path in (project.path / "memory_plans").glob("*.plan.cbor"))
    assert names == ["test_it.TestLarge.TestInner.test_it.plan.cbor", "test_it.TestSmall.test_it.plan.cbor"]


def test_recorded_plan_that_cannot_be_read_or_written_fails_in_one_line(project: pytest.Pytester) -> None:
    project.makepyfile(test_it=MODEL + GROWS)
    folder = project.path / "memory_plans"
    folder.write_text("a file")
    project.runpytest_inprocess("--tmmu-update").stdout.fnmatch_lines(
        ["E*Failed: cannot make the folder *: File exists"]
    )
    folder.unlink()
    project.runpytest_inprocess("--tmmu-update").assert_outcomes(passed=1)
    (folder / "test_it.test_grows.ir.cbor").unlink()
    project.runpytest_inprocess().stdout.fnmatch_lines(["E*Failed: INVALID_CONFIG: cannot read *test_grows.ir.cbor*"])
    (folder / "test_it.test_grows.plan.cbor").write_bytes(b"x")
    project.runpytest_inprocess().stdout.fnmatch_lines(["E*Failed: PLAN_CORRUPT: **--tmmu-update can record it again*"])


def test_plan_of_another_device_is_no_plan_to_compare_with(project: pytest.Pytester) -> None:
    file = project.makepyfile(MODEL + GROWS)
    project.runpytest_inprocess("--tmmu-update").assert_outcomes(passed=1)
    file.write_text(file.read_text().replace('device="cpu"', 'device="cuda"'))
    project.runpytest_inprocess().stdout.fnmatch_lines(
        ["*was recorded for inference on cpu, and this plan is for inference on cuda*"]
    )


def test_step_that_leaves_more_each_time_is_refused(project: pytest.Pytester) -> None:
    project.makepyfile(
        MODEL
        + """
net, kept = model(), []

def step(batch):
    loss = net(batch).square().mean()
    loss.backward()
    net.zero_grad()
    kept.append(loss.detach())

def test_leaks(assert_no_growth):
    assert_no_growth("1%", step, x, device="cpu")

def test_allowed(assert_no_growth):
    assert_no_growth("1%", step, x, device="cpu", per_step="512B")

def test_share(assert_no_growth):
    assert_no_growth("1%", step, x, device="cpu", per_step="1%")

def test_twice(assert_no_growth):
    assert_no_growth("1%", net, x)
    assert_no_growth("1%", net, x)

def test_named(assert_no_growth):
    assert_no_growth("1%", net, x, name="a-b")
    assert_no_growth("1%", net, x, name="b")
"""
    )
    done = project.runpytest_inprocess("--tmmu-update")
    done.assert_outcomes(passed=2, failed=3)
    done.stdout.fnmatch_lines(["*per_step='1%' is a share of nothing*"])
    done.stdout.fnmatch_lines(["*each step leaves 4 bytes (4 B) more than it found, allowed 0*"])
    done.stdout.fnmatch_lines(["*is recorded twice in this test*"])
    assert (project.path / "memory_plans" / f"{project._name}.a-b.plan.cbor").exists()


def test_start_of_pytest_loads_nothing(pytester: pytest.Pytester) -> None:
    heavy = ("torch", "numpy", "cbor2", "blake3", "rich", "typer", "tmmu.errors", "tmmu.api")
    pytester.makeconftest(f"import sys\nassert not set({heavy!r}) & set(sys.modules)")
    pytester.makepyfile(
        f"import sys\ndef test_nothing(pytestconfig):\n"
        f"    assert 'tmmu.integrations.pytest_plugin' in sys.modules\n"
        f"    assert not set({heavy!r}) & set(sys.modules)"
    )
    done = pytester.run(sys.executable, "-m", "pytest", "-p", "no:xdist", "-p", "no:hypothesispytest", "-q")
    assert done.ret == 0, done.outlines


@pytest.mark.parametrize("limit", [-1, 1.5, "much", "1 %%"])
def test_limit_is_a_share_or_a_size(limit: object) -> None:
    with pytest.raises(InvalidConfig):
        parse_growth(limit)  # type: ignore[arg-type]


def test_names_of_recorded_plans_are_file_names() -> None:
    folder = Path("tests/memory_plans")
    assert recorded_path(Path("tests/test_a.py"), "test_b[x-1.5]") == folder / "test_a.test_b-x-1.5.plan.cbor"
    path = recorded_path(Path("tests/test_a.py"), "test_b[x/../y é]")
    assert path.parent == folder
    assert re.fullmatch(r"test_a\.test_b-x-\.\.-y-[0-9a-f]{8}\.plan\.cbor", path.name)


def test_each_name_has_a_recorded_plan_of_its_own() -> None:
    names = ["t[a/b]", "t[a\\b]", "t[a b]", "t[a-b]", "é", "ü", "///", "x" * 300, "x" * 301, "\ud800"]
    paths = [recorded_path(Path("test_a.py"), name) for name in names]
    assert len(set(paths)) == len(names)
    assert max(len(path.name.encode()) for path in paths) < 200
    for name in ("", 3):
        with pytest.raises(InvalidConfig, match="no name of a plan"):
            recorded_path(Path("test_a.py"), name)  # type: ignore[arg-type]
