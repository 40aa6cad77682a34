"""Modules that child processes of ``tmmu diff`` import: those of ``tmmu plan``, or the commit's."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.unit.cli.commands.test_diff import NET, WIDE, write
from tests.unit.cli.commands.test_diff_commits import commit, git
from tests.unit.cli.graphs import Shell
from tmmu.cache import store
from tmmu.driver import cache_folder

pytestmark = pytest.mark.slow

PROGRAM = (sys.executable, "-P", "-c", "from tmmu.cli.main import main; main()")
MODEL = """\
import torch
from by_path import ONE
from by_pth import TWO
from by_finder import THREE
from by_finder.inner import FOUR
from untracked import FIVE
import moved_here

model = torch.nn.Linear(ONE * TWO * THREE, FOUR * FIVE, bias=False)
inputs = torch.zeros(1, ONE * TWO * THREE)
"""
FINDER = """\
import sys
from importlib.util import spec_from_file_location

class Editable:
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        folder = {folder!r} + "/" + name
        return spec_from_file_location(name, folder + "/__init__.py") if name in ("by_finder", "late") else None

sys.meta_path.append(Editable)
"""


def package(name: str, text: str, **modules: str) -> None:
    Path(name).mkdir(parents=True, exist_ok=True)
    Path(name, "__init__.py").write_text(text)
    for module, content in modules.items():
        Path(name, f"{module}.py").write_text(content)


@pytest.fixture
def environment(shell: Shell, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A repository whose packages are found by PYTHONPATH, by a .pth file and by an editable installation's finder."""
    site = tmp_path_factory.mktemp("site")
    folder = shell.folder
    (site / "sitecustomize.py").write_text(f"import site\nsite.addsitedir({str(site)!r})\n")
    (site / "path.pth").write_text(f"{folder / 'lib'}\n")
    (site / "hook.pth").write_text("import editable_finder\n")
    (site / "editable_finder.py").write_text(FINDER.format(folder=str(folder / "flat")))
    git("init", "--quiet", ".")
    Path(".gitignore").write_text("vendor/\n__pycache__/\n_version.py\n")
    package("vendor/untracked", "FIVE = 2\n")
    Path("net.py").write_text(MODEL)
    package("src/by_path", "ONE = 4\n")
    package("src/moved_here", "")
    package("lib/by_pth", "from by_pth._version import TWO\n", _version="TWO = 4\n")
    package("flat/by_finder", "THREE = 4\n", inner="FOUR = 8\n")
    paths = (folder / "src", folder / "vendor", site)
    return os.environ | {"PYTHONPATH": os.pathsep.join(map(str, paths))}


def diff(environment: dict[str, str], *arguments: str) -> Any:
    done = subprocess.run([*PROGRAM, "diff", *arguments], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_all_ways_to_a_package_of_the_worktree_lead_into_the_commit(environment: dict[str, str]) -> None:
    commit("all fours")
    package("src/by_path", "ONE = 6\n")
    package("lib/by_pth", "from by_pth._version import TWO\nTWO += 2\n")
    package("flat/by_finder", "THREE = 6\n", inner="FOUR = 10\n")
    done = diff(environment, "git:HEAD:net.py", "net.py", "--json", "--no-cache")
    text = done["figures"][1]
    assert (text["name"], text["before"], text["after"]) == ("text", 4**3 * 16 * 4, 6**3 * 20 * 4 + 128)


def test_package_that_the_commit_lacks_is_not_the_worktrees(environment: dict[str, str]) -> None:
    """Neither from a folder of the path that is newer, nor by a finder."""
    package("src/moved_here", "import late\n")
    commit("it names what is not there")
    package("flat/late", "")
    git("add", "flat/late/__init__.py")
    command = [*PROGRAM, "diff", "git:HEAD:net.py", "net.py"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("tmmu: CAPTURE_FAILED: git:HEAD:net.py: "), done.stderr
    assert "No module named 'late'" in done.stderr
    git("rm", "-r", "--quiet", "--cached", "src")
    git("commit", "--quiet", "--message", "before there was src")
    git("add", "src")
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert "No module named 'by_path'" in done.stderr


@pytest.mark.parametrize("name", ["platform", "uuid", "tempfile", "json", "tmmu"])
def test_file_with_the_name_of_a_module_of_pythons_is_not_taken_for_it(shell: Shell, name: str) -> None:
    Path(f"{name}.py").write_text("raise RuntimeError('the wrong module')\n")
    done = shell.tmmu("diff", write("old", NET), write("new", WIDE))
    assert (done.code, done.err) == (0, "")


def test_path_of_this_process_is_searched(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    """As for ``tmmu plan`` in this process."""
    Path("beside").mkdir()
    Path("beside/width.py").write_text("WIDTH = 8\n")
    Path("net.py").write_text(
        "import torch, width\nmodel = torch.nn.Linear(width.WIDTH, 8)\ninputs = torch.zeros(1, 8)\n"
    )
    assert "No module named 'width'" in shell.tmmu("diff", "net.py", "net.py").err
    monkeypatch.syspath_prepend(str(shell.folder / "beside"))
    assert "the same plan" in shell.tmmu("diff", "net.py", "net.py").out


def test_plan_that_tmmu_plan_keeps_is_found_by_the_processes_of_diff(shell: Shell) -> None:
    """Although ``tmmu plan`` is started by a script and the children by ``-c``."""
    Path("net.py").write_text("import torch\nmodel = torch.nn.Linear(8, 8)\ninputs = torch.zeros(1, 8)\n")
    Path("start").mkdir()
    script = Path("start", "script.py")
    script.write_text("from tmmu.cli.main import main\n\nmain()\n")
    subprocess.run([sys.executable, script, "plan", "net.py", "--json"], capture_output=True, check=True)
    (entry,) = store.entries(cache_folder())
    assert "the same plan" in shell.tmmu("diff", "net.py", "net.plan.cbor").out
    script.write_text("from tmmu.cli.main import main\n\nmain()  # edited\n")
    done = subprocess.run([sys.executable, script, "plan", "net.py", "--json"], capture_output=True, check=True)
    assert json.loads(done.stdout)["cache"]["origin"] == "disk"
    assert [file.key for file in store.entries(cache_folder())] == [entry.key]
