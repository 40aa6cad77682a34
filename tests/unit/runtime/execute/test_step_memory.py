"""A frame: what lies in it is handed out under a lease, once, and nobody is given it meanwhile."""

from typing import Any

import torch

from tests.unit.passes.autograd.test_joint_graph import step_of
from tmmu.backend import _TRAINING
from tmmu.driver import compile_graph
from tmmu.passes.autograd.joint_graph import trace_joint
from tmmu.runtime.execute.step_memory import Frame, bind_frame
from tmmu.runtime.execute.step_memory_pool import FRAMES, Frames


def framed(function: Any, *inputs: torch.Tensor) -> tuple[Frames, Any, tuple[Any, ...]]:
    """The frames of a function's program, what makes one, and arguments."""
    step, args, static = step_of(function, *inputs)
    traced = trace_joint(step, args, name="t")
    plan = compile_graph(traced.program.graph, _TRAINING).plan

    def make() -> Frame:
        given = {"token": _TRAINING.token, "weights": traced.constants}
        return bind_frame(traced.program, plan, args, static=static, **given)

    return Frames(traced.program), make, args


def first(frames: Frames, make: Any, args: Any) -> tuple[Frame, list[Any]]:
    with frames.for_first(args, make) as frame:
        assert frame is not None
        assert frame.busy
        return frame, frame.first(args)


def of_second(frames: Frames, handed: list[Any], *gradients: torch.Tensor) -> list[Any]:
    given = iter(gradients)
    return [handed[at] if at >= 0 else next(given) for at in frames.joint.residuals]


def test_a_frame_is_taken_while_anything_saved_lives() -> None:
    frames, make, args = framed(lambda x: x.exp().sin(), torch.randn(3, requires_grad=True))
    one, handed = first(frames, make, args)
    assert not one.idle
    other, _ = first(frames, make, args)
    assert other is not one
    del handed
    assert one.idle
    assert first(frames, make, args)[0] in (one, other)


def test_there_are_only_so_many_frames() -> None:
    frames, make, args = framed(lambda x: x.exp().sin(), torch.randn(3, requires_grad=True))
    held = [first(frames, make, args) for _ in range(FRAMES)]
    with frames.for_first(args, make) as none:
        assert none is None
    held.pop()
    with frames.for_first(args, make) as frame:
        assert frame is not None


def test_what_was_gone_back_through_is_not_gone_back_through_again() -> None:
    frames, make, args = framed(lambda x: x.exp().sin(), torch.randn(3, requires_grad=True))
    frame, handed = first(frames, make, args)
    given = of_second(frames, handed, torch.ones(3))
    assert frame.holds(given)
    with frames.for_second(given, again=False) as (found, loaded):
        assert (found, loaded) == (frame, False)
        gradient = found.second(given, loaded=loaded)[0]
    assert not frame.holds(given)
    x = args[0].detach().requires_grad_()
    x.exp().sin().sum().backward()
    assert gradient.equal(x.grad)


def test_a_frame_is_not_taken_for_another_that_is_alike() -> None:
    frames, make, args = framed(lambda x: x.exp().sin(), torch.randn(3, requires_grad=True))
    one, handed = first(frames, make, args)
    other, others = first(frames, make, args)
    given = of_second(frames, handed, torch.ones(3))
    assert one.holds(given)
    assert not other.holds(given)
    del others
    with frames.for_second(given, again=True) as (found, loaded):
        assert (found, loaded) == (other, True)


def test_weights_are_bound_where_they_are() -> None:
    model = torch.nn.Linear(3, 2)
    frames, make, args = framed(model, torch.randn(4, 3))
    frame, _ = first(frames, make, args)
    assert frame.here(args)
    moved = [arg.clone() if isinstance(arg, torch.nn.Parameter) else arg for arg in args]
    assert not frame.here(moved)
