"""Checkouts of commits in other folders; the repository, its index and its worktree stay as they are.

Nothing that the repository configures runs: objects are read raw, by plumbing that knows no hook, filter, converter or
pager, and what git might start by itself is turned off. Attributes are not applied: files are what was committed.
"""

import os
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tmmu.errors import InvalidConfig

GIT_PREFIX: Final = "git:"
LINK: Final = "120000"
_OFF: Final = ("core.hooksPath=/dev/null", "core.fsmonitor=false", "core.sshCommand=false", "protocol.allow=never")
_GIT: Final = ("git", "--no-pager", "--no-replace-objects", *(word for setting in _OFF for word in ("-c", setting)))
"""Git without what a repository's configuration could start."""
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
    tree = folder.resolve() / "tree"
    tree.mkdir()
    _write_tree(Path(top), commit, tree, revision)
    checkout = Checkout(top=Path(top).resolve(), tree=tree, current_folder=tree / prefix)
    _link_built_modules(checkout)
    return checkout


def _write_tree(top: Path, commit: str, tree: Path, revision: str) -> None:
    """The files of the commit below ``tree``, byte for byte; links last, so that no file is written through one."""
    rows = _git(["-C", str(top), "ls-tree", "-r", "-z", "--full-tree", commit], revision).split("\0")
    entries = [_TreeEntry(*row.split(None, 3)) for row in rows if row]
    for entry in entries:
        if not _is_plain(entry.path):
            raise InvalidConfig(f"commit {revision} has a file {entry.path!r}", fix="name a commit of plain paths")
    files = sorted((entry for entry in entries if entry.kind == "blob"), key=lambda entry: entry.mode == LINK)
    for entry, contents in zip(files, _blobs(top, [entry.object for entry in files], revision), strict=True):
        path = tree / entry.path
        path.parent.mkdir(parents=True, exist_ok=True)
        if entry.mode == LINK:
            path.symlink_to(os.fsdecode(contents))
        else:
            path.write_bytes(contents)
            path.chmod(0o755 if entry.mode == "100755" else 0o644)


@dataclass(frozen=True, slots=True)
class _TreeEntry:
    """A row of ``git ls-tree``: six digits of mode, ``blob`` or ``commit``, the object's name, the path."""

    mode: str
    kind: str
    object: str
    path: str


def _is_plain(path: str) -> bool:
    """Whether a path stays below its folder, and out of git's own."""
    parts = path.split("/")
    return all(part not in ("", ".", "..") and part.lower() != ".git" for part in parts)


def _blobs(top: Path, names: Sequence[str], revision: str) -> Iterator[bytes]:
    """The contents of blobs, in order, as they are stored."""
    line = [*_GIT, "-C", str(top), "cat-file", "--batch"]
    with subprocess.Popen(line, env=_environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE) as reader:
        assert reader.stdin is not None
        assert reader.stdout is not None
        for name in names:
            reader.stdin.write(f"{name}\n".encode())
            reader.stdin.flush()
            head = reader.stdout.readline().split()
            if len(head) != 3:
                raise InvalidConfig(f"git: commit {revision} lacks object {name}", fix="fetch the commit whole")
            yield reader.stdout.read(int(head[2]))
            reader.stdout.read(1)
        reader.stdin.close()


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


def _environment() -> Mapping[str, str]:
    """Ours, with what git may do by itself turned off: no lazy fetch, no prompt, no lock."""
    quiet = {"GIT_NO_LAZY_FETCH": "1", "GIT_TERMINAL_PROMPT": "0", "GIT_OPTIONAL_LOCKS": "0", "GIT_ALLOW_PROTOCOL": ""}
    return os.environ | quiet


def _git(arguments: Sequence[str], revision: str) -> str:
    try:
        done = subprocess.run(
            [*_GIT, *arguments],
            env=_environment(),
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
