"""A lock that a thread may not take twice."""

from threading import Lock, get_ident

from tmmu.errors import InvalidConfig


class ExclusiveAccess:
    """A lock for ``with``: another thread waits; the thread that holds it gets ``INVALID_CONFIG``, not a deadlock."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._owner: int | None = None

    def __enter__(self) -> None:
        # Only the owner itself can read its own id here, so the read needs no lock.
        if self._owner == get_ident():
            raise InvalidConfig(
                "the executor was called from inside its own step", fix="bind a second executor with its own segments"
            )
        self._lock.acquire()
        self._owner = get_ident()

    def __exit__(self, *_: object) -> None:
        self._owner = None
        self._lock.release()
