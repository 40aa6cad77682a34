"""What a child has of its parent's connections after a ``fork``: nothing. Two processes that send on one connection
would break it for both, and locks that another thread held are never released in a child.
"""

import os
from typing import Final, Protocol
from weakref import WeakSet


class Forked(Protocol):
    """What a child cannot share with its parent."""

    def leave_to_parent(self) -> None:
        """Ends it in a child, which has one thread by then, without a sign to anybody else; with locks of its own."""


def leave_to_parent(owner: Forked) -> None:
    """Has something left to this process in each child that it forks from now on, for as long as it lives."""
    _OWNERS.add(owner)


def _leave_all() -> None:
    for owner in tuple(_OWNERS):
        owner.leave_to_parent()


_OWNERS: Final[WeakSet[Forked]] = WeakSet()
os.register_at_fork(after_in_child=_leave_all)
