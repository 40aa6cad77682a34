"""A process that plans as this one would: it imports what this one would, or what a commit has in place of that.

Python is started without the present folder on its path, so that no file of the user's stands in for a module of
Python's own. It is then given the path of this process. What of that lies in the worktree, also by way of an editable
installation, is the commit's; but ``tmmu`` itself is on both sides what it is here.
"""

import json
import sys
from collections.abc import Iterable, Sequence
from importlib.machinery import BuiltinImporter, FrozenImporter, ModuleSpec, PathFinder
from importlib.util import spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Final, Protocol

from tmmu.cli.commits import Checkout

PROGRAM: Final = (
    "import json, sys; sys.path[:], *moves = json.loads(sys.argv.pop(1)); "
    "from tmmu.cli.planning_process import import_from_commit; import_from_commit(*moves); "
    "from tmmu.cli.main import main; main()"
)
PYTHONS_OWN: Final = (BuiltinImporter, FrozenImporter, PathFinder)
OURS: Final = "tmmu"


def command(arguments: Sequence[str], checkout: Checkout | None) -> list[str]:
    """The command line of ``tmmu`` with these arguments, importing from ``checkout`` where there is one."""
    moves = [str(folder) for folder in (checkout.top, checkout.tree, checkout.current_folder)] if checkout else []
    return [sys.executable, "-P", "-c", PROGRAM, json.dumps([sys.path, *moves]), *arguments]


def import_from_commit(*moves: str) -> None:
    """What is imported from now on is imported from the commit; nothing changes without ``moves``."""
    if not moves:
        return
    top, tree, current_folder = map(Path, moves)
    checkout = Checkout(top=top, tree=tree, current_folder=current_folder)
    sys.path[:] = map(checkout.path_in_commit, sys.path)
    sys.meta_path[:] = [finder if finder in PYTHONS_OWN else CommitFinder(finder, checkout) for finder in sys.meta_path]


class Finder(Protocol):
    """An entry of ``sys.meta_path``."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = ..., /
    ) -> ModuleSpec | None:
        """Where the module is; nothing where it does not know it."""


class CommitFinder:
    """A finder, such as an editable installation's, that finds the modules of a commit in place of the worktree's."""

    def __init__(self, finder: Finder, checkout: Checkout) -> None:
        self._finder = finder
        self._checkout = checkout

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None, /
    ) -> ModuleSpec | None:
        """Where the module is; nothing where the commit lacks it."""
        spec = self._finder.find_spec(fullname, path, target)
        if spec is None or fullname.partition(".")[0] == OURS:
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
        """Whatever else the finder can do, such as name distributions."""
        return getattr(self._finder, name)

    def _all(self, folders: Iterable[str]) -> list[str]:
        return [self._checkout.path_in_commit(folder) for folder in folders]
