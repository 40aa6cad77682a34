"""The sanitizer: runs a plan op by op beside the reference executor, in memory where every mistake shows.

State, per position in the order: the planned memory; the reference's, where each buffer has a storage of its own; the
buffers that the plan has begun and not ended (``allocated``); those that were written and are read later (``live``).

- Before the first write of a buffer both memories hold a pattern of (token, slot address), so that a read of bytes that
  no op wrote is recognized: 16 bytes of pattern in a row occur by chance with probability 2^-128.
- Bytes of the stack outside all allocated buffers hold another pattern, the canary, which no op may change. A buffer's
  bytes get it back when the plan ends its life.
- After each op, and after each begin and end of a life, every live buffer has the reference's bytes. The first that has
  not is reported with what happened and with the op that reads it next.

Nothing here trusts the plan's spans: what is read later is counted from the graph. Cost: the program's memory a second
time, and per op a comparison of all live bytes.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Final

import torch

from tmmu.errors import InvalidConfig, PlanUnsound
from tmmu.ir.graph import FUSED_NAMESPACE, PERSISTENT_ROLES
from tmmu.ir.program import Call, Program
from tmmu.judge.spans import saved_values
from tmmu.kernel_switches import fills_empty_memory
from tmmu.runtime.compare.reference import ReferenceExecutor
from tmmu.runtime.execute.executor import Executor
from tmmu.runtime.memory.zero import BLOCK_BYTES, fill_pattern
from tmmu.runtime.steps.fused_trial import differs_by, is_near, read_scale
from tmmu.runtime.weights.load import Weight

EMPTY_OPERATORS: Final = ("aten.empty", "aten.new_empty")
"""Prefixes of operators whose results have no defined contents."""
GAPPED_RESULTS: Final = {"aten.mkldnn_rnn_layer.default": 3}
"""Operators, and the result that they write in part: it is compared with itself, as this run's kernel left it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SanitizerReport:
    """A run without a fault: its outputs, the ops that ran, and how many times a buffer was compared."""

    outputs: tuple[torch.Tensor, ...]
    ops: int
    compared: int


def run_sanitized(
    program: Program,
    executor: Executor,
    weights: Mapping[str, Weight],
    inputs: Mapping[str, torch.Tensor],
    *,
    token: bytes,
) -> SanitizerReport:
    """One sanitized run of a freshly bound executor, which is not captured.

    ``PLAN_UNSOUND`` names the first op that breaks the plan, ``INVALID_CONFIG`` one that reads what the model itself
    never wrote.
    """
    sanitizer = _Sanitizer(program, executor, ReferenceExecutor(program, weights), token)
    sanitizer.reference.load({name: tensor.clone() for name, tensor in inputs.items()})
    hooks = {position: partial(sanitizer.check, position) for position in range(sanitizer.end + 1)}
    executor.attach(hooks, replay=False)
    try:
        outputs = executor.run(inputs)
    finally:
        executor.attach({})
    return SanitizerReport(outputs=outputs, ops=sanitizer.end, compared=sanitizer.compared)


@contextmanager
def _restored_generators(call: Call) -> Iterator[None]:
    """Generators of a step's own that the call draws from are as before afterwards: the planned op draws the same."""
    arguments = (*call.args, *(argument for _, argument in call.kwargs))
    states = [(argument, argument.get_state()) for argument in arguments if isinstance(argument, torch.Generator)]
    try:
        yield
    finally:
        for generator, state in states:
            generator.set_state(state)


class _Sanitizer:
    """Checks of one run: ``check`` is called before each op and after the last."""

    def __init__(self, program: Program, executor: Executor, reference: ReferenceExecutor, token: bytes) -> None:
        self.calls = program.calls
        self.graph, self.views, self.reference, self.token = program.graph, executor.bound.views, reference, token
        plan = self.plan = executor.bound.plan
        self.order, self.end, self.compared = plan.order, len(plan.order), 0
        rows = plan.buffers
        self.takes_over: dict[int, int] = dict(zip(rows.id, rows.takes_over, strict=True))
        slots = zip(plan.slots.arena, plan.slots.slot, plan.slots.address, strict=True)
        address = {(arena, slot): address for arena, slot, address in slots}
        self.pattern: dict[int, torch.Tensor] = {
            buffer: self._fill_reference(buffer, address[arena, slot])
            for buffer, arena, slot in zip(rows.id, rows.arena, rows.slot, strict=True)
            if self.graph.buffers.role[buffer] not in PERSISTENT_ROLES
        }
        self.births: dict[int, list[int]] = {}
        self.deaths: dict[int, list[int]] = {}
        for buffer, birth, death in zip(rows.id, rows.birth, rows.death, strict=True):
            if buffer in self.pattern:
                self.births.setdefault(birth, []).append(buffer)
                self.deaths.setdefault(death, []).append(buffer)
        self.slab, self.base = executor.segments.slabs["stack"], executor.bound.reservation.stack_offset
        self.canary = self._fill_pattern(0, executor.bound.reservation.stack_bytes)
        self.generators = executor.bound.stream.generators
        self.allocated: set[int] = set()
        self.last_use = self._last_use()
        self.live: set[int] = set()

    def _fill_reference(self, buffer: int, address: int) -> torch.Tensor:
        """The pattern of a buffer, with which the reference's is filled."""
        pattern = self._fill_pattern(address, self.graph.buffers.bytes[buffer])
        self.reference.bytes(buffer).copy_(pattern)
        return pattern

    def _fill_pattern(self, address: int, size: int) -> torch.Tensor:
        return torch.from_numpy(fill_pattern(self.token, address, size)).to(self.graph.target)

    def _last_use(self) -> dict[int, int]:
        """By buffer, the last position that reads it; the end of the order for outputs and what is saved."""
        values, ops, last = self.graph.values, self.graph.ops, dict[int, int]()
        for position, op in enumerate(self.order):
            last |= {values.buffer[value]: position for value in ops.reads[op]}
        saved = saved_values(self.graph, self.order, self.plan.mode, self.plan.preset)
        last |= {values.buffer[value]: self.end for _, value in saved}
        return last | {values.buffer[value]: self.end for value in self.graph.outputs}

    def check(self, position: int) -> None:
        """Checks what the op before this position did; then runs the reference's op at it, and prepares its memory."""
        if position:
            self._check_results(position - 1)
        else:
            self.slab.bytes(self.base, len(self.canary)).copy_(self.canary)
        self._end_lifetimes(position)
        if position < self.end:
            self._begin_lifetimes(position)
            self._check_reads(position)
            op = self.order[position]
            if not self._leaves_empty(op):
                with torch.random.fork_rng(devices=self.generators), _restored_generators(self.calls[op]):
                    self.reference.step(op)

    def _leaves_empty(self, op: int) -> bool:
        """Whether the results have no defined contents; deterministic algorithms fill them."""
        is_filled = fills_empty_memory(self.calls[op].switches)
        return self.graph.ops.target[op].startswith(EMPTY_OPERATORS) and not is_filled

    def _check_results(self, position: int) -> None:
        """The op wrote what it should, and nothing else."""
        op = self.order[position]
        written = {self.graph.values.buffer[value] for value in self.graph.ops.writes[op]}
        self.live |= {buffer for buffer in written if buffer in self.pattern}
        self.live = {buffer for buffer in self.live if self.last_use.get(buffer, -1) > position}
        self._take_gaps(op)
        self._take_near(position)
        for buffer in sorted(written):
            if self.last_use.get(buffer, -1) > position:
                self._require_equal(buffer, position, "leaves {} other than the operator makes it")
        self._require_live_equal(position, "changes {}, which it does not write", exclude=written)
        self._check_canary(position)

    def _take_gaps(self, op: int) -> None:
        """The reference holds what this run's kernel left in a result that no kernel fills."""
        result = GAPPED_RESULTS.get(self.graph.ops.target[op])
        value = None if result is None else self.calls[op].results[result]
        if value is not None:
            buffer = self.graph.values.buffer[value]
            self.reference.bytes(buffer).copy_(self.views.bytes(buffer))

    def _take_near(self, position: int) -> None:
        """After a fused op that is near its members, the reference holds what the kernel left."""
        op = self.order[position]
        if self.calls[op].operator.namespace != FUSED_NAMESPACE:
            return
        buffers = self.graph.values.buffer
        scale = read_scale(map(self.reference.value, self.graph.ops.reads[op]))
        for value in self.graph.ops.writes[op]:
            planned, expected = self.views.view(value), self.reference.value(value)
            if self.last_use.get(buffers[value], -1) > position and not is_near(planned, expected, scale):
                share = differs_by(planned, expected, scale)
                fault = f"leaves {{}} further from its members than allowed: by {share:.1e} of its largest magnitude"
                raise self._unsound(position, fault.format(self._buffer_name(buffers[value])), buffers[value])
        for buffer in {buffers[value] for value in self.graph.ops.writes[op]}:
            self.reference.bytes(buffer).copy_(self.views.bytes(buffer))

    def _end_lifetimes(self, position: int) -> None:
        """Buffers whose life the plan ends before this position get the canary, which must not hit a live one."""
        for buffer in self.deaths.get(position, ()):
            self.allocated.discard(buffer)
            born = [heir for heir in self.births.get(position - 1, ()) if heir != buffer]
            if any(self.takes_over[heir] == buffer for heir in born) or position == self.end:
                continue  # its bytes are another buffer's by now, or are not looked at any more
            low, high = self._byte_range(buffer)
            self.views.bytes(buffer).copy_(self.canary[low:high])
            fault = f"is the last that may read {self._buffer_name(buffer)}; its end destroys {{}}"
            self._require_live_equal(position - 1, fault)

    def _begin_lifetimes(self, position: int) -> None:
        """Buffers whose life begins here get their pattern, which must not hit a live one; heirs keep their bytes."""
        for buffer in self.births.get(position, ()):
            self.allocated.add(buffer)
            if self.takes_over[buffer] == buffer:
                self.views.bytes(buffer).copy_(self.pattern[buffer])
                fault = f"writes {self._buffer_name(buffer)} for the first time, on the bytes of {{}}"
                self._require_live_equal(position, fault)

    def _check_canary(self, position: int) -> None:
        """Bytes of the stack outside all allocated buffers hold the canary."""
        end = 0
        for low, high in (*sorted(map(self._byte_range, self.allocated)), (len(self.canary),) * 2):
            gap = self.slab.bytes(self.base + end, max(low - end, 0))
            if not torch.equal(gap, self.canary[end : max(low, end)]):
                fault = f"writes outside of all buffers, between bytes {end} and {low} of the stack"
                raise self._unsound(position, fault)
            end = max(end, high)

    def _byte_range(self, buffer: int) -> tuple[int, int]:
        low = self.views.locations[buffer][1] - self.base
        return low, low + self.graph.buffers.bytes[buffer]

    def _check_reads(self, position: int) -> None:
        """What the op reads was written before."""
        ops, buffers = self.graph.ops, self.graph.values.buffer
        op = self.order[position]
        # An op in place also reads bytes that it overwrites; those that it leaves alone are checked at the next read.
        changed = {buffers[value] for value in ops.writes[op]}
        for value in ops.reads[op]:
            buffer = buffers[value]
            if buffer in self.pattern and buffer not in changed and self._never_written(value, buffer):
                self._refuse_unwritten(position, buffer)

    def _never_written(self, value: int, buffer: int) -> bool:
        """Whether the value holds 16 bytes in a row of its buffer's pattern."""
        values = self.graph.values
        low = values.offset[value]
        window = self.reference.value(value)
        if window.numel() * window.element_size() < BLOCK_BYTES or not window.is_contiguous():
            return False
        content = window.reshape(-1).view(torch.uint8)
        matches = content == self.pattern[buffer][low : low + content.numel()]
        blocks = matches[: content.numel() // BLOCK_BYTES * BLOCK_BYTES].view(-1, BLOCK_BYTES).all(1)
        return bool(blocks.any())

    def _refuse_unwritten(self, position: int, buffer: int) -> None:
        if not any(self.graph.ops.target[op].startswith(EMPTY_OPERATORS) for op in self._writers(buffer)):
            raise self._unsound(position, f"reads {self._buffer_name(buffer)}, which no op has written")
        fault = f"reads {self._buffer_name(buffer)}, which the model makes empty and does not fill"
        raise InvalidConfig(f"{self._op_name(position)} {fault}", fix="fill it in the model")

    def _writers(self, buffer: int) -> list[int]:
        values = self.graph.values
        return [op for op in self.order if any(values.buffer[v] == buffer for v in self.graph.ops.writes[op])]

    def _require_live_equal(self, position: int, fault: str, exclude: Iterable[int] = ()) -> None:
        for buffer in sorted(self.live - set(exclude)):
            self._require_equal(buffer, position, fault)

    def _require_equal(self, buffer: int, position: int, fault: str) -> None:
        self.compared += 1
        reference = self.reference.bytes(buffer)
        if not torch.equal(self.views.bytes(buffer).to(reference.device), reference):
            raise self._unsound(position, fault.format(self._buffer_name(buffer)), buffer)

    def _unsound(self, position: int, description: str, buffer: int | None = None) -> PlanUnsound:
        reader = "" if buffer is None else self._next_reader(buffer, position)
        fault = f"{self._op_name(position)} {description}{reader}"
        return PlanUnsound(fault, fix="make the plan again; report it if it stays")

    def _next_reader(self, buffer: int, position: int) -> str:
        values, reads = self.graph.values, self.graph.ops.reads
        for later in range(position + 1, self.end):
            if any(values.buffer[value] == buffer for value in reads[self.order[later]]):
                return f"; {self._op_name(later)} reads it next"
        return "; it is kept to the end"

    def _op_name(self, position: int) -> str:
        op, notes = self.order[position], self.graph.notes.ops
        source = f" ({notes.source[op]})" if notes.source[op] else ""
        return f"op {op} {self.graph.ops.target[op]}{source}"

    def _buffer_name(self, buffer: int) -> str:
        name = self.graph.notes.buffers[buffer]
        return f"buffer {buffer}" + (f" {name}" if name else "")
