"""The planned executor with a ring: weights lie at the addresses of the plan's ring, and stream between its steps."""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace

import torch

from tmmu.errors import InvalidConfig
from tmmu.ir.graph import CONSTANT, PARAMETER, Graph
from tmmu.ir.plan import Plan
from tmmu.ir.ring import Ring
from tmmu.runtime.device.memory import MemoryDevice
from tmmu.runtime.execute.bind import BindRequest, bind_program
from tmmu.runtime.execute.executor import BoundProgram, Executor
from tmmu.runtime.kernels.code import Runnable
from tmmu.runtime.memory.slab import Slab
from tmmu.runtime.ring.fences import FenceFilter, all_fences
from tmmu.runtime.ring.host_image import HostImage, HostImageOptions
from tmmu.runtime.ring.loop import StreamingLoop
from tmmu.runtime.steps.launch_plan import Hooks
from tmmu.runtime.weights.load import Weight, check_weights
from tmmu.runtime.weights.sources import Source


@dataclass(frozen=True, slots=True, kw_only=True)
class RingOptions:
    """How weights stream. ``prefetch``, ``poison`` and ``stands`` are the loop's.

    A device that is ``owned`` is closed with the executor.
    """

    image: HostImageOptions | None = None
    owns_device: bool = False
    prefetch: bool = True
    poison: bool = False
    fence_filter: FenceFilter = all_fences


class StreamedExecutor(Executor):
    """An executor whose weights stream. ``loop`` counts what that took, ``image`` is the host's copy of them."""

    def __init__(
        self, bound: BoundProgram, loop: StreamingLoop, image: HostImage, *, replay: bool, owned: bool
    ) -> None:
        super().__init__(bound, replay=replay, hooks=_hooks(loop, len(bound.steps)))
        self.loop, self.image, self._owned = loop, image, owned

    @property
    def figures(self) -> dict[str, int]:
        """What streaming has taken so far: passes, copies, bytes that were moved, waits; and what the host holds."""
        counts = self.loop.counters
        return {
            "passes": counts.passes,
            "copies": counts.copies,
            "moved_bytes": counts.copied_bytes,
            "waits": counts.waits,
            "pass_bytes": self.loop.ring.bytes_per_pass,
            "resident_bytes": self.loop.ring.resident_bytes,
            "host_bytes": self.image.size,
            "pinned_bytes": self.image.pinning.pinned_bytes,
        }

    def close(self) -> None:
        """As any executor's; nothing is under way, and the ring's arena and the host's image are free."""
        super().close()
        self.loop.close()
        self.image.close()
        if self._owned:
            self.loop.device.close()


def bind_ring(request: BindRequest, device: MemoryDevice, options: RingOptions | None = None) -> StreamedExecutor:
    """An executor whose weights stream through the ring of the request's plan. It runs on ``device``.

    Weights are tensors, or tensors in files, which are read once, into the host's image. Errors as of ``bind``, and
    ``INVALID_CONFIG`` for a plan without a ring.
    """
    how = options or RingOptions()
    program, plan, weights = request.program, request.plan, request.weights
    ring = _require_ring(program.graph, plan)
    sources = _sources(program.graph, ring, weights)
    with ExitStack() as undo, torch.inference_mode(mode=False):
        arena = device.allocate(ring.bytes)
        undo.callback(device.release, arena)
        homes = _homes(program.graph, ring, device.memory(arena))
        bound = bind_program(replace(request, device=device.device), weight_locations=homes)
        image = HostImage(ring, sources, how.image or HostImageOptions(node=device.node), device.registrar)
        undo.callback(image.close)
        loop = StreamingLoop(
            device,
            ring,
            image,
            arena=arena,
            prefetch=how.prefetch,
            poison=how.poison,
            declare=device.has_observers,
            fence_filter=how.fence_filter,
        )
        undo.pop_all()
    return StreamedExecutor(bound, loop, image, replay=request.replay, owned=how.owns_device)


def _require_ring(graph: Graph, plan: Plan) -> Ring:
    if plan.ring is None:
        raise InvalidConfig(
            "the plan has no ring", fix="plan with a budget for weights: tmmu ring TARGET --budget SIZE"
        )
    held = {member.buffer for block in plan.ring.blocks for member in block.members}
    text = frozenset(_text(graph))
    for value in graph.outputs:
        buffer = graph.values.buffer[value]
        if buffer in text and buffer not in held:
            raise InvalidConfig(
                f"output {value} is weight {graph.notes.buffers[buffer]} itself, which no op reads and no ring holds",
                fix="return what is computed, or run without a ring",
                value=value,
            )
    return plan.ring


def _text(graph: Graph) -> list[int]:
    return [buffer for buffer, role in enumerate(graph.buffers.role) if role in (PARAMETER, CONSTANT)]


def _homes(graph: Graph, ring: Ring, slab: Slab) -> dict[int, tuple[Slab, int]]:
    """Where each weight lies. One that no block holds is read by no op: its place is a word, and nobody looks there."""
    homes = dict.fromkeys(_text(graph), (slab, 0))
    homes.update((one.buffer, (slab, block.address + one.offset)) for block in ring.blocks for one in block.members)
    return homes


def _sources(graph: Graph, ring: Ring, weights: Mapping[str, Weight]) -> dict[int, Source]:
    """Where the bytes of each member come from; what is missing or does not fit is refused."""
    held = frozenset(member.buffer for block in ring.blocks for member in block.members)
    found = check_weights(graph, weights, skip=frozenset(_text(graph)) - held)
    return {buffer: source for buffer, source in found.items() if buffer in held}


def _hooks(loop: StreamingLoop, steps: int) -> Hooks:
    """By position: leave the visits that are over, then enter those that begin. A run that broke off is forgotten."""
    leaves: dict[int, list[int]] = {}
    enters: dict[int, list[int]] = {}
    for index, visit in enumerate(loop.ring.visits):
        enters.setdefault(visit.first, []).append(index)
        leaves.setdefault(visit.last + 1, []).append(index)
    turn = _Turn(loop)
    hooks: dict[int, Runnable] = {}
    for at in sorted({0, steps, *enters, *leaves}):
        hooks[at] = turn.hook(leaves.get(at, ()), enters.get(at, ()), begins=at == 0, ends=at == steps)
    return hooks


class _Turn:
    """Whether a run is under way, or broke off."""

    def __init__(self, loop: StreamingLoop) -> None:
        self._loop, self._under_way = loop, False

    def hook(self, leaves: Sequence[int], enters: Sequence[int], *, begins: bool, ends: bool) -> Runnable:
        """What runs at a position."""
        loop = self._loop

        def run() -> None:
            if begins:
                if self._under_way:
                    loop.restart()
                self._under_way = True
            for visit in leaves:
                loop.leave(visit)
            for visit in enters:
                loop.enter(visit)
            if ends:
                self._under_way = False

        return run
