"""What a token takes that can be counted: bytecodes of Python, and allocations; the same for 2 layers and for 5."""

from collections.abc import Callable
from typing import Any, NamedTuple

import transformers

from tests.engine.models import SIZES
from tests.work import bytecodes_of
from tmmu.engine.engine import Engine
from tmmu.runtime.observe.cpu_allocations import CpuAllocationLog


class Counts(NamedTuple):
    bytecodes: int
    allocations: int
    named: int
    """Allocations of operators that the executor names."""


def allocations(call: Callable[[], object]) -> int:
    with CpuAllocationLog() as log:
        call()
    return sum(event.bytes > 0 for event in log.events)


def counts_of(layers: int) -> list[Counts]:
    """Of a token of one session, and of one token of each of two."""
    config = transformers.LlamaConfig(**SIZES | {"num_hidden_layers": layers})
    found = []
    with Engine(transformers.LlamaForCausalLM(config).eval(), max_tokens=64, max_batch=2) as engine:
        sessions = [engine.open(), engine.open()]
        for session in sessions:
            session.prefill([1, 2, 3])
        for rows in (sessions[:1], sessions):

            def token(rows: Any = rows) -> object:
                return engine.decode(rows, [1] * len(rows))

            token()
            steps = engine._stacks[0].steps._bound
            step = next(step for shape, step in steps.items() if shape.tokens == 1 and shape.rows == len(rows))
            named = sum(row.calls for row in step.executor.unplanned_allocations)
            found.append(Counts(bytecodes_of(token), allocations(token), named))
    return found


def test_a_token_takes_as_many_bytecodes_and_allocations_with_more_layers() -> None:
    few, many = counts_of(2), counts_of(5)
    for one, other in zip(few, many, strict=True):
        assert one.bytecodes == other.bytecodes > 0
        assert other.allocations - one.allocations == other.named - one.named
        assert one.allocations - one.named <= 10  # inputs and logits


def test_a_token_takes_as_many_bytecodes_beside_more_sessions_that_are_idle() -> None:
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES)).eval()
    found = []
    with Engine(model, max_tokens=64, max_batch=1, max_sessions=40, host="64MiB", time_to_live=1e6) as engine:
        first = engine.open()
        first.prefill([1, 2, 3])
        for count in (2, 40):
            while len(engine.sessions) < count:
                engine.open()
            first.decode(1)
            found.append(min(bytecodes_of(lambda: first.decode(1)) for _ in range(3)))
    assert found[0] == found[1]
