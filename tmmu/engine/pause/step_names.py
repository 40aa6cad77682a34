"""Names of what a paused step has computed: what a module returned under the module's path, all else under its op.

What a module returns was taken down when the step was traced (``capture/module_results.py``). Of a module that
returned several tensors they are called ``model.rotary_emb[0]``, ``[1]``. What no module that is done returned, such as
a mask that later layers share, is called ``op 31 aten.full.default``, as errors call ops.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import Final

from tmmu.errors import InvalidConfig
from tmmu.ir.graph import PERSISTENT_ROLES, Graph
from tmmu.ir.ids import BufferId
from tmmu.ir.plan import Plan
from tmmu.passes.capture.program import Window
from tmmu.runtime.execute.pieces import BufferWindow

NEAREST: Final = 3
"""How many names an error offers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedValue:
    """A window on a buffer from the op at position ``written`` until another op writes that buffer.

    ``end``: the position behind which it has the name: that of its module's last op, or of its own. ``is_result``:
    whether a module returned it.
    """

    name: str
    window: BufferWindow
    written: int
    end: int
    is_result: bool

    def window_of(self, positions: int, tokens: int) -> BufferWindow:
        """Its window, without what is behind ``tokens``, where it is a module's ``dtype[1, positions, n]``.

        Of other forms it is not known which axis is that of positions.
        """
        shape = self.window.shape
        if not self.is_result or len(shape) != 3 or shape[:2] != (1, positions):
            return self.window
        return replace(self.window, shape=(1, tokens, shape[2]))


@dataclass(slots=True)
class _ModuleSpan:
    """The positions of a module's ops: first and last, and how many there are."""

    first: int
    last: int
    count: int = 0

    @property
    def is_unbroken(self) -> bool:
        """Whether nothing else runs between its ops."""
        return self.last - self.first + 1 == self.count


class StepNames:
    """The names of one step. ``results``: by path of each module that is called once, what it returned, as windows on
    buffers of the graph.
    """

    def __init__(self, graph: Graph, plan: Plan, results: Mapping[str, Sequence[Window]]) -> None:
        self._graph, self._plan = graph, plan
        self._module = [graph.notes.ops.module[op] for op in plan.order]
        self._spans = _module_spans(self._module)
        self._writes = self._find_writes()
        self._called_once = frozenset(results)
        values = [*self._results(results), *self._op_values()]
        self._values = {value.name: value for value in values}

    def end_of(self, module: str) -> int:
        """The position behind a module's last op; ``INVALID_CONFIG`` for a module without one end in the step."""
        span = self._spans.get(module)
        if span is None:
            raise InvalidConfig(
                f"no op of a step is in a module {module!r:.80}", fix=_offer(module, self._spans), module=module
            )
        if module not in self._called_once or not span.is_unbroken:
            reason = "other ops run between its own" if module in self._called_once else "it is not called just once"
            raise InvalidConfig(
                f"{module} has no one end in a step: {reason}",
                fix="pause at a module in it or around it",
                module=module,
            )
        return span.last + 1

    def names_at(self, position: int, versions: Mapping[int, int], module: str) -> tuple[str, ...]:
        """One name for each value of ``versions``, in the order in which they were computed.

        That of ``module`` where it returned the value; else that of the outermost module that did.
        """
        by_version: dict[tuple[int, int], list[NamedValue]] = {}
        for value in self._values.values():  # modules first, outer ones before those in them
            if _is_there(value, position, versions):
                by_version.setdefault((value.written, value.window.buffer), []).append(value)
        names = []
        for _, values in sorted(by_version.items()):
            own = [value.name for value in values if value.name.partition("[")[0] == module]
            names.append((own or [values[0].name])[0])
        return tuple(names)

    def has(self, name: object, position: int, versions: Mapping[int, int]) -> bool:
        """Whether ``find`` finds it."""
        value = self._values.get(name) if isinstance(name, str) else None
        return value is not None and _is_there(value, position, versions)

    def find(self, name: str, position: int, versions: Mapping[int, int]) -> NamedValue:
        """The value of a name, any that it has; ``INVALID_CONFIG`` says what became of one that is not there."""
        value = self._values.get(name) if isinstance(name, str) else None
        if value is None:
            raise self._unknown(str(name), position, versions)
        if not _is_there(value, position, versions):
            fate, fix = self._fate(value, position)
            raise InvalidConfig(f"{name} {fate}", fix=fix, name=name)
        return value

    def _find_writes(self) -> dict[int, list[int]]:
        """By buffer that ops make, the positions of the ops that write it."""
        writes: dict[int, list[int]] = {}
        for position, op in enumerate(self._plan.order):
            for buffer in dict.fromkeys(self._graph.values.buffer[value] for value in self._graph.ops.writes[op]):
                if self._graph.buffers.role[buffer] not in PERSISTENT_ROLES:
                    writes.setdefault(buffer, []).append(position)
        return writes

    def _results(self, results: Mapping[str, Sequence[Window]]) -> Iterator[NamedValue]:
        """What modules with one end returned, as they left it; outer modules first."""
        for module in sorted(results, key=lambda path: (path.count("."), path)):
            span = self._spans.get(module)
            if span is None or not span.is_unbroken:
                continue
            for index, window in enumerate(results[module]):
                written = [position for position in self._writes.get(window.storage, ()) if position <= span.last]
                if written and not window.is_lazy:
                    yield NamedValue(
                        name=module if len(results[module]) == 1 else f"{module}[{index}]",
                        window=BufferWindow(
                            buffer=window.storage,
                            offset=window.offset,
                            shape=window.shape,
                            stride=window.stride,
                            dtype=window.dtype,
                        ),
                        written=written[-1],
                        end=span.last,
                        is_result=True,
                    )

    def _op_values(self) -> Iterator[NamedValue]:
        """What each op wrote, in the first form that the graph has of it."""
        for position, op in enumerate(self._plan.order):
            first: dict[BufferId, int] = {}
            for value in self._graph.ops.writes[op]:
                if self._graph.values.buffer[value] in self._writes:
                    first.setdefault(self._graph.values.buffer[value], value)
            label = f"op {op} {self._graph.ops.target[op]}"
            for index, shown in enumerate(first.values()):
                yield NamedValue(
                    name=label if len(first) == 1 else f"{label}[{index}]",
                    window=self._window_of(shown),
                    written=position,
                    end=position,
                    is_result=False,
                )

    def _window_of(self, value: int) -> BufferWindow:
        table = self._graph.values
        return BufferWindow(
            buffer=table.buffer[value],
            offset=table.offset[value],
            shape=table.shape[value],
            stride=table.stride[value],
            dtype=table.dtype[value],
        )

    def _unknown(self, name: str, position: int, versions: Mapping[int, int]) -> InvalidConfig:
        if name in self._spans:
            several = f"{name}[0]" in self._values
            return InvalidConfig(
                f"{name} returns {'several tensors' if several else 'nothing that one of its ops made'}",
                fix=f"name one of them: {name}[0]" if several else "name another module",
                name=name,
            )
        names = [value.name for value in self._values.values() if _is_there(value, position, versions)]
        return InvalidConfig(f"no value is called {name!r:.80}", fix=_offer(name, names), name=name)

    def _fate(self, value: NamedValue, position: int) -> tuple[str, str]:
        """Why a value is not there behind ``position`` ops, and what to do."""
        if value.end >= position:
            return "is not computed yet", "pause behind it"
        module = value.name.partition("[")[0]
        fix = f"pause at {module}" if module in self._spans else "pause at a module around it"
        writer = self._overwriter(value, position)
        if writer is not None:
            return f"was written over by {self._describe(writer)}", fix
        return "is read by no later op, and is not kept", fix

    def _overwriter(self, value: NamedValue, position: int) -> int | None:
        """The position of the op that first wrote a value's bytes behind it; ``None`` where none did."""
        rows = self._plan.buffers
        row: dict[int, int] = {buffer: index for index, buffer in enumerate(rows.id)}
        own = row[value.window.buffer]
        low, high = rows.offset[own], rows.offset[own] + rows.bytes[own]
        for later in range(value.written + 1, position):
            for written in self._graph.ops.writes[self._plan.order[later]]:
                other = row.get(self._graph.values.buffer[written])
                if other is None or rows.arena[other] != rows.arena[own]:
                    continue
                if rows.offset[other] < high and low < rows.offset[other] + rows.bytes[other]:
                    return later
        return None

    def _describe(self, position: int) -> str:
        op = self._plan.order[position]
        module = self._module[position]
        return f"op {op} {self._graph.ops.target[op]}" + (f" ({module})" if module else "")


def _is_there(value: NamedValue, position: int, versions: Mapping[int, int]) -> bool:
    """Whether a value can be read behind ``position`` ops, where ``versions`` are live."""
    return value.end < position and versions.get(value.window.buffer) == value.written


def _offer(name: str, names: Iterable[str]) -> str:
    near = get_close_matches(name, sorted(names), n=NEAREST, cutoff=0.0)
    return f"the nearest are {', '.join(near)}"


def _module_spans(modules: Sequence[str]) -> dict[str, _ModuleSpan]:
    """By path, of each module that an op is in, the modules around it included."""
    spans: dict[str, _ModuleSpan] = {}
    for position, path in enumerate(modules):
        for module in _with_parents(path):
            span = spans.setdefault(module, _ModuleSpan(position, position))
            span.last = position
            span.count += 1
    return spans


def _with_parents(path: str) -> list[str]:
    """``a``, ``a.b``, ``a.b.c`` of ``a.b.c``; none of the empty path."""
    names = path.split(".") if path else []
    return [".".join(names[:count]) for count in range(1, len(names) + 1)]
