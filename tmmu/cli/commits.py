"""The files of another commit, without touching the repository, its index or its worktree."""

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from tmmu.errors import InvalidConfig

PREFIX: Final = "git:"


def split_commit(text: str) -> tuple[str, str]:
    """``git:REV:TARGET`` as revision and target; the revision is empty where none is named."""
    if not text.startswith(PREFIX):
        return "", text
    revision, colon, target = text.removeprefix(PREFIX).partition(":")
    if not revision or not colon or not target or Path(target.removeprefix("hf:")).is_absolute():
        raise InvalidConfig(f"{text!r} names no commit and target", fix="write git:REV:TARGET, TARGET relative to here")
    return revision, target


def check_out(revision: str, folder: Path) -> Path:
    """The files of a commit of the repository around the present folder, in ``folder``; where this folder is in them,
    if they have it.

    ``InvalidConfig`` where git, a repository or the commit is missing.
    """
    commit = _git(["rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}"], revision)
    top, here = _git(["rev-parse", "--show-toplevel"], revision), _git(["rev-parse", "--show-prefix"], revision)
    tree, index = folder / "tree", {"GIT_INDEX_FILE": str(folder / "index")}
    _git(["-C", top, "read-tree", commit], revision, index)
    _git(["-C", top, "checkout-index", "--all", f"--prefix={tree}{os.sep}"], revision, index)
    return tree / here


def require_folder(revision: str, inside: Path) -> None:
    """Refuses a commit that lacks the present folder."""
    if not inside.is_dir():
        here = _git(["rev-parse", "--show-prefix"], revision)
        raise InvalidConfig(f"commit {revision} has no folder {here}", fix="run it where both commits have the model")


def _git(arguments: Sequence[str], revision: str, more: Mapping[str, str] | None = None) -> str:
    try:
        done = subprocess.run(
            ["git", *arguments], env=os.environ | dict(more or {}), capture_output=True, text=True, check=False
        )
    except FileNotFoundError as error:
        raise InvalidConfig("there is no git here", fix="install it, or compare files and plans") from error
    if done.returncode:
        said = done.stderr.strip().splitlines()
        why = said[-1] if said else f"no commit {revision!r}"
        raise InvalidConfig(f"git: {why}", fix="name a commit of the repository around this folder")
    return done.stdout.strip()
