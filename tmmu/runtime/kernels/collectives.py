"""Calls between ranks: on which process group of this process, into which memory, and when they are waited for.

Every rank makes the same calls in the same order, so each is made exactly where the program has it, and never tried.
One whose result a later call waits for runs until then, in memory that is its own in the plan; a message from rank to
rank likewise, whose tensor a later call waits for. Any other, and one that reads memory which the plan may give away
after the call, is waited for at once.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Final

import torch

from tmmu.errors import InvalidConfig, UnsupportedOp
from tmmu.ir.graph import Graph
from tmmu.ir.program import Call, Program, RankGroup, ValueRef
from tmmu.runtime.kernels import messages
from tmmu.runtime.kernels.code import Code, instruction, make_instruction
from tmmu.runtime.kernels.overloads import arguments_by_name
from tmmu.runtime.memory.slab import is_same_view, may_overlap
from tmmu.torch_private import OpOverload, running_groups, schema_of, takes_group

WAIT: Final = "_c10d_functional.wait_tensor.default"
_IN_PLACE: Final = {
    "_c10d_functional.all_reduce.default": "all_reduce_",
    "_c10d_functional.broadcast.default": "broadcast_",
}
"""By operator, the one that does the same to a copy of its first argument."""
_INTO: Final = {
    "_c10d_functional.all_gather_into_tensor.default": "all_gather_into_tensor_out",
    "_c10d_functional.reduce_scatter_tensor.default": "reduce_scatter_tensor_out",
}
"""By operator, the one that does the same into a tensor, ``out``."""
_MESSAGES: Final = {"c10d.send.default": ("send", "dst"), "c10d.recv_.default": ("receive", "src")}
"""By operator of messages, ours that begins one, and how torch's calls the other rank."""


@cache
def is_between_ranks(operator: Any) -> bool:
    """Whether a call of it is one of all ranks together, or waits for such a call."""
    return str(operator) == WAIT or _group_position(operator) is not None


@cache
def _group_position(operator: Any) -> int | None:
    """The position of the process group among the arguments; ``None`` for an operator of this process alone."""
    arguments = schema_of(operator).arguments if isinstance(operator, OpOverload) else ()
    return next((i for i, a in enumerate(arguments) if takes_group(a.name, str(a.type))), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Awaited:
    """What later calls wait for: ``results`` of calls, and ``messages``, by the values that their calls name.

    ``waits`` are the values that calls name which wait for messages.
    """

    results: frozenset[int] = frozenset()
    messages: frozenset[int] = frozenset()
    waits: frozenset[int] = frozenset()


NOTHING_AWAITED: Final = Awaited()


def awaited_values(program: Program) -> Awaited:
    """What calls of the program wait for: each for the messages on the buffer of its tensor, or for a result."""
    buffer_of = program.graph.values.buffer
    results, messages_awaited, waits = set[int](), set[int](), set[int]()
    under_way: dict[int, list[int]] = {}
    for call in program.calls:
        if is_message(call):
            for tensor in call.args[0]:
                under_way.setdefault(buffer_of[tensor.value], []).append(tensor.value)
        elif str(call.operator) == WAIT and isinstance(call.args[0], ValueRef):
            value = call.args[0].value
            found = under_way.pop(buffer_of[value], ())
            messages_awaited.update(found)
            (waits if found else results).add(value)
    return Awaited(results=frozenset(results), messages=frozenset(messages_awaited), waits=frozenset(waits))


def is_message(call: Call) -> bool:
    """Whether it is from one rank to one other."""
    return str(call.operator) in _MESSAGES


def is_awaited(call: Call, awaited: Awaited) -> bool:
    """Whether a later call waits for this one; of a call that waits, whether it is for messages."""
    if is_message(call):
        return all(tensor.value in awaited.messages for tensor in call.args[0])
    if str(call.operator) == WAIT:
        return isinstance(call.args[0], ValueRef) and call.args[0].value in awaited.waits
    return call.results[0] in awaited.results


def on_running_groups(program: Program) -> Program:
    """The program with a process group of this process in each call between ranks: the one of the same members.

    ``INVALID_CONFIG`` where this process has none, or is another rank; ``UNSUPPORTED_OP`` for a program of a file,
    which holds no members. A program without such calls is itself.
    """
    ranked = [op for op, call in enumerate(program.calls) if _group_position(call.operator) is not None]
    if not ranked:
        return program
    found: dict[RankGroup, Any] = {}
    calls = list(program.calls)
    for op in ranked:
        position = _group_position(calls[op].operator) or 0
        group = _group_of(calls[op], program.graph, op)
        if group not in found:
            found[group] = _running_group(group)
        is_named = schema_of(calls[op].operator).arguments[position].name == "group_name"
        calls[op] = _with_group(calls[op], found[group].group_name if is_named else found[group].boxed())
    return replace(program, calls=tuple(calls))


def _group_of(call: Call, graph: Graph, op: int) -> RankGroup:
    arguments = (*call.args, *(value for _, value in call.kwargs))
    group = next((value for value in arguments if isinstance(value, RankGroup)), None)
    if group is None:
        raise UnsupportedOp(
            f"op {op} {graph.ops.target[op]} ({graph.notes.ops.source[op]}) is of a group of ranks that no file says",
            fix="bind the program that was traced, in a process of the group",
        )
    return group


def _with_group(call: Call, running: Any) -> Call:
    def exchanged(value: Any) -> Any:
        return running if isinstance(value, RankGroup) else value

    return replace(
        call,
        args=tuple(map(exchanged, call.args)),
        kwargs=tuple((name, exchanged(value)) for name, value in call.kwargs),
    )


def _running_group(group: RankGroup) -> Any:
    """The process group of this process that has these members, in this order."""
    distributed = torch.distributed
    if not (distributed.is_available() and distributed.is_initialized()):
        raise InvalidConfig(
            f"the program is rank {group.rank} of {group.world}, and this process has no process group",
            fix=f"run it with tmmu run --world {group.world}, or bind it in a process that torchrun starts",
        )
    rank, world = distributed.get_rank(), distributed.get_world_size()
    if (rank, world) != (group.rank, group.world):
        raise InvalidConfig(
            f"the program is rank {group.rank} of {group.world}, and this process is rank {rank} of {world}",
            fix=f"capture it with world={world} and rank={rank}",
        )
    for running, members in running_groups().items():
        if members == group.members:
            return running
    raise InvalidConfig(
        f"no process group of this process has the ranks {', '.join(map(str, group.members))}",
        fix="make the device mesh of the model before the program is bound",
    )


def make_groups(program: Program) -> None:
    """Make the process groups that calls of any rank name, but for that of all: all ranks make all, in one order."""
    calls = [call for call in program.calls if _group_position(call.operator) is not None]
    arguments = (value for call in calls for value in (*call.args, *(value for _, value in call.kwargs)))
    named = {value.members for value in arguments if isinstance(value, RankGroup)}
    named_by_all: list[Any] = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(named_by_all, named)
    for members in sorted(set().union(*named_by_all) - {*running_groups().values()}):
        torch.distributed.new_group(list(members))


def code_between_ranks(
    call: Call,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    into: Sequence[torch.Tensor | None],
    *,
    is_awaited_later: bool,
) -> Code:
    """Code of a call on these arguments, which has its results ``into`` these places once it has been waited for.

    ``is_awaited_later``: a later call waits for it, so that this one need not; of one that waits, that it is for
    messages.
    """
    arguments = arguments_by_name(call.operator, args, kwargs)
    if is_awaited_later and (str(call.operator) in _MESSAGES or str(call.operator) == WAIT):
        return _message_code(str(call.operator), arguments)
    name, results = str(call.operator), [place for place in into if place is not None]
    if name == WAIT:
        return (make_instruction(call.operator, args, kwargs, into=_copied(into, arguments["tensor"])),)
    as_it_is = (replace(make_instruction(call.operator, args, kwargs, into=into), waits=True),)
    source = arguments.get("input")
    if len(results) != 1 or not results[0].is_contiguous() or not isinstance(source, torch.Tensor):
        return as_it_is
    result, is_source, is_apart = results[0], is_same_view(source, results[0]), not may_overlap(source, results[0])
    if name in _IN_PLACE and (is_source or is_apart):
        overload = getattr(torch.ops._c10d_functional, _IN_PLACE[name]).default
        reduced = replace(instruction(overload, **(arguments | {"input": result})), waits=not is_awaited_later)
        return (reduced,) if is_source else (instruction(torch.ops.aten.copy_.default, result, source), reduced)
    if name in _INTO and is_apart:
        overload = getattr(torch.ops._c10d_functional, _INTO[name]).default
        return (replace(instruction(overload, **arguments, out=result), waits=True),)
    return as_it_is


def _message_code(name: str, arguments: Mapping[str, Any]) -> Code:
    """Code that begins messages, one for each tensor, or waits for those of its tensor."""
    ours = getattr(torch.ops, messages.NAMESPACE)
    if name == WAIT:
        return (instruction(ours.wait.default, arguments["tensor"]),)
    begin, peer = _MESSAGES[name]
    operator = getattr(ours, begin).default
    others = (arguments["process_group"], arguments[peer], arguments["tag"])
    return tuple(instruction(operator, tensor, *others) for tensor in arguments["tensors"])


def _copied(into: Sequence[torch.Tensor | None], tensor: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
    """The places that are not the tensor itself."""
    places = tuple(None if place is None or is_same_view(tensor, place) else place for place in into)
    return places if any(place is not None for place in places) else ()
