"""Paused steps of an engine: how they begin, go on and end. One at most for each session.

A paused step runs the code of the step of its shape, which is cut where it pauses; so it has that step's bits. State
that grows needs nothing for a step that is given up: its positions lie behind the session's length, and are written
again. State that recurs is copied before the step, and put back.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from threading import RLock
from typing import Protocol

import torch

from tmmu.engine.arguments import require_values
from tmmu.engine.capture.step import StepShape
from tmmu.engine.geometry import StateLengths
from tmmu.engine.pause.paused_step import PausedStep, UndoImage
from tmmu.engine.pause.step_names import StepNames
from tmmu.engine.queue.scheduler import Request
from tmmu.engine.session import Session
from tmmu.engine.steps.step_runner import PartOfText, StepRunner
from tmmu.engine.steps.steps_by_shape import StepsByShape
from tmmu.errors import InvalidConfig
from tmmu.runtime.execute.pieces import BufferWindow, PieceRunner
from tmmu.runtime.memory.zero import zero_tensor


@dataclass(slots=True, kw_only=True, eq=False)
class PauseRequest(Request[Session, torch.Tensor]):
    """A piece of a step: up to the end of module ``until``, or to the step's own. Its result is the logits there.

    ``paused``: the step that goes on, or, once it is done, the one that it began. ``is_token``: the only token is
    decoded, and not read as a prompt is.
    """

    until: str | None
    is_token: bool = False
    paused: PausedStep | None = None


@dataclass(slots=True)
class PauseCounts:
    """How many steps were begun with a pause, and bytes of the stack that were moved for others, and back."""

    pauses: int = 0
    bytes_saved: int = 0
    bytes_restored: int = 0


class Hold(Protocol):
    """What keeps the state of a session on the device."""

    def __call__(self, session: Session, *, ends: bool) -> None:
        """From now on; with ``ends``: not any more."""


class Pauses:
    """Steps of an engine that pause. ``lock`` is the engine's; ``touch`` notes that somebody asks for a session.

    ``writing``: block in which the state of a session is written. ``settle``: waits, with the lock, until a session is
    in no step. ``stack``: the number of the stack in which its steps run and wait; ``counts`` are of all stacks.
    """

    def __init__(  # noqa: PLR0913 - what it takes of the engine, by name
        self,
        *,
        steps: StepsByShape,
        runner: StepRunner,
        lock: RLock,
        touch: Callable[[Session], None],
        hold: Hold,
        writing: Callable[[Session], AbstractContextManager[None]],
        settle: Callable[[Session], None],
        stack: int,
        counts: PauseCounts,
    ) -> None:
        self._steps, self._runner, self._lock, self._touch = steps, runner, lock, touch
        self._hold, self._writing, self._settle = hold, writing, settle
        self.stack, self.counts = stack, counts
        self._pieces: dict[StepShape, tuple[PieceRunner, StepNames]] = {}

    def run(self, request: PauseRequest) -> torch.Tensor | None:
        """Runs the next piece of a request, whose session is in no other step; ``None`` where a part of its prompt was
        read before it.

        The result of a step that pauses has no elements.
        """
        return self._begin(request) if request.paused is None else self._continue(request, request.paused)

    def cancel(self, paused: PausedStep) -> None:
        """Gives up a paused step: the session is as it was before."""
        with self._lock:
            self._settle(paused.session)
            self._give_up(paused)

    def _give_up(self, paused: PausedStep) -> None:
        if paused.is_paused:
            with self._writing(paused.session):
                paused.undo.put_back()
                self._clear_behind(paused, paused.session.length + paused.part.shape.tokens)
            self._end(paused)

    def drop(self, session: Session) -> None:
        """Forgets the paused step of a session that ends, where it has one."""
        if session.paused is not None:
            self._end(session.paused)

    def piece_runner(self, shape: StepShape) -> PieceRunner:
        """What runs the step of a shape in pieces."""
        return self._pieces_of(shape)[0]

    def inputs_of(self, part: PartOfText) -> dict[str, torch.Tensor]:
        """What the step of a part takes."""
        return self._steps.step(part.shape).inputs_of(part.inputs)

    def value_names(self, paused: PausedStep) -> tuple[str, ...]:
        """One name of each value that is there."""
        with self._lock:
            self._require_paused(paused)
            return paused.names.names_at(paused.run.position, paused.run.versions, paused.module)

    def has(self, paused: PausedStep, name: object) -> bool:
        """Whether a value of that name is there."""
        with self._lock:
            self._require_paused(paused)
            return paused.names.has(name, paused.run.position, paused.run.versions)

    def read(self, paused: PausedStep, name: str) -> torch.Tensor:
        """A copy of a value; ``INVALID_CONFIG`` that says what became of one that is not there."""
        with self._lock:
            return paused.run.read(self._find(paused, name))

    def write(self, paused: PausedStep, name: str, tensor: torch.Tensor) -> None:
        """Replaces a value; ``INVALID_CONFIG`` for one that is not there, and a tensor of another shape or dtype."""
        with self._lock:
            window = self._find(paused, name)
            if not isinstance(tensor, torch.Tensor):
                raise InvalidConfig(f"{name} is replaced by a {type(tensor).__name__}", fix="give a tensor", name=name)
            require_values(name, tensor)
            paused.run.write(window, tensor)
            paused.is_changed = True

    def _find(self, paused: PausedStep, name: str) -> BufferWindow:
        self._require_paused(paused)
        value = paused.names.find(name, paused.run.position, paused.run.versions)
        return value.window_of(paused.part.shape.tokens, paused.part.tokens)

    def _require_paused(self, paused: PausedStep) -> None:
        self._touch(paused.session)
        self._settle(paused.session)
        require_paused(paused)

    def _begin(self, request: PauseRequest) -> torch.Tensor | None:
        session, remaining = request.owner, request.tokens[request.done :]
        assert request.until is not None
        part = self._part(request)
        pieces, names = self._pieces_of(part.shape)
        position = names.end_of(request.until)  # before anything runs
        if part.tokens < len(remaining):
            request.done += self._runner.run_part(session, part)
            return None
        undo = self._undo_image(session)
        try:
            state = self._runner.views_of(session, part.shape, 0)
            run = pieces.start(self.inputs_of(part), position, state=state)
        except BaseException:
            undo.put_back()
            raise
        with self._lock:
            self.counts.pauses += 1
        self._hold(session, ends=False)
        session.paused = request.paused = PausedStep(
            self, session, part=part, run=run, names=names, module=request.until, undo=undo
        )
        return torch.empty(0)

    def _part(self, request: PauseRequest) -> PartOfText:
        remaining = request.tokens[request.done :]
        if request.is_token:
            return self._runner.token_part(request.owner, remaining[0])
        return self._runner.prompt_part(request.owner, remaining)

    def _continue(self, request: PauseRequest, paused: PausedStep) -> torch.Tensor:
        session, run = request.owner, paused.run
        require_paused(paused)
        state = self._runner.views_of(session, paused.part.shape, 0)
        try:
            if request.until is not None:
                run.advance(self._later_end(paused, request.until), state=state)
                paused.module = request.until
                return torch.empty(0)
            (logits,) = run.finish(state=state)
        except BaseException:
            if not run.is_paused:
                self._give_up(paused)
            raise
        end = session.length + paused.part.shape.tokens
        self._runner.finish_part(session, paused.part, logits)
        self._clear_behind(paused, end)
        self._end(paused)
        return logits[0]

    def _later_end(self, paused: PausedStep, module: str) -> int:
        end = paused.names.end_of(module)
        if end < paused.run.position:
            raise InvalidConfig(
                f"{module} has run before {paused.module} ended", fix="name a later module, or cancel", module=module
            )
        return end

    def _clear_behind(self, paused: PausedStep, end: int) -> None:
        """Zeroes the positions from the session's length to ``end``, where a replaced value may have left what is not
        finite: a later step gives such a position no weight, and nothing times infinity is no number.
        """
        if not paused.is_changed:
            return
        session, slab = paused.session, self._steps.segments.slabs["data"]
        geometry = self._steps.subject.geometry
        for name, offset in geometry.offsets(session.capacities).items():
            tensor = geometry.by_name[name]
            if tensor.grows and tensor.along == "text":
                low, high = (tensor.bytes_for(StateLengths(text, 0)) for text in (session.length, end))
                zero_tensor(slab.bytes(session.base + offset + low, high - low))

    def _end(self, paused: PausedStep) -> None:
        paused.run.discard()
        paused.undo.drop()
        paused.session.paused = None
        self._hold(paused.session, ends=True)
        with self._lock:
            self.counts.bytes_saved += paused.run.bytes_saved
            self.counts.bytes_restored += paused.run.bytes_restored

    def _pieces_of(self, shape: StepShape) -> tuple[PieceRunner, StepNames]:
        if shape not in self._pieces:
            step = self._steps.step(shape)
            bound = step.executor.bound
            names = StepNames(bound.graph, bound.plan, step.results)
            self._pieces[shape] = PieceRunner(step.executor), names
        return self._pieces[shape]

    def _undo_image(self, session: Session) -> UndoImage:
        """Of the state that recurs."""
        geometry, slab = self._steps.subject.geometry, self._steps.segments.slabs["data"]
        offsets = geometry.offsets(session.capacities) if geometry.recurs else {}
        return UndoImage(
            [
                slab.bytes(session.base + offsets[tensor.name], tensor.bytes_for(session.capacities))
                for tensor in geometry.tensors
                if not tensor.grows
            ]
        )


def require_module(module: object) -> str:
    """``module``, a text; ``INVALID_CONFIG`` for anything else."""
    if not isinstance(module, str):
        raise InvalidConfig(f"the module is {module!r:.40}", fix="name one, such as model.layers.15")
    return module


def require_paused(paused: PausedStep) -> None:
    """``INVALID_CONFIG`` once a step was resumed or cancelled, ``SESSION_UNKNOWN`` once its session is closed."""
    paused.session.require_open()
    if not paused.is_paused:
        raise InvalidConfig("the step is not paused any more", fix="pause another one: session.run_until")
