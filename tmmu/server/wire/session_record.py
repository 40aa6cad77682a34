"""A session that was opened over the wire: whose it is, and the numbers of what may be looked at."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Lock
from typing import TYPE_CHECKING

from tmmu.errors import InvalidConfig, ReferenceStale
from tmmu.server.served_model import ServedModel
from tmmu.wire.session_messages import KeptEntry, KeptList, SessionState
from tmmu.wire.tensor_forms import TensorForm

if TYPE_CHECKING:
    import torch

    from tmmu.engine.session import Session


@dataclass(slots=True, eq=False)
class SessionRecord:
    """``epoch``: of its logits, 0 before there are any. ``kept``: values by name, with their epochs."""

    session: "Session"
    model: ServedModel
    client: str
    lease: float
    epoch: int = 0
    kept: dict[str, KeptEntry] = field(default_factory=dict)
    connections: set[str] = field(default_factory=set)
    """Those that use it: while one is open its lease is renewed."""
    _numbers: int = 0
    _turn: Lock = field(default_factory=Lock)

    @property
    def state(self) -> SessionState:
        """What a client is told of it."""
        session = self.session
        return SessionState(
            session=session.capability,
            model=self.model.name,
            length=session.length,
            capacity=session.capacity,
            arena_bytes=session.arena_bytes,
            epoch=self.epoch,
            lease=self.lease,
        )

    @property
    def kept_list(self) -> KeptList:
        """What it keeps."""
        return KeptList(values=tuple(self.kept.values()))

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Block in which nobody else reads or writes it; ``INVALID_CONFIG`` where somebody does."""
        if not self._turn.acquire(blocking=False):
            raise InvalidConfig("the session waits for a step already", fix="wait for that, or cancel it")
        try:
            yield
        finally:
            self._turn.release()

    @contextmanager
    def writing(self) -> Iterator[None]:
        """A turn in which the logits change; those from before are stale even where it fails."""
        with self.turn():
            self.epoch = self._next()
            yield

    def keep(self, name: str, tensor: "torch.Tensor") -> None:
        """Keeps a value under a name."""
        self.session.kept[name] = tensor
        self.kept.pop(name, None)
        form = TensorForm(dtype=str(tensor.dtype).removeprefix("torch."), shape=tuple(tensor.shape))
        self.kept[name] = KeptEntry(name=name, epoch=self._next(), form=form)

    def drop(self, name: str) -> None:
        """Keeps it no longer."""
        del self.session.kept[name]
        self.kept.pop(name, None)

    def value(self, name: str, epoch: int) -> "torch.Tensor":
        """A copy of the logits, or of a value that is kept. ``REFERENCE_STALE`` where it is another by now."""
        if name:
            entry = self.kept.get(name)
            if entry is None or entry.epoch != epoch:
                raise ReferenceStale(f"{name!r:.80} was replaced, or is kept no longer", fix="ask for what is kept now")
            return self.session.kept[name]
        logits = self.session.logits if epoch == self.epoch else None
        if logits is None:
            raise ReferenceStale("the session went on: its logits are others now", fix="keep them under a name first")
        return logits

    def fork(self, session: "Session") -> "SessionRecord":
        """The record of a session that has read the same."""
        return SessionRecord(
            session, self.model, self.client, self.lease, self.epoch, dict(self.kept), _numbers=self._numbers
        )

    def _next(self) -> int:
        self._numbers += 1
        return self._numbers
