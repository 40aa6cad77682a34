"""``tmmu diff`` of commits: the line that raised the peak, from any folder, and commits that are not there."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.unit.cli.commands.test_diff import EXAMPLE, NET, WIDE, record, write
from tests.unit.cli.graphs import Shell


def git(*arguments: str) -> str:
    """git in the current folder, without configuration files."""
    env = os.environ | {"GIT_CONFIG_GLOBAL": "", "GIT_CONFIG_SYSTEM": ""}
    who = ("-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false")
    done = subprocess.run(["git", *who, *arguments], env=env, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def commit(message: str) -> None:
    git("add", "--all", ".")
    git("commit", "--quiet", "--message", message)


@pytest.fixture
def repository(shell: Shell) -> Shell:
    """A repository whose second commit makes the example model hold a copy of its widest layer."""
    git("init", "--quiet", ".")
    Path("models").mkdir()
    shutil.copy(EXAMPLE, Path("models") / "gpt2.py")
    commit("the model")
    path = Path("models/gpt2.py")
    text = path.read_text()
    changed = text.replace(
        "        return x + self.mlp(self.norm_2(x))",
        "        wide = torch.cat([x] * 16, dim=-1).tanh()\n"
        "        return x + self.mlp(self.norm_2(x)) + wide[..., : x.shape[-1]]",
    )
    assert changed != text
    path.write_text(changed)
    commit("a wide copy")
    return shell


SETTINGS = ("--set", "layers=2", "--set", "vocab=512", "--set", "seq=256")


def line_of(text: str) -> str:
    lines = Path("models/gpt2.py").read_text().splitlines()
    return f"gpt2.py:{next(number for number, line in enumerate(lines, 1) if text in line)}"


@pytest.mark.parametrize("mode", ["inference", "backward"])
def test_diff_of_two_commits_names_the_line_that_raised_the_peak(repository: Shell, mode: str) -> None:
    before = git("status", "--porcelain"), git("rev-parse", "HEAD"), Path(".git/index").read_bytes()
    target = "models/gpt2.py"
    done = repository.tmmu(
        "diff", f"git:HEAD~1:{target}", f"git:HEAD:{target}", *SETTINGS, "--mode", mode, "--fail-over", "1%"
    )
    assert done.code == 3, done.err
    culprit = line_of("torch.cat([x] * 16")
    assert f"most of it by {culprit} (aten." in done.out, done.out
    assert f", most of it by {culprit} (make it smaller" in done.err
    assert (git("status", "--porcelain"), git("rev-parse", "HEAD"), Path(".git/index").read_bytes()) == before
    assert repository.files() == (".git", "models")


@pytest.mark.slow
def test_commit_is_compared_with_the_worktree_from_any_folder(
    repository: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir("models")
    Path("gpt2.py").write_text(Path("gpt2.py").read_text().replace("[x] * 16", "[x] * 32"))
    done = repository.tmmu("diff", "git:HEAD:gpt2.py", "gpt2.py", *SETTINGS, "--json")
    assert done.code == 0, done.err
    (line,) = [row for row in done.record["lines"] if row["bytes"]]
    wide = 256 * 768 * 4 * 16
    assert (line["why"], line["bytes"], line["op"]) == ("grew", wide, "aten.tanh.default")
    assert done.record["peak"]["bytes"] == wide


def test_plan_of_a_commit_is_read_from_it(repository: Shell) -> None:
    record(repository, "net", NET)
    git("add", "--force", "net.plan.cbor", "net.ir.cbor")
    commit("a recorded plan")
    record(repository, "net", WIDE)
    done = repository.tmmu("diff", "git:HEAD:net.plan.cbor", "net.plan.cbor")
    assert done.out.startswith("git:HEAD:net.plan.cbor -> net.plan.cbor: inference on cpu")
    assert "+28.0 KiB" in done.out


def test_mismatched_plan_of_a_commit_is_named_as_on_the_command_line(repository: Shell) -> None:
    record(repository, "net", NET)
    write("net", WIDE)
    git("add", "--force", "net.plan.cbor", "net.ir.cbor")
    commit("a plan and another graph")
    done = repository.tmmu("diff", "git:HEAD:net.plan.cbor", "net.ir.cbor")
    assert done.code == 3
    assert done.err.startswith("tmmu: PLAN_MISMATCH: git:HEAD:net.plan.cbor on git:HEAD:net.ir.cbor: [ir-hash] ")


def test_unknown_commit_is_one_line(repository: Shell, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = write("old", NET)
    for revision, message in (("nowhere", "git: no commit 'nowhere'"), ("--help", "git: ")):
        done = repository.tmmu("diff", f"git:{revision}:models/gpt2.py", path)
        assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
        assert message in done.err
    done = repository.tmmu("diff", "git:HEAD:models/net.plan.cbor", path)
    assert "cannot read git:HEAD:models/net.plan.cbor: there is no such file" in done.err
    done = repository.tmmu("diff", "git:HEAD:models/other.py", path)
    assert "git:HEAD:models/other.py: no file 'models/other.py'" in done.err
    Path("fresh").mkdir()
    monkeypatch.chdir("fresh")
    assert "commit HEAD has no folder fresh/" in repository.tmmu("diff", "git:HEAD:gpt2.py", "gpt2.py").err
    folder = tmp_path.parent / f"{tmp_path.name}-outside"
    folder.mkdir()
    monkeypatch.chdir(folder)
    write("old", NET)
    done = repository.tmmu("diff", "git:HEAD:models/gpt2.py", path)
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert "git: fatal: not a git repository" in done.err
    monkeypatch.setenv("PATH", str(folder))
    assert "there is no git here" in repository.tmmu("diff", "git:HEAD:models/gpt2.py", path).err
