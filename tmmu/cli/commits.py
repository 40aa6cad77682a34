"""Checkouts of commits in other folders; the repository, its index and its worktree stay as they are."""

import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tmmu.errors import InvalidConfig

GIT_PREFIX: Final = "git:"
MODULE_SUFFIXES: Final = (".py", ".so", ".pyd")


def split_commit(text: str) -> tuple[str, str]:
    """``git:REV:MODEL`` as (revision, model); the revision is empty without ``git:``."""
    if not text.startswith(GIT_PREFIX):
        return "", text
    revision, colon, model = text.removeprefix(GIT_PREFIX).partition(":")
    if not revision or not colon or not model or Path(model.removeprefix("hf:")).is_absolute():
        raise InvalidConfig(f"{text!r} names no commit and model", fix="write git:REV:MODEL, MODEL relative to here")
    return revision, model


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkout:
    """Files of a commit: in ``tree``, as they would lie in the worktree ``top``; ``current_folder`` is in ``tree``."""

    top: Path
    tree: Path
    current_folder: Path

    def path_in_commit(self, path: str) -> str:
        """The commit's path of a path in the worktree; paths outside it, or that git does not track, are unchanged."""
        place = Path(path)
        if not place.is_absolute():
            return path
        place = place.resolve()
        if not place.is_relative_to(self.top) or place.is_relative_to(self.tree):
            return path
        committed = self.tree / place.relative_to(self.top)
        return str(committed) if committed.exists() or _is_tracked(self.top, place) else path


def check_out(revision: str, folder: Path) -> Checkout:
    """Check out a commit of the current folder's repository below ``folder``.

    ``InvalidConfig`` if git, a repository or the commit is missing.
    """
    commit = _git(["rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}"], revision)
    top, prefix = _git(["rev-parse", "--show-toplevel"], revision), _git(["rev-parse", "--show-prefix"], revision)
    tree, index = folder.resolve() / "tree", {"GIT_INDEX_FILE": str(folder / "index")}
    # An index of our own: the repository's is neither read nor written, so that staged changes do not matter.
    _git(["-C", top, "read-tree", commit], revision, index)
    _git(["-C", top, "checkout-index", "--all", f"--prefix={tree}{os.sep}"], revision, index)
    checkout = Checkout(top=Path(top).resolve(), tree=tree, current_folder=tree / prefix)
    _link_built_modules(checkout)
    return checkout


def _link_built_modules(checkout: Checkout) -> None:
    """Link modules that git ignores, such as extensions that an installation built, into the packages of the tree."""
    ignored = ["ls-files", "-z", "--others", "--ignored", "--exclude-standard", "--directory"]
    for name in _git(["-C", str(checkout.top), *ignored], "HEAD").split("\0"):
        link = checkout.tree / name
        if name.endswith(MODULE_SUFFIXES) and (link.parent / "__init__.py").exists() and not link.exists():
            link.symlink_to(checkout.top / name)


def _is_tracked(top: Path, path: Path) -> bool:
    return bool(_git(["-C", str(top), "ls-files", "--", str(path)], "HEAD"))


def require_folder(revision: str, folder: Path) -> None:
    """Raise ``InvalidConfig`` if the commit lacks the current folder."""
    if not folder.is_dir():
        prefix = _git(["rev-parse", "--show-prefix"], revision)
        raise InvalidConfig(f"commit {revision} has no folder {prefix}", fix="run it where both commits have the model")


def _git(arguments: Sequence[str], revision: str, variables: Mapping[str, str] | None = None) -> str:
    try:
        done = subprocess.run(
            ["git", *arguments],
            env=os.environ | dict(variables or {}),
            capture_output=True,
            text=True,
            check=False,
            errors="surrogateescape",
        )
    except FileNotFoundError as error:
        raise InvalidConfig("there is no git here", fix="install it, or compare files and plans") from error
    if done.returncode:
        message = done.stderr.strip().splitlines()
        why = message[-1] if message else f"no commit {revision!r}"
        raise InvalidConfig(f"git: {why}", fix="name a commit of the repository around this folder")
    return done.stdout.strip()
