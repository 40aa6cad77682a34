"""Whether a folder of plans is the user's alone: who can write there can compute digests, and would be believed.

As ssh does for keys: the folder and what it lies in belong to the user or to root, and nobody else may write there. A
parent with the sticky bit may be shared, since names in it can be changed by their owners alone.
"""

import os
import stat
from pathlib import Path
from typing import Final

_MAY_WRITE: Final = stat.S_IWGRP | stat.S_IWOTH


def shared_folder(folder: Path) -> str:
    """Why others could put files into the folder, in one line; ``""`` where they cannot or there is no such folder."""
    if os.name != "posix":
        return ""
    path = Path(os.path.realpath(folder))
    try:
        if not path.is_dir():
            return ""
        objections = (_objection(parent, parent.stat(), own=parent == path) for parent in (path, *path.parents))
        return next(filter(None, objections), "")
    except OSError as error:
        return f"{folder}: {error.strerror}"


def _objection(path: Path, status: os.stat_result, *, own: bool) -> str:
    """Why a folder, the ``own`` one or a parent, is not the user's; a parent's group may be the user's or root's."""
    if status.st_uid not in (0, os.geteuid()):
        return f"{path} belongs to another user"
    writers = status.st_mode & _MAY_WRITE
    if not own and status.st_mode & stat.S_ISVTX:
        return ""
    if not own and status.st_gid in (0, os.getegid()):
        writers &= ~stat.S_IWGRP
    return f"others may write to {path}" if writers else ""
