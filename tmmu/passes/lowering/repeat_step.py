"""From two steady runs of a user's step to a program that repeats: names of state, numbers of a run, what is carried.

The two runs made the same calls on the same storages, by id (``own_step.py``); so what the second found in a storage is
what the first left there, or the tensor that the first put in its place under the same name.
"""

from collections.abc import Mapping
from typing import Any

import torch

from tmmu.errors import InternalError, UnsupportedOp
from tmmu.ir.graph import CONSTANT, INPUT, PARAMETER, STATE
from tmmu.ir.program import Call, PlacedWindow, Program, RepeatedStep, StepRun, ValueRef
from tmmu.passes.capture.constants import constant_values
from tmmu.passes.capture.program import CapturedProgram, StepRemains, Storage, Window
from tmmu.passes.lowering.lower import lower

_FOUND = (PARAMETER, CONSTANT, STATE)
"""Roles of buffers that are there before the step."""


def repeat_step(captured: CapturedProgram, program: Program) -> RepeatedStep:
    """What two runs of the program, lowered from ``captured``, take and leave.

    ``UNSUPPORTED_OP`` where the step takes turns among tensors, so that one run finds what the one before did not know.
    """
    after = captured.next_run
    if captured.remains is None or after is None or after.remains is None:
        raise InternalError("a program that is no step of the user's was asked how it repeats")
    buffers = _buffers_by_storage(captured, program)
    calls = {op: call for op, call in enumerate(program.calls) if call.numbers_vary}
    later = lower(after).calls if calls else ()
    numbers = {op: _with_numbers_of(call, later[call.origin]) for op, call in calls.items()}
    remaining = ((captured, captured.remains, calls), (after, after.remains, numbers))
    constants = _constants_per_run(captured, after, program, buffers)
    return RepeatedStep(
        runs=tuple(
            StepRun(
                calls=own_calls,
                constants=own_constants,
                left={name: _placed(window, buffers) for name, window in remains.tensors.items()},
                results=tuple(
                    (name, placement)
                    for name, window in remains.results
                    if (placement := _placed(window, buffers)) is not None
                ),
                numbers=remains.numbers,
            )
            for (_, remains, own_calls), own_constants in zip(remaining, constants, strict=True)
        ),
        found=_found(program, captured),
        carried=_carried(captured, captured.remains, after, buffers),
        generators=captured.remains.generators,
        updates=captured.remains.updates,
    )


def _buffers_by_storage(captured: CapturedProgram, program: Program) -> dict[int, int]:
    """By storage, the buffer of what was there before and of what leaves; none for what no op needs."""
    graph = program.graph
    rows = zip(graph.notes.buffers, graph.buffers.role, strict=True)
    by_name = {(name, role == INPUT): buffer for buffer, (name, role) in enumerate(rows) if role in (*_FOUND, INPUT)}
    buffers = {
        storage: by_name[entry.name, entry.role == "input"]
        for storage, entry in enumerate(captured.storages)
        if entry.role is not None and (entry.name, entry.role == "input") in by_name
    }
    outputs = dict.fromkeys(window.in_memory for window in captured.outputs)
    for window, value in zip(outputs, graph.outputs, strict=True):
        buffers[window.storage] = graph.values.buffer[value]
    return buffers


def _placed(window: Window | None, buffers: Mapping[int, int]) -> PlacedWindow | None:
    if window is None or window.storage not in buffers:
        return None
    return PlacedWindow(
        buffer=buffers[window.storage],
        offset=window.offset,
        shape=window.shape,
        stride=window.stride,
        dtype=window.dtype,
        conj=window.conj,
        neg=window.neg,
    )


def _found(program: Program, captured: CapturedProgram) -> dict[int, str]:
    """Names of the buffers that are there before the step, without those whose values the trace knows."""
    graph, known = program.graph, constant_values(captured)
    reached = captured.remains.tensors if captured.remains is not None else {}
    return {
        buffer: name
        for buffer, (name, role) in enumerate(zip(graph.notes.buffers, graph.buffers.role, strict=True))
        if role in _FOUND and (name in reached or name not in known)
    }


def _constants_per_run(
    captured: CapturedProgram, after: CapturedProgram, program: Program, buffers: Mapping[int, int]
) -> tuple[dict[int, torch.Tensor], dict[int, torch.Tensor]]:
    """Tensors that each run makes of numbers, where a run changes them or they are others in the next."""
    named = frozenset(_found(program, captured).values())
    values = [constant_values(run) for run in (captured, after)]
    rows: tuple[dict[int, torch.Tensor], dict[int, torch.Tensor]] = ({}, {})
    for storage, (entry, other) in enumerate(zip(captured.storages, after.storages, strict=False)):
        if entry.role is None or entry.name in named or entry.name not in values[0] or storage not in buffers:
            continue
        before, then = values[0][entry.name], values[1].get(other.name, values[0][entry.name])
        if program.graph.buffers.role[buffers[storage]] == STATE or not _is_equal(before, then):
            rows[0][buffers[storage]], rows[1][buffers[storage]] = before, then
    return rows


def _is_equal(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether bytes are the same; a NaN is itself."""
    return a.contiguous().view(-1).view(torch.uint8).equal(b.contiguous().view(-1).view(torch.uint8))


def _carried(
    captured: CapturedProgram, remains: StepRemains, after: CapturedProgram, buffers: Mapping[int, int]
) -> dict[int, int]:
    """By buffer, the one whose bytes the next run finds there, where it is another."""
    known = constant_values(captured)
    carried: dict[int, int] = {}
    for storage, entry in enumerate(after.storages):
        if entry.role in (None, "input") or storage not in buffers:
            continue
        before, window = captured.storages[storage], remains.tensors.get(entry.name)
        if window is None and entry.name not in (*remains.tensors, *known, before.name):
            raise UnsupportedOp(f"no name leads to {entry.name}, which the step reads", fix="keep it in an attribute")
        if window is not None and window.storage == storage:
            continue
        is_untouched = window is None and entry.name in remains.tensors
        if is_untouched or (window is not None and not _fits(window, before, captured, buffers)):
            raise UnsupportedOp(
                f"the step takes {entry.name} where it took {before.name} the run before",
                fix="plan it, and run a step that reads the same tensors each time",
            )
        if window is not None:
            carried[buffers[storage]] = buffers[window.storage]
    return carried


def _fits(window: Window, place: Storage, captured: CapturedProgram, buffers: Mapping[int, int]) -> bool:
    """Whether the storage of a window is in the program and has the size of another."""
    return window.storage in buffers and captured.storages[window.storage].bytes == place.bytes


def _with_numbers_of(call: Call, other: Call) -> Call:
    """The call with what is no tensor as in another run's."""
    kwargs = dict(other.kwargs)
    return Call(
        operator=call.operator,
        args=tuple(map(_merged, call.args, other.args)),
        kwargs=tuple((name, _merged(value, kwargs[name])) for name, value in call.kwargs),
        results=call.results,
        sequence=call.sequence,
        origin=call.origin,
        switches=call.switches,
        numbers_vary=True,
    )


def _merged(value: Any, other: Any) -> Any:
    if isinstance(value, ValueRef):
        return value
    if isinstance(value, (list, tuple)) and not isinstance(value, torch.Size):
        return type(value)(map(_merged, value, other))
    return other
