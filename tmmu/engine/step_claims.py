"""Which sessions are in a step now: the engine's lock is free while steps run, so that several may at once."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from threading import Condition, RLock

from tmmu.engine.session import Session


class StepClaims:
    """Whoever has ``lock``, and has waited for a session, has its state alone until he gives up the lock.

    Invariant: a session is claimed by one step at most, because it waits for one request at a time.
    """

    def __init__(self, lock: RLock) -> None:
        self._lock, self._ended = lock, Condition(lock)
        self._in_step = set[str]()

    @contextmanager
    def claimed(self, begin: Callable[[], Sequence[Session]]) -> Iterator[None]:
        """Block of a step, of the sessions that ``begin`` returns; that is called with the lock, the block without."""
        keys: list[str] = []
        try:
            with self._lock:
                keys += [session.capability for session in begin()]
                self._in_step.update(keys)
            yield
        finally:
            with self._lock:
                self._in_step.difference_update(keys)
                self._ended.notify_all()

    def wait_for(self, session: Session) -> None:
        """Waits until no step of a session runs. The lock is held, and given up meanwhile, however often it was taken:
        whatever was looked at before may be otherwise afterwards.
        """
        self._ended.wait_for(lambda: session.capability not in self._in_step)
