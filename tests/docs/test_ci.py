"""The GitHub Action and the pre-commit hooks: their commands are run with a user's inputs."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.docs.commands import ROOT
from tests.warm_server import WarmPython

pytestmark = pytest.mark.slow

ACTION: dict[str, Any] = yaml.safe_load((ROOT / "action.yml").read_text())
HOOKS: list[dict[str, Any]] = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())
PAGE = (ROOT / "docs" / "ci.md").read_text()
SETTINGS = "--set layers=1 --set vocab=512 --set seq=64"
EXPRESSION = re.compile(r"\$\{\{ (.*?) \}\}")
WIDER = ("self.mlp(self.norm_2(x))", "self.mlp(self.norm_2(x)) + torch.cat([x] * 32, -1).tanh().chunk(32, -1)[0]")
QUICK_INSTALL = {"PIP_DRY_RUN": "1", "PIP_NO_DEPS": "1", "PIP_NO_BUILD_ISOLATION": "0"}
"""pip resolves and builds the metadata of what it is asked to install, and installs nothing."""


@dataclass(frozen=True)
class ActionRun:
    """One run of the action: exit code of the step that failed, what was printed, the job's summary and outputs."""

    code: int
    output: str
    summary: str
    outputs: dict[str, str]


def substitute(text: str, inputs: Mapping[str, str], github: Mapping[str, str]) -> str:
    """The text with each expression replaced, as a runner does."""

    def value(match: re.Match[str]) -> str:
        name = match[1]
        if name.startswith("inputs."):
            default = ACTION["inputs"][name[7:]].get("default", "")
            return inputs[name[7:]] if name[7:] in inputs else substitute(default, inputs, github)
        return github[name]

    return EXPRESSION.sub(value, text)


def run_action(folder: Path, github: Mapping[str, str] | None = None, **inputs: str) -> ActionRun:
    """Every step of the action, in order, in the environment that a runner makes."""
    texts = {name.replace("_", "-"): text for name, text in inputs.items()}
    files = {name: folder / f".{name.lower()}" for name in ("GITHUB_STEP_SUMMARY", "GITHUB_OUTPUT")}
    temp = folder / ".temp"
    temp.mkdir()
    for path in files.values():
        path.write_text("")
    env = os.environ | QUICK_INSTALL | {name: str(path) for name, path in files.items()}
    env |= {"RUNNER_TEMP": str(temp), "GITHUB_ACTION_PATH": str(ROOT)}
    code, printed = 0, ""
    for step in ACTION["runs"]["steps"]:
        assert step["shell"] == "bash"
        more = {name: substitute(text, texts, github or {}) for name, text in step["env"].items()}
        folder_of_step = folder / substitute(step.get("working-directory", "."), texts, github or {})
        shell = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]]
        done = subprocess.run(shell, cwd=folder_of_step, env=env | more, capture_output=True, text=True, check=False)
        printed += done.stdout + done.stderr
        code = done.returncode
        if code:
            break
    outputs = dict(line.split("=", 1) for line in files["GITHUB_OUTPUT"].read_text().splitlines())
    return ActionRun(code, printed, files["GITHUB_STEP_SUMMARY"].read_text(), outputs)


def git(folder: Path, *arguments: str) -> str:
    who = ("-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false")
    env = os.environ | {"GIT_CONFIG_GLOBAL": "", "GIT_CONFIG_SYSTEM": ""}
    done = subprocess.run(["git", *who, *arguments], cwd=folder, env=env, capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.fixture(autouse=True)
def _programs(warm_python: WarmPython, monkeypatch: pytest.MonkeyPatch) -> None:
    """The path of a job: tmmu, which starts with all modules imported, and the tools beside Python."""
    folders = (warm_python.tmmu().parent, Path(sys.executable).parent, os.environ["PATH"])
    monkeypatch.setenv("PATH", os.pathsep.join(map(str, folders)))


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A user's repository: the example model, in the worktree as an edit made it wider."""
    folder = tmp_path / "user"
    (folder / "models").mkdir(parents=True)
    shutil.copy(ROOT / "examples" / "gpt2.py", folder / "models")
    git(folder, "init", "--quiet", ".")
    git(folder, "add", ".")
    git(folder, "commit", "--quiet", "--message", "The model")
    model = folder / "models" / "gpt2.py"
    text = model.read_text()
    assert WIDER[0] in text
    model.write_text(text.replace(*WIDER))
    return folder


def test_action_compares_with_the_base_of_the_pull_request(repository: Path) -> None:
    base = git(repository, "rev-parse", "HEAD")
    done = run_action(
        repository,
        {"github.event.pull_request.base.sha": base},
        target="models/gpt2.py",
        options=SETTINGS,
        fail_over="1%",
    )
    assert done.code == 3, done.output
    assert "tmmu: PEAK_OVER_LIMIT: models/gpt2.py needs more than git:" in done.output
    assert done.summary.startswith("### tmmu: total +")
    assert "most of it by gpt2.py:36" in done.summary
    assert Path(done.outputs["report"]).read_text() == done.summary
    assert not Path(os.environ["TMMU_CACHE_DIR"]).exists(), "a gate must not be served what was planned before"


def test_action_passes_without_a_limit_and_below_one(repository: Path) -> None:
    base = git(repository, "rev-parse", "HEAD")
    done = run_action(
        repository, against=base, target="gpt2.py", options=SETTINGS, working_directory="models", install=""
    )
    assert done.code == 0, done.output
    assert done.summary.startswith("### tmmu: total +")


def test_action_fetches_a_base_that_a_shallow_checkout_lacks(repository: Path, tmp_path: Path) -> None:
    base = git(repository, "rev-parse", "HEAD")
    git(repository, "config", "uploadpack.allowAnySHA1InWant", "true")
    git(repository, "commit", "--quiet", "--all", "--message", "Wider")
    shallow = tmp_path / "shallow"
    git(tmp_path, "clone", "--quiet", "--depth=1", f"file://{repository}", str(shallow))
    done = run_action(shallow, against=base, target="models/gpt2.py", options=SETTINGS, fail_over="1%", install="true")
    assert (done.code, done.summary[:17]) == (3, "### tmmu: total +"), done.output


def test_action_compares_with_a_branch_that_only_origin_has(repository: Path, tmp_path: Path) -> None:
    git(repository, "branch", "released")
    git(repository, "commit", "--quiet", "--all", "--message", "Wider")
    clone = tmp_path / "clone"
    git(tmp_path, "clone", "--quiet", "--depth=1", "--single-branch", f"file://{repository}", str(clone))
    done = run_action(clone, against="released", target="models/gpt2.py", options=SETTINGS, fail_over="1%", install="")
    assert (done.code, done.summary[:17]) == (3, "### tmmu: total +"), done.output


@pytest.mark.parametrize("folder", [".", "models"])
def test_model_that_the_base_lacks_is_reported_as_new_and_passes(repository: Path, folder: str) -> None:
    base = git(repository, "commit-tree", "-m", "Nothing", git(repository, "mktree"))
    target = "gpt2.py" if folder == "models" else "models/gpt2.py"
    done = run_action(
        repository,
        {"github.event.pull_request.base.sha": base},
        target=target,
        options=SETTINGS,
        fail_over="0%",
        working_directory=folder,
        install="",
    )
    assert done.code == 0, done.output
    assert done.summary.startswith("### tmmu: new, total ")
    assert "| stack |" in done.summary
    assert Path(done.outputs["report"]).read_text() == done.summary


def test_action_without_a_base_says_what_to_name(repository: Path) -> None:
    """A push has no base."""
    done = run_action(
        repository, {"github.event.pull_request.base.sha": ""}, target="models/gpt2.py", options=SETTINGS, install=""
    )
    assert (done.code, done.summary) == (2, "")
    assert done.output == (
        "::error title=tmmu diff::input against is empty, as outside of a pull request: "
        "name a commit or a NAME.plan.cbor\n"
    )


@pytest.mark.parametrize("against", ["0" * 40, "nowhere", "--upload-pack=touch hacked", "a\n::set-output name=x::y"])
def test_base_that_is_nowhere_is_one_line_of_the_job(repository: Path, tmp_path: Path, against: str) -> None:
    clone = tmp_path / "clone"
    git(tmp_path, "clone", "--quiet", f"file://{repository}", str(clone))
    done = run_action(clone, target="models/gpt2.py", against=against, options=SETTINGS, install="")
    assert (done.code, done.summary) == (2, "")
    shown = against.replace("\n", " ")
    assert done.output.startswith(f"::error title=tmmu diff::no commit {shown} here or at origin (fatal: ")
    assert done.output.endswith("): name another in against\n")
    assert done.output.count("\n") == 1
    assert not (clone / "hacked").exists()


def test_action_compares_with_a_recorded_plan(repository: Path) -> None:
    arguments = ["plan", "models/gpt2.py", *SETTINGS.split(), "--mode", "backward", "-o", "memory.plan.cbor"]
    subprocess.run(["tmmu", *arguments], cwd=repository, check=True, capture_output=True)
    done = run_action(
        repository, target="models/gpt2.py", against="memory.plan.cbor", options=SETTINGS, fail_over="1GiB", install=""
    )
    assert done.code == 0, done.output
    assert "backward on cuda, preset train_full" in done.summary, "as the plan was"
    assert done.summary.startswith("### tmmu: the same plan")


def test_model_that_cannot_be_planned_fails_the_action(repository: Path) -> None:
    (repository / "models" / "gpt2.py").write_text("model = 1 +\n")
    done = run_action(repository, against=git(repository, "rev-parse", "HEAD"), target="models/gpt2.py", install="")
    assert (done.code, done.summary) == (2, "")
    assert "CAPTURE_FAILED" in done.output


def test_scripts_contain_no_input() -> None:
    for step in ACTION["runs"]["steps"]:
        assert "${{" not in step["run"]


def test_hooks_run_what_they_say(repository: Path) -> None:
    (hook,) = (entry for entry in HOOKS if entry["id"] == "tmmu-diff")
    assert (hook["language"], hook["pass_filenames"]) == ("system", False)
    git(repository, "stash", "--quiet")
    arguments = ["plan", "models/gpt2.py", *SETTINGS.split(), "-o", "memory.plan.cbor"]
    subprocess.run(["tmmu", *arguments], cwd=repository, check=True, capture_output=True)
    command = [
        *shlex.split(hook["entry"]),
        "memory.plan.cbor",
        "models/gpt2.py",
        *SETTINGS.split(),
        "--fail-over",
        "1%",
    ]
    same = subprocess.run(command, cwd=repository, capture_output=True, text=True, check=False)
    assert same.returncode == 0, same.stderr
    git(repository, "stash", "pop", "--quiet")
    wider = subprocess.run(command, cwd=repository, capture_output=True, text=True, check=False)
    assert wider.returncode == 3, wider.stderr


def test_golden_hook_checks_golden_files(tmp_path: Path) -> None:
    (hook,) = (entry for entry in HOOKS if entry["id"] == "tmmu-golden")
    golden = tmp_path / "golden"
    golden.mkdir()
    shutil.copy(ROOT / "golden" / "chain.ir.cbor", golden)
    (golden / "cases.toml").write_text('[chain]\nreason = "ours"\nseeds = [0]\n')
    subprocess.run(["tmmu", "golden", "update"], cwd=tmp_path, check=True, capture_output=True)
    command = shlex.split(hook["entry"])
    assert subprocess.run(command, cwd=tmp_path, check=False, capture_output=True).returncode == 0
    (golden / "chain.plan.txt").write_text("edited\n")
    assert subprocess.run(command, cwd=tmp_path, check=False, capture_output=True).returncode == 3


def test_page_shows_inputs_and_hooks_that_exist() -> None:
    blocks = [yaml.safe_load(text) for text in re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)]
    workflow, config = blocks
    used = workflow["jobs"]["memory"]["steps"][-1]["with"]
    assert set(used) <= set(ACTION["inputs"])
    assert {hook["id"] for hook in config["repos"][0]["hooks"]} <= {hook["id"] for hook in HOOKS}
    listed = re.findall(r"^\| `([a-z-]+)` \| [^|]*\| [^|]*\|$", PAGE, re.MULTILINE)
    assert listed == list(ACTION["inputs"])
    required = [name for name, entry in ACTION["inputs"].items() if entry.get("required")]
    assert set(required) <= set(used)
    assert all(f"`{name}`" in PAGE for name in ACTION["outputs"])


def test_hook_of_the_page_is_a_command_line(repository: Path) -> None:
    """The arguments on the page parse: the only refusal is that the plan does not exist."""
    config = yaml.safe_load(re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)[1])
    hook = config["repos"][0]["hooks"][0]
    (declared,) = (entry for entry in HOOKS if entry["id"] == hook["id"])
    command = ["tmmu", *shlex.split(declared["entry"])[1:], *hook["args"]]
    done = subprocess.run(command, cwd=repository, capture_output=True, text=True, check=False)
    assert "memory.plan.cbor: there is no such file" in done.stderr
