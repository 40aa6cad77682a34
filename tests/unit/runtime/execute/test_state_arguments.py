"""One binding runs on the state of many sessions: bits as in an arena of its own, and nothing else is written."""

from typing import Any

import pytest
import torch

from tests.runtime.harness import TOKEN, capture_program, plan_of, weights_of
from tests.unit.passes import models
from tmmu.errors import InvalidConfig
from tmmu.runtime.execute.bind import bind
from tmmu.runtime.execute.executor import Executor
from tmmu.runtime.memory.segments import Segments
from tmmu.runtime.memory.sizing import SegmentSizes
from tmmu.runtime.memory.slab import Slab
from tmmu.runtime.memory.usage import round_up

CANARY = 0xA5


def bind_cached(**options: Any) -> Executor:
    torch.manual_seed(0)
    module = models.Cached().eval()
    program, _ = capture_program(models.Cached, {"x": torch.zeros(1, 16)})
    return bind(program, plan_of(program), token=TOKEN, weights=weights_of(module), **options)


def arena_of(executor: Executor, slab: Slab, base: int) -> tuple[torch.Tensor, ...]:
    assert executor.bound.state is not None
    sizes, offsets, end = executor.bound.graph.buffers.bytes, {}, base
    for buffer, role in enumerate(executor.bound.graph.buffers.role):
        if role == "state":
            offsets[buffer] = end
            end = round_up(end + sizes[buffer], 256)
    return executor.bound.state.views(lambda buffer: (slab, offsets[buffer]))


@pytest.mark.parametrize("replay", [True, False])
def test_sessions_in_turn_have_the_bits_of_arenas_of_their_own(replay: bool) -> None:
    shared = bind_cached(session=None, replay=replay)
    slab = Slab(1 << 13, 256, torch.device("cpu"))
    slab.bytes(0, slab.size).fill_(CANARY)
    states = []
    for number in range(3):
        slab.bytes(number * 1024 + 256, 512).zero_()
        states.append(arena_of(shared, slab, number * 1024 + 256))
    alone = [bind_cached() for _ in states]
    for step, turn in enumerate([0, 1, 1, 2, 0, 2, 1, 0]):
        x = torch.full((1, 16), float(step + 1))
        (expected,) = alone[turn](x=x)
        (found,) = shared.run({"x": x}, state=states[turn])
        assert found.equal(expected)
    for number, executor in enumerate(alone):
        assert slab.bytes(number * 1024 + 256, 512).equal(executor.state("keys"))
        assert slab.bytes(number * 1024, 256).eq(CANARY).all()
    assert slab.bytes(3 * 1024, slab.size - 3 * 1024).eq(CANARY).all()


def test_binding_without_a_session_takes_nothing_of_the_data_segment() -> None:
    segments = Segments(SegmentSizes(text=1 << 16, data=256, stack=1 << 16))
    owned = segments.data.reserve("somebody", 256)
    segments.slabs["data"].bytes(owned, 256).fill_(CANARY)
    executor = bind_cached(session=None, segments=segments)
    assert segments.data.sessions == ("somebody",)
    assert segments.slabs["data"].bytes(owned, 256).eq(CANARY).all()
    with pytest.raises(InvalidConfig, match="argument of each run"):
        executor.state("keys")
    with pytest.raises(InvalidConfig, match="tensors of state, not 0"):
        executor.run({"x": torch.zeros(1, 16)})
    executor.close()
    assert segments.data.sessions == ("somebody",)


def test_plans_of_one_model_share_each_weight_and_have_beside_it_what_differs() -> None:
    segments = Segments(SegmentSizes(text=1 << 16, data=1 << 12, stack=1 << 16))
    module = models.Cached().eval()
    program, _ = capture_program(models.Cached, {"x": torch.zeros(1, 16)})
    plan = plan_of(program)
    first = bind(program, plan, token=TOKEN, weights=weights_of(module), segments=segments, session="a")
    used = segments.text.usage.used
    longer = weights_of(module) | {"project.bias": module.project.bias.detach() + 1}
    second = bind(program, plan, token=TOKEN, weights=longer, segments=segments, session="b")
    assert segments.text.usage.used == used + 256  # another bias, and the same matrix
    x = torch.ones(1, 16)
    assert not first(x=x)[0].equal(second(x=x)[0])
    first.close()
    third = bind(program, plan, token=TOKEN, weights=longer, segments=segments, session="c")
    assert third(x=x)[0].isfinite().all()
    assert segments.text.usage.used == used + 256
