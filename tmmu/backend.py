"""``torch.compile(model, backend="tmmu")``: every graph that Dynamo finds runs inside a plan of its own.

Forward and backward of a graph are planned as one step. A graph, or a call, that no plan can stand for is run by torch
as it is, with the same bits; ``reports`` says how often, and why. Importing this needs no torch.
"""

import logging
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, Final

from tmmu.cache import PlanCache
from tmmu.driver import Compiled, PlanRequest, cache_folder, compile_graph, traced_key
from tmmu.errors import DeviceMemory, InternalError, InvalidConfig, UserError
from tmmu.ir.graph import Graph
from tmmu.ir.plan import Plan
from tmmu.planner.arenas import default_arenas
from tmmu.planner.token import token_from_seed

if TYPE_CHECKING:
    from tmmu.passes.autograd.joint_graph import SplitStep, TracedStep
    from tmmu.runtime.execute.step_memory import Frame
    from tmmu.runtime.execute.step_memory_pool import Frames

FORMS: Final = 16
"""Forms of arguments (shapes, strides, dtypes, numbers) for which one graph keeps plans; the oldest goes first."""

_LOG: Final = logging.getLogger("tmmu")
_INFERENCE: Final = PlanRequest(mode="inference", preset="inference", token=token_from_seed(0), arenas=default_arenas())
_TRAINING: Final = replace(_INFERENCE, mode="backward", preset="remat_enabled")
_MADE: "Final[list[weakref.ref[Planned]]]" = []


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """One graph: whether it trains, the stack bytes of each of its frames, where its plans came from (``cold``,
    ``table``, ``disk``), how often a half ran inside a plan, and how often, by reason, without one.
    """

    trains: bool
    stack_bytes: tuple[int, ...]
    plans: Mapping[str, int]
    planned: int
    plain: Mapping[str, int]


def backend(
    graph: Any, example_inputs: Sequence[Any], *, mode: str | None = None, options: Mapping[str, Any] | None = None
) -> Callable[..., Any]:
    """What torch.compile calls for each graph: a function that computes the same, bit for bit, inside a plan.

    ``options={"recompute": True}``: of what eager would save for the backward pass, what is cheap is computed again.
    """
    given = dict(options or {})
    recompute = given.pop("recompute", False)
    if mode not in (None, "default") or given or not isinstance(recompute, bool):
        raise InvalidConfig(
            "backend tmmu knows no mode, and one option: recompute, true or false",
            fix='use torch.compile(model, backend="tmmu", options={"recompute": True})',
        )
    from tmmu.passes.autograd.split import split_by_autograd

    return split_by_autograd(graph, example_inputs, Planned, recompute=recompute)


def reports() -> tuple[Report, ...]:
    """One for each compiled graph that is still in use, in the order in which they were compiled."""
    found = [made() for made in _MADE]
    return tuple(one.report() for one in found if one is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Form:
    """One form of arguments: its trace, its plan, and the frames in which that runs."""

    traced: "TracedStep"
    plan: Plan
    frames: "Frames"


class Planned:
    """The halves of one graph, each run in a frame of its plan, or by torch where there is none."""

    def __init__(self, step: "SplitStep", static: frozenset[int]) -> None:
        self._step, self._static = step, static
        self._forms: dict[tuple[Any, ...], _Form | str] = {}
        self._planned, self._plain, self._plans = 0, Counter[str](), Counter[str]()
        self._lock = Lock()
        _MADE[:] = [made for made in _MADE if made() is not None]
        _MADE.append(weakref.ref(self))

    def run_forward(self, args: Sequence[Any]) -> list[Any]:
        """What the first graph returns."""
        from tmmu.passes.autograd.split import run_plain

        try:
            with self._frame(args) as frame:
                return frame.first(args)
        except _Plain as plain:
            self._count(plain.why)
        return run_plain(self._step.forward, args)

    def run_backward(self, args: Sequence[Any]) -> list[Any]:
        """What the second graph returns."""
        from tmmu.passes.autograd.split import run_plain

        if self._step.backward is None:
            raise InternalError("a graph without a backward half was asked for one")
        try:
            with self._frame_of_saved(args) as (frame, loaded):
                return frame.second(args, loaded=loaded)
        except _Plain as plain:
            self._count(plain.why)
        return run_plain(self._step.backward, args)

    def report(self) -> Report:
        """How it has run so far."""
        sizes = tuple(size for form in self._known() for size in form.frames.stack_bytes)
        with self._lock:
            return Report(
                trains=self._step.backward is not None,
                stack_bytes=sizes,
                plans=dict(self._plans),
                planned=self._planned,
                plain=dict(self._plain),
            )

    @contextmanager
    def _frame(self, args: Sequence[Any]) -> "Iterator[Frame]":
        from tmmu.runtime.execute.step_memory_pool import unplannable

        why = unplannable(args)
        if why:
            raise _Plain(why)
        form = self._form(args)
        with form.frames.for_first(args, lambda: self._bound(form, args)) as frame:
            if frame is None:
                raise _Plain("more steps are under way than there are frames")
            self._count()
            yield frame

    @contextmanager
    def _frame_of_saved(self, args: Sequence[Any]) -> "Iterator[tuple[Frame, bool]]":
        """The frame for a second half, and whether what was saved must be loaded into it."""
        from tmmu.runtime.execute.step_memory_pool import goes_back_again, unplannable

        why = unplannable(args)
        if why:
            raise _Plain(why)
        again = goes_back_again()
        for form in self._known():
            if form.frames.accepts(args):
                with form.frames.for_second(args, again=again) as (frame, loaded):
                    if frame is not None:
                        self._count()
                        yield frame, loaded
                        return
        raise _Plain("no frame is free for what was saved")

    def _known(self) -> "list[_Form]":
        with self._lock:
            return [form for form in self._forms.values() if isinstance(form, _Form)]

    def _form(self, args: Sequence[Any]) -> "_Form":
        """The form of these arguments, traced and planned if it is new."""
        from tmmu.runtime.execute.step_memory_pool import form_of, unbindable

        key = form_of(args, self._static)
        with self._lock:
            found = self._forms.get(key)
            if found is None:
                why = unbindable(args)
                if why:
                    raise _Plain(why)
                found = self._forms[key] = self._made(args)
                if len(self._forms) > FORMS:
                    del self._forms[next(iter(self._forms))]
        if isinstance(found, str):
            raise _Plain(found)
        return found

    def _made(self, args: Sequence[Any]) -> "_Form | str":
        """What was traced and planned, or why nothing can be."""
        from tmmu.passes.autograd.joint_graph import trace_joint
        from tmmu.runtime.execute.step_memory_pool import Frames

        try:
            traced = trace_joint(self._step, args, name="torch.compile")
            compiled = _planned(traced.program.graph, _TRAINING if self._step.backward is not None else _INFERENCE)
        except UserError as error:
            return str(error)
        if compiled.cached is not None:
            self._plans[compiled.cached.origin] += 1
        return _Form(traced=traced, plan=compiled.plan, frames=Frames(traced.program))

    def _bound(self, form: "_Form", args: Sequence[Any]) -> "Frame":
        """A frame in memory of its own; a refusal is why there is none, unless the plan itself is wrong."""
        from tmmu.runtime.execute.step_memory import bind_frame
        from tmmu.runtime.execute.step_memory_pool import unbindable

        why = unbindable(args)
        if why:
            raise _Plain(why)
        try:
            return bind_frame(
                form.traced.program,
                form.plan,
                args,
                static=self._static,
                token=_INFERENCE.token,
                weights=form.traced.constants,
            )
        except (UserError, DeviceMemory) as error:
            raise _Plain(str(error)) from error

    def _count(self, why: str = "") -> None:
        with self._lock:
            if not why:
                self._planned += 1
                return
            self._plain[why] += 1
            if self._plain[why] > 1:
                return
        _LOG.warning("a compiled graph runs without a plan: %s", why)


class _Plain(Exception):
    """There is no plan for this call, so that torch must run it; ``why`` says what stood in the way."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why


def _planned(graph: Graph, request: PlanRequest) -> Compiled:
    return compile_graph(graph, request, cache=_plans(cache_folder()), key=traced_key(graph, request))


@cache
def _plans(folder: Path) -> PlanCache:
    """One table of plans for the process, before the files of this folder."""
    return PlanCache(folder)
