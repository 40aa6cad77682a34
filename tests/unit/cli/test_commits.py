"""Files of commits, from repositories of strangers."""

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tmmu.cli.commits import check_out


def git(*words: str) -> None:
    identity = ("-c", "user.name=a", "-c", "user.email=a@b.c", "-c", "commit.gpgsign=false")
    subprocess.run(["git", *identity, *words], check=True, capture_output=True)


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with a file, an executable, a link and CRLF, and attributes that name drivers."""
    folder = tmp_path / "repository"
    folder.mkdir()
    monkeypatch.chdir(folder)
    git("init", "-q")
    Path("model.py").write_bytes(b"x = 1\r\n# $Id$ $Format:%H$\n")
    Path("run.sh").write_text("true\n")
    Path("run.sh").chmod(0o755)
    Path("link").symlink_to("model.py")
    git("add", ".")
    Path(".gitattributes").write_text("*.py filter=evil diff=evil text eol=lf ident export-subst\n")
    git("add", ".gitattributes")
    git("commit", "-qm", "first")
    return folder


def hook(name: str) -> Callable[[str], None]:
    def write(command: str) -> None:
        path = Path(".git/hooks") / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"#!/bin/sh\n{command}\n")
        path.chmod(0o755)

    return write


def setting(*keys: str) -> Callable[[str], None]:
    def write(command: str) -> None:
        for key in keys:
            git("config", key, command)

    return write


TRAPS: dict[str, Callable[[str], None]] = {
    "a smudge filter": setting("filter.evil.smudge"),
    "a filter process": setting("filter.evil.process"),
    "a monitor": setting("core.fsmonitor"),
    "a converter": setting("diff.evil.textconv"),
    "an external diff": setting("diff.external", "diff.evil.command"),
    "a pager": setting("core.pager", "pager.ls-tree", "pager.ls-files", "pager.cat-file", "pager.rev-parse"),
    "a hook of the index": hook("post-index-change"),
    "a hook of checkouts": hook("post-checkout"),
}


@pytest.mark.parametrize("trap", TRAPS.values(), ids=TRAPS.keys())
def test_nothing_that_a_repository_configures_runs(
    repository: Path, tmp_path: Path, trap: Callable[[str], None]
) -> None:
    mark = tmp_path / "ran"
    trap(f"touch {mark}; cat")
    (tmp_path / "out").mkdir()
    checkout = check_out("HEAD", tmp_path / "out")
    assert not mark.exists()
    assert (checkout.tree / "model.py").read_bytes() == b"x = 1\r\n# $Id$ $Format:%H$\n"


def test_checkout_has_files_modes_and_links(repository: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    tree = check_out("HEAD", tmp_path / "out").tree
    assert sorted(path.name for path in tree.iterdir()) == [".gitattributes", "link", "model.py", "run.sh"]
    assert (tree / "run.sh").stat().st_mode & 0o111
    assert (tree / "link").readlink() == Path("model.py")
