"""A step that waits behind a module: what it has computed, to be read and replaced, and how it goes on."""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from tmmu.engine.pause.step_names import StepNames
from tmmu.engine.session import Session
from tmmu.engine.steps.step_runner import PartOfText
from tmmu.runtime.execute.pieces import PausedRun
from tmmu.runtime.memory.slab import host_copy

if TYPE_CHECKING:
    from tmmu.engine.pause.pauses import Pauses


class PausedStep:
    """Made by ``Session.run_until``. ``module``: the module behind which it waits. Others run meanwhile.

    A context manager, which cancels it unless it was resumed.
    """

    def __init__(  # noqa: PLR0913 - what a paused step is made of, by name
        self,
        pauses: "Pauses",
        session: Session,
        *,
        part: PartOfText,
        run: PausedRun,
        names: StepNames,
        module: str,
        undo: "UndoImage",
    ) -> None:
        self.session, self.module, self.part, self.names = session, module, part, names
        self.run, self.undo = run, undo
        self.is_changed = False
        """Whether a value was replaced."""
        self._pauses = pauses

    @property
    def stack(self) -> int:
        """The number of the stack in which it waits, and goes on."""
        return self._pauses.stack

    @property
    def is_paused(self) -> bool:
        """False once it was resumed to its end or cancelled, and once its session is closed."""
        return self.session.paused is self

    @property
    def values(self) -> "PausedValues":
        """The values that the rest of the step may read, by name."""
        return PausedValues(self)

    def replace(self, name: str, tensor: torch.Tensor) -> None:
        """Puts a tensor of its shape and dtype in the place of a value; the rest of the step reads that."""
        self._pauses.write(self, name, tensor)

    def resume(self) -> torch.Tensor:
        """``dtype[vocabulary]``: the logits behind the last token, as ``prefill`` and ``decode`` give them."""
        return self.session.engine.resume(self)

    def run_until(self, module: str) -> None:
        """Goes on to the end of a later module, and pauses there."""
        self.session.engine.resume_until(self, module)

    def cancel(self) -> None:
        """Gives up the step: the session is as before it. Nothing where it is not paused any more."""
        self._pauses.cancel(self)

    def read(self, name: str) -> torch.Tensor:
        """A copy of a value, on the engine's device."""
        return self._pauses.read(self, name)

    def has(self, name: object) -> bool:
        """Whether a value of that name is there."""
        return self._pauses.has(self, name)

    def value_names(self) -> tuple[str, ...]:
        """One name of each value, in the order in which they were computed."""
        return self._pauses.value_names(self)

    @property
    def live_bytes(self) -> int:
        """Bytes of the stack that the rest of the step may read."""
        return self.run.live_bytes

    @property
    def bytes_saved(self) -> int:
        """Bytes that others have had moved to the host so far, since they needed the room."""
        return self.run.bytes_saved

    @property
    def bytes_restored(self) -> int:
        """Of these, what is back."""
        return self.run.bytes_restored

    def __enter__(self) -> "PausedStep":
        return self

    def __exit__(self, *failure: object) -> None:
        self.cancel()

    def __repr__(self) -> str:
        state = f"behind {self.module}, {self.live_bytes} bytes" if self.is_paused else "over"
        return f"<PausedStep: {state}>"


class PausedValues(Mapping[str, torch.Tensor]):
    """Values by name: reading gives a copy, setting one is ``replace``. Iteration has one name of each.

    ``INVALID_CONFIG``, and no ``KeyError``, says what became of a value that is not there.
    """

    def __init__(self, step: PausedStep) -> None:
        self._step = step

    def __getitem__(self, name: str) -> torch.Tensor:
        return self._step.read(name)

    def __contains__(self, name: object) -> bool:
        return self._step.has(name)

    def __setitem__(self, name: str, tensor: torch.Tensor) -> None:
        self._step.replace(name, tensor)

    def get(self, name: str, default: Any = None) -> Any:
        """A copy of a value, or ``default`` where it is not there."""
        return self._step.read(name) if name in self else default

    def __iter__(self) -> Iterator[str]:
        return iter(self._step.value_names())

    def __len__(self) -> int:
        return len(self._step.value_names())


class UndoImage:
    """State that a step changes in place, as it was before: places in an arena, ``uint8[bytes]``, and their bytes."""

    def __init__(self, places: Sequence[torch.Tensor]) -> None:
        self._rows = [(place, host_copy(place)) for place in places]

    def put_back(self) -> None:
        """Has the arena hold what it held."""
        for place, image in self._rows:
            place.copy_(image)

    def drop(self) -> None:
        """Forgets the copies."""
        for _, image in self._rows:
            image.zero_()  # the host's allocator may give these bytes to anybody
        self._rows.clear()
