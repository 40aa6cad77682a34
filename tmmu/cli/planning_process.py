"""Child processes that plan one side of ``tmmu diff`` each, with the modules of the worktree or of a commit.

Python starts with ``-P``, without the current folder on its path, so that no file in it shadows the standard library,
and then takes over ``sys.path`` of this process. For a commit, paths in the worktree are replaced by the commit's, also
those that an editable installation finds. Invariant: ``tmmu`` itself is the running one on both sides.
"""

import json
import sys
from collections.abc import Iterable, Sequence
from importlib.machinery import BuiltinImporter, FrozenImporter, ModuleSpec, PathFinder
from importlib.util import spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any, Final, Protocol

from tmmu import errors
from tmmu.cli.commits import Checkout
from tmmu.errors import InternalError, TmmuError

PROGRAM: Final = (
    "import json, sys; sys.path[:], *moves = json.loads(sys.argv.pop(1)); "
    "from tmmu.cli.planning_process import import_from_commit; import_from_commit(*moves); "
    "from tmmu.cli.main import main; main()"
)
BUILTIN_FINDERS: Final = (BuiltinImporter, FrozenImporter, PathFinder)
OWN_PACKAGE: Final = "tmmu"


def command_line(arguments: Sequence[str], checkout: Checkout | None) -> list[str]:
    """The command line that runs ``tmmu`` with these arguments, with the modules of ``checkout`` if there is one."""
    moves = [str(folder) for folder in (checkout.top, checkout.tree, checkout.current_folder)] if checkout else []
    return [sys.executable, "-P", "-c", PROGRAM, json.dumps([sys.path, *moves]), *arguments]


def refusal_of_child(name: str, out: str, code: int, *, verb: str) -> TmmuError:
    """The error that a child of ``--json`` ended with, by what it wrote, under the name of what it was to do."""
    kinds = {
        kind.code: kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, TmmuError)
    }
    try:
        record = last_record(out)
        kind, message, fix = kinds[record["code"]], record["what"], record["fix"]
    except (ValueError, KeyError, TypeError):
        return InternalError(f"{name}: {verb} ended with {code} and said nothing", fix="do it by itself")
    return kind(f"{name}: {message}", fix=fix)


def last_record(out: str) -> dict[str, Any]:
    """What a child of ``--json`` said, in its last line: code of the model may have written before it.

    ``ValueError`` if it is no record.
    """
    record = json.loads(out.rstrip("\n").rpartition("\n")[2])
    if not isinstance(record, dict):
        raise ValueError("not a record")
    return record


def import_from_commit(*moves: str) -> None:
    """Redirect later imports to the commit (top, tree and current folder of its checkout); no-op without ``moves``."""
    if not moves:
        return
    top, tree, current_folder = map(Path, moves)
    checkout = Checkout(top=top, tree=tree, current_folder=current_folder)
    sys.path[:] = map(checkout.path_in_commit, sys.path)
    sys.meta_path[:] = [
        finder if finder in BUILTIN_FINDERS else CommitFinder(finder, checkout) for finder in sys.meta_path
    ]


class Finder(Protocol):
    """An entry of ``sys.meta_path``."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = ..., /
    ) -> ModuleSpec | None:
        """The module's spec, or ``None`` if the finder does not know it."""


class CommitFinder:
    """Wraps a finder, such as an editable installation's: modules of the worktree are replaced by the commit's."""

    def __init__(self, finder: Finder, checkout: Checkout) -> None:
        self._finder = finder
        self._checkout = checkout

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None, /
    ) -> ModuleSpec | None:
        """The module's spec in the commit, or ``None`` if the commit lacks it."""
        spec = self._finder.find_spec(fullname, path, target)
        if spec is None or fullname.partition(".")[0] == OWN_PACKAGE:
            return spec
        folders = None if spec.submodule_search_locations is None else self._all(spec.submodule_search_locations)
        if spec.origin is None or not spec.has_location:
            spec.submodule_search_locations = folders
            return spec
        committed = self._checkout.path_in_commit(spec.origin)
        if committed == spec.origin:
            return spec
        exists = Path(committed).exists()
        return spec_from_file_location(fullname, committed, submodule_search_locations=folders) if exists else None

    def __getattr__(self, name: str) -> object:
        """Other methods of the finder, such as ``find_distributions``."""
        return getattr(self._finder, name)

    def _all(self, folders: Iterable[str]) -> list[str]:
        return [self._checkout.path_in_commit(folder) for folder in folders]
