"""What a pass may change: each row of the pass table declares it, and the graph that comes out is held against that.

A rule of meaning takes the program before and after, and gives every breach as a fault. It shares no code with the
pass that it judges. Calls keep the position at which they were captured (``Call.origin``), so that which op came from
which need not be guessed. Linear in the program.
"""

from collections.abc import Callable, Iterable, Iterator
from itertools import accumulate, zip_longest

from tmmu.ir.fault import Fault
from tmmu.ir.graph import PERSISTENT_ROLES, Graph, Ops
from tmmu.ir.program import GraphHalf, Program, ValueRef
from tmmu.ir.windows import windows, writers
from tmmu.passes.operators.table import facts_of

Meaning = Callable[[Program, Program], Iterator[Fault]]


def changes_only(*columns: str) -> Meaning:
    """Nothing changes but these columns of the ops, ``calls`` for those of the calls; notes are free."""

    def check(before: Program, after: Program) -> Iterator[Fault]:
        old, new = before.graph, after.graph
        for name in ("target", "buffers", "values", "inputs", "outputs"):
            if getattr(old, name) != getattr(new, name):
                yield Fault(rule="meaning", what=f"{name} changed")
        for name in Ops.__slots__:
            if name not in columns and getattr(old.ops, name) != getattr(new.ops, name):
                yield Fault(rule="meaning", what=f"ops.{name} changed")
        if "calls" not in columns and old.calls != new.calls:
            yield Fault(rule="meaning", what="the calls' columns changed")
        if before.calls != after.calls or before.joint != after.joint:
            yield Fault(rule="meaning", what="calls or halves changed")

    return check


def drops_without_effect(before: Program, after: Program) -> Iterator[Fault]:
    """Some ops go that have no effect; all others compute the same of the same, and the same leaves."""
    position = {call.origin: op for op, call in enumerate(before.calls)}
    match = _Correspondence(before, after)
    last, matched = -1, set[int]()
    for op, call in enumerate(after.calls):
        old = position.get(call.origin, -1)
        if old <= last:
            yield Fault(rule="meaning", what=f"op {op} was not there, or has moved", op=op)
            return
        last = old
        matched.add(old)
        if not match.same_op(old, op):
            yield Fault(rule="meaning", what=f"op {op} ({call.operator}) is another one now", op=op)
    for op in range(len(before.calls)):
        if op not in matched and _has_effect(before, op):
            yield Fault(rule="meaning", what=f"op {op} has an effect, and is gone", op=op)
    for name in ("inputs", "outputs"):
        if not match.same_values(getattr(before.graph, name), getattr(after.graph, name)):
            yield Fault(rule="meaning", what=f"the {name} are others")
    if (
        _persistent_buffers(before.graph) != _persistent_buffers(after.graph)
        or before.graph.target != after.graph.target
    ):
        yield Fault(rule="meaning", what="the target or what outlives the step is another")
    if not match.same_halves(matched):
        yield Fault(rule="meaning", what="the halves hand out other values, or elsewhere")


def _persistent_buffers(graph: Graph) -> list[tuple[str, int, str]]:
    """(role, bytes, name) of what the caller and the session keep, in order, read or not."""
    rows = zip(graph.buffers.role, graph.buffers.bytes, graph.notes.buffers, strict=True)
    return [row for row in rows if row[0] in PERSISTENT_ROLES]


def _has_effect(program: Program, op: int) -> bool:
    """Whether more comes of an op than values: it draws, changes what outlives the step, or nobody knows."""
    graph = program.graph
    facts = facts_of(graph.ops.target[op])
    roles = {graph.buffers.role[graph.values.buffer[value]] for value in graph.ops.writes[op]}
    return not facts.has_row or facts.random or not roles or not roles.isdisjoint(PERSISTENT_ROLES)


def _same_number(old: object, new: object) -> bool:
    """Whether two numbers are one to an operator: NaN is itself, and zeros have signs."""
    return repr(old) == repr(new)


class _Correspondence:
    """Which value of one program is which of another.

    A value is its window, its buffer, and the op that wrote it, which the call's origin names. Buffers correspond one
    to one as they are met, with the same bytes, role and name.
    """

    def __init__(self, before: Program, after: Program) -> None:
        self.before, self.after = before, after
        self.writers = writers(before.graph), writers(after.graph)
        self.ranges = windows(before.graph), windows(after.graph)
        self.values: dict[int, int] = {}
        self.forth: dict[int, int] = {}
        self.back: dict[int, int] = {}

    def same_values(self, old: Iterable[int], new: Iterable[int]) -> bool:
        """Whether two lists of values correspond one by one."""
        return all(o is not None and n is not None and self.same_value(o, n) for o, n in zip_longest(old, new))

    def same_argument(self, old: object, new: object) -> bool:
        """Whether two arguments are equal but for the ids of corresponding tensors in them."""
        if isinstance(old, ValueRef) and isinstance(new, ValueRef):
            return (old.conj, old.neg) == (new.conj, new.neg) and self.same_value(old.value, new.value)
        if type(old) is not type(new):
            return False
        if isinstance(old, (list, tuple)) and isinstance(new, (list, tuple)):
            return len(old) == len(new) and all(map(self.same_argument, old, new))
        if isinstance(old, dict) and isinstance(new, dict):
            return old.keys() == new.keys() and all(self.same_argument(old[key], new[key]) for key in old)
        if isinstance(old, (float, complex)):
            return _same_number(old, new)
        return old is new or bool(old == new)  # a process group is only itself

    def same_value(self, old: int, new: int) -> bool:
        """Whether they are one value; what was found to be is not looked at again."""
        if self.values.get(old) == new:
            return True
        if old in self.values or not self._same_window(old, new):
            return False
        self.values[old] = new
        return True

    def _same_window(self, old: int, new: int) -> bool:
        a, b = self.before.graph.values, self.after.graph.values
        columns = ((a.offset, b.offset), (a.shape, b.shape), (a.stride, b.stride), (a.dtype, b.dtype))
        return (
            all(x[old] == y[new] for x, y in columns)
            and self._origin(self.before, self.writers[0][old]) == self._origin(self.after, self.writers[1][new])
            and self._same_buffer(a.buffer[old], b.buffer[new])
        )

    def same_op(self, old: int, new: int) -> bool:
        """Whether they call one operator on the same values, and write the same bytes."""
        a, b = self.before, self.after
        old_call, new_call = a.calls[old], b.calls[new]
        return (
            old_call.operator is new_call.operator
            and a.graph.ops.stage[old] == b.graph.ops.stage[new]
            and self.same_values(a.graph.ops.reads[old], b.graph.ops.reads[new])
            and self.same_argument(old_call.args, new_call.args)
            and self.same_argument(old_call.kwargs, new_call.kwargs)
            and [r is None for r in old_call.results] == [r is None for r in new_call.results]
            and self.same_values(_values(old_call.results), _values(new_call.results))
            and self._same_bytes(a.graph.ops.writes[old], b.graph.ops.writes[new])
        )

    def same_halves(self, matched: set[int]) -> bool:
        """Whether each half hands out what it did, where it did."""
        old, new = self.before.joint, self.after.joint
        if old is None or new is None:
            return old is new
        count = list(accumulate((op in matched for op in range(len(self.before.calls))), initial=0))
        halves = ((old.forward, new.forward), (old.backward, new.backward))
        same = all(self._same_half(a, b, count) for a, b in halves)
        sizes = (count[old.forward_ops], old.user_outputs, old.residuals)
        return same and sizes == (new.forward_ops, new.user_outputs, new.residuals)

    def _same_half(self, old: GraphHalf | None, new: GraphHalf | None, count: list[int]) -> bool:
        if old is None or new is None:
            return old is new
        moved = [(count[delivery.after], delivery.outputs) for delivery in old.deliveries]
        return (
            old.arguments == new.arguments
            and moved == [(delivery.after, delivery.outputs) for delivery in new.deliveries]
            and len(old.outputs) == len(new.outputs)
            and all(map(self.same_argument, old.outputs, new.outputs))
        )

    def _same_bytes(self, old: Iterable[int], new: Iterable[int]) -> bool:
        """Whether every new write is an old one, and every old one lies within a new one."""
        before, after = list(old), list(new)
        if len(before) == len(after) and all(map(self.same_value, before, after)):
            return True
        old_buffer, new_buffer = self.before.graph.values.buffer, self.after.graph.values.buffer
        all_known = all(any(self.same_value(o, n) for o in before) for n in after)
        return all_known and all(
            any(
                self.forth.get(old_buffer[o]) == new_buffer[n]
                and self.ranges[1][n][0] <= self.ranges[0][o][0]
                and self.ranges[0][o][1] <= self.ranges[1][n][1]
                for n in after
            )
            for o in before
        )

    def _same_buffer(self, old: int, new: int) -> bool:
        if self.forth.setdefault(old, new) != new or self.back.setdefault(new, old) != old:
            return False
        a, b = self.before.graph, self.after.graph
        columns = (
            (a.buffers.bytes, b.buffers.bytes),
            (a.buffers.role, b.buffers.role),
            (a.notes.buffers, b.notes.buffers),
        )
        return all(x[old] == y[new] for x, y in columns)

    @staticmethod
    def _origin(program: Program, writer: int) -> int:
        return -1 if writer < 0 else program.calls[writer].origin


def _values(results: Iterable[int | None]) -> Iterator[int]:
    return (value for value in results if value is not None)
