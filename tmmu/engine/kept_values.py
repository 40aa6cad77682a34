"""What a client keeps in the arena of its session between calls: tensors by name, within a quota."""

from collections.abc import Iterator, MutableMapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch

from tmmu.engine.arguments import require_values
from tmmu.engine.geometry import KEPT
from tmmu.errors import InvalidConfig, SegmentFull
from tmmu.runtime.memory.usage import round_up
from tmmu.runtime.memory.zero import zero_tensor

if TYPE_CHECKING:
    from tmmu.engine.session import Session


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptValue:
    """A value in the bytes that a session keeps: ``size`` bytes from ``offset`` on, padded to ``room``."""

    offset: int
    size: int
    room: int
    dtype: torch.dtype
    shape: tuple[int, ...]


class KeptValues(MutableMapping[str, torch.Tensor]):
    """The values of a session by name; ``Engine.open(keep=)`` says how many bytes they may take.

    Setting one copies it into the arena, where it moves with the session, and a fork has its own; reading one gives a
    copy on the engine's device. No step runs meanwhile. ``SEGMENT_FULL`` for more than there is room for; what was
    there stays then. ``INVALID_CONFIG``, and no ``KeyError``, for a value that is not there.

    Invariant: values lie one behind another, in the order in which they were set, without a gap.
    """

    def __init__(self, session: "Session") -> None:
        self._session = session
        self._values: dict[str, KeptValue] = {}
        self.used = 0
        """Bytes that they take, each padded."""

    def __setitem__(self, name: str, tensor: torch.Tensor) -> None:
        if not isinstance(name, str):
            raise InvalidConfig(f"a value is named {name!r:.40}", fix="name it by a text")
        source = _bytes_of(tensor)
        room = round_up(len(source), self._session.engine.geometry.alignment)
        with self._session.engine.state_of(self._session, lambda: name in self._values):
            before = self._values.get(name)
            self._require_room(room, 0 if before is None else before.room)
            if before is not None:
                self._take_out(name)
            value = KeptValue(
                offset=self.used, size=len(source), room=room, dtype=tensor.dtype, shape=tuple(tensor.shape)
            )
            self._bytes(self.used, len(source)).copy_(source)
            self._values, self.used = {**self._values, name: value}, self.used + room

    def __getitem__(self, name: str) -> torch.Tensor:
        with self._session.engine.state_of(self._session):
            value = self._value(name)
            return self._bytes(value.offset, value.size).clone().view(value.dtype).reshape(value.shape)

    def __delitem__(self, name: str) -> None:
        with self._session.engine.state_of(self._session, lambda: True):
            self._value(name)
            self._take_out(name)

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and name in self._values

    def get(self, name: str, default: Any = None) -> Any:
        """A copy of a value, or ``default`` where it is not there."""
        return self[name] if isinstance(name, str) and name in self._values else default

    def pop(self, name: str, *default: Any) -> Any:
        """A copy of a value, which is deleted, or ``default`` where it is not there and one is given."""
        if default and name not in self:
            return default[0]
        value = self[name]
        del self[name]
        return value

    def setdefault(self, name: str, default: Any = None) -> Any:
        """A copy of a value, which is set to ``default`` where it is not there."""
        if name not in self:
            self[name] = default
        return self[name]

    def __iter__(self) -> Iterator[str]:
        return iter(tuple(self._values))

    def __len__(self) -> int:
        return len(self._values)

    def take_over(self, other: "KeptValues") -> None:
        """Has the values of a session of which the arena is a copy."""
        self._values, self.used = dict(other._values), other.used

    def _value(self, name: str) -> KeptValue:
        if name not in self:
            names = ", ".join(map(repr, self._values)) or "nothing"
            raise InvalidConfig(f"the session keeps no {name!r:.40}", fix=f"it keeps {names:.80}")
        return self._values[name]

    def _take_out(self, name: str) -> None:
        """Moves what lies behind a value to its place, and clears what is behind the last then."""
        gone = self._values[name]
        end = gone.offset + gone.room
        others = {
            other: replace(value, offset=value.offset - gone.room) if value.offset >= end else value
            for other, value in self._values.items()
            if other != name
        }
        behind = self._bytes(end, self.used - end).clone()
        place, last = self._bytes(gone.offset, len(behind)), self._bytes(self.used - gone.room, gone.room)
        try:
            place.copy_(behind)
        finally:  # whoever is interrupted behind the copy has values where they lie now
            self._values, self.used = others, self.used - gone.room
        zero_tensor(last)

    def _require_room(self, room: int, freed: int) -> None:
        quota = self._session.capacities.kept
        free = quota - self.used + freed
        if room > free:
            raise SegmentFull(
                f"a value of {room} bytes, where the session may keep {quota} and has {free} left",
                fix=f"open it with keep={self.used - freed + room} or more, or delete a value of it",
                segment=self._session.arena,
                bytes=room,
                free=free,
                capacity=quota,
            )

    def _bytes(self, offset: int, size: int) -> torch.Tensor:
        session = self._session
        begin = session.base + session.engine.geometry.offsets(session.capacities)[KEPT]
        return session.engine.segments.slabs["data"].bytes(begin + offset, size)


def _bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    """``uint8[bytes]``: the values of a dense tensor, row by row; ``INVALID_CONFIG`` for anything else."""
    if not isinstance(tensor, torch.Tensor) or tensor.is_quantized:
        raise InvalidConfig(f"a {type(tensor).__name__} cannot be kept", fix="give a dense tensor")
    require_values("the value", tensor)
    rows = tensor.detach().resolve_conj().resolve_neg().reshape(-1)
    if rows.stride() != (1,):
        rows = rows.clone(memory_format=torch.contiguous_format)
    return rows.view(torch.uint8)
