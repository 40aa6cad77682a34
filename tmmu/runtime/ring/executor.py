"""The planned executor with a ring: weights lie at the addresses of the ring's blocks and stream between the steps.

Hooks at positions of the launch plan leave and enter visits, so copies are issued by the thread that launches kernels.
"""

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial

import torch

from tmmu.errors import InvalidConfig
from tmmu.ir.graph import CONSTANT, PARAMETER, Graph
from tmmu.ir.plan import Plan
from tmmu.ir.ring import Ring
from tmmu.judge.check import judge
from tmmu.runtime.device.memory import MemoryDevice
from tmmu.runtime.execute.bind import bind_program
from tmmu.runtime.execute.bind_request import BindRequest
from tmmu.runtime.execute.executor import BoundProgram, Executor
from tmmu.runtime.memory.slab import Slab
from tmmu.runtime.ring.fences import FenceFilter, all_fences
from tmmu.runtime.ring.host_image import HostImage, HostImageOptions
from tmmu.runtime.ring.loop import StreamingLoop
from tmmu.runtime.ring.streamed_weights import StreamedWeights
from tmmu.runtime.steps.launch_plan import Hooks
from tmmu.runtime.weights.load import Weight, check_weights
from tmmu.runtime.weights.sources import Source


@dataclass(frozen=True, slots=True, kw_only=True)
class RingOptions:
    """How weights stream. ``prefetch``, ``poison``, ``fence_filter``, ``before_piece``: those of ``StreamingLoop``.

    With ``owns_device`` the device is closed with the executor.
    """

    image: HostImageOptions | None = None
    owns_device: bool = False
    prefetch: bool = True
    poison: bool = False
    fence_filter: FenceFilter = all_fences
    before_piece: Callable[[int], object] | None = None


class StreamedExecutor(Executor):
    """An executor whose weights stream; ``owns``: they, and maybe their device, are closed with it."""

    def __init__(self, bound: BoundProgram, weights: StreamedWeights, *, replay: bool, owns: "_Owned") -> None:
        assert bound.plan.ring is not None
        hooks = _VisitHooks(weights, bound.plan.ring, len(bound.steps))
        super().__init__(bound, replay=replay, hooks=hooks.by_position)
        self.weights, self._owns = weights, owns

    @property
    def loop(self) -> StreamingLoop:
        """What issues and counts the copies."""
        return self.weights.loop

    @property
    def image(self) -> HostImage:
        """The weights on the host."""
        return self.weights.image

    @property
    def figures(self) -> dict[str, int]:
        """What streaming has taken so far, and bytes of ring and host image, by the keys of ``tmmu run --json``."""
        return self.weights.figures

    def close(self) -> None:
        """Waits for what is under way, and frees the segments; arena and host image, where they are its own."""
        super().close()
        if self._owns.weights:
            self.weights.close()
        if self._owns.device:
            self.weights.device.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Owned:
    """What is closed with an executor."""

    weights: bool = False
    device: bool = False


def bind_ring(request: BindRequest, device: MemoryDevice, options: RingOptions | None = None) -> StreamedExecutor:
    """An executor whose weights stream through the ring of the request's plan. It runs on ``device``.

    Weights are tensors, or tensors in files, which are read once, into the host image. Errors as of ``bind``, and
    ``INVALID_CONFIG`` for a plan without a ring.
    """
    rules = options or RingOptions()
    program, plan, weights = request.program, request.plan, request.weights
    ring = _require_ring(program.graph, plan)
    sources = _sources(program.graph, ring, weights)
    with ExitStack() as undo, torch.inference_mode(mode=False):
        arena = device.allocate(ring.bytes)
        undo.callback(device.release, arena)
        locations = _weight_locations(program.graph, ring, device.memory(arena))
        bound = bind_program(replace(request, device=device.device), weight_locations=locations)
        image = HostImage(ring, sources, rules.image or HostImageOptions(node=device.node), device.registrar)
        undo.callback(image.close)
        loop = StreamingLoop(
            device,
            ring,
            image,
            arena=arena,
            prefetch=rules.prefetch,
            poison=rules.poison,
            declare=device.has_observers,
            fence_filter=rules.fence_filter,
            before_piece=rules.before_piece,
        )
        undo.pop_all()
    streamed = StreamedWeights(device=device, graph=program.graph, loop=loop, image=image)
    owns = _Owned(weights=True, device=rules.owns_device)
    return StreamedExecutor(bound, streamed, replay=request.replay, owns=owns)


def bind_beside(request: BindRequest, streamed: StreamedWeights) -> StreamedExecutor:
    """An executor over weights that stream for another one already; the pass after it is bound copies all anew.

    The weights of the request are not read. Errors as of ``bind``; ``PLAN_MISMATCH`` where the plan's ring is another.
    """
    program, device = request.program, streamed.device
    judge(program.graph, request.plan, token=request.token)
    ring = _require_ring(program.graph, request.plan)
    streamed.require_same_passes(program.graph, ring)
    locations = _weight_locations(program.graph, ring, streamed.slab)
    with torch.inference_mode(mode=False), streamed.at_rest():
        bound = bind_program(replace(request, device=device.device), weight_locations=locations)
    return StreamedExecutor(bound, streamed, replay=request.replay, owns=_Owned())


def _require_ring(graph: Graph, plan: Plan) -> Ring:
    if plan.ring is None:
        raise InvalidConfig("the plan has no ring", fix="plan with a budget for weights: tmmu ring MODEL --budget SIZE")
    members = _members(plan.ring)
    weights = frozenset(_weight_buffers(graph))
    for value in graph.outputs:
        buffer = graph.values.buffer[value]
        if buffer in weights and buffer not in members:
            raise InvalidConfig(
                f"output {value} is weight {graph.notes.buffers[buffer]} itself, which no op reads and no ring holds",
                fix="return what is computed, or run without a ring",
                value=value,
            )
    return plan.ring


def _members(ring: Ring) -> frozenset[int]:
    return frozenset(member.buffer for block in ring.blocks for member in block.members)


def _weight_buffers(graph: Graph) -> list[int]:
    return [buffer for buffer, role in enumerate(graph.buffers.role) if role in (PARAMETER, CONSTANT)]


def _weight_locations(graph: Graph, ring: Ring, slab: Slab) -> dict[int, tuple[Slab, int]]:
    """Each weight's address in the ring's arena. A weight that no block holds is read by no op; any address will do."""
    locations = dict.fromkeys(_weight_buffers(graph), (slab, 0))
    locations.update((m.buffer, (slab, block.address + m.offset)) for block in ring.blocks for m in block.members)
    return locations


def _sources(graph: Graph, ring: Ring, weights: Mapping[str, Weight]) -> dict[int, Source]:
    """The source of each member; ``INVALID_CONFIG`` for what is missing or does not fit."""
    members = _members(ring)
    sources = check_weights(graph, weights, skip=frozenset(_weight_buffers(graph)) - members)
    return {buffer: source for buffer, source in sources.items() if buffer in members}


class _VisitHooks:
    """Per position: leaves the visits that end before it, then enters those that begin there.

    A run that is under way when the next one begins broke off: its pass is forgotten.
    """

    def __init__(self, weights: StreamedWeights, ring: Ring, steps: int) -> None:
        self._weights, self._steps = weights, steps
        self._enters: dict[int, list[int]] = {}
        self._leaves: dict[int, list[int]] = {}
        for index, visit in enumerate(ring.visits):
            self._enters.setdefault(visit.first, []).append(index)
            self._leaves.setdefault(visit.last + 1, []).append(index)
        positions = sorted({0, steps, *self._enters, *self._leaves})
        self.by_position: Hooks = {position: partial(self._run, position) for position in positions}

    def _run(self, position: int) -> None:
        if position == 0:
            self._weights.begin_pass()
        for visit in self._leaves.get(position, ()):
            self._weights.loop.leave(visit)
        for visit in self._enters.get(position, ()):
            self._weights.loop.enter(visit)
        if position == self._steps:
            self._weights.under_way = False
