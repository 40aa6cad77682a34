"""One stream of weights for all steps of a model: prefill and decode run over the same ring, pass after pass."""

from collections.abc import Callable
from dataclasses import replace

import torch

from tmmu.errors import InternalError
from tmmu.ir.graph import Graph
from tmmu.ir.plan import Plan
from tmmu.planner.ring.follow import NamedRing, follow_ring
from tmmu.planner.ring.prepare import RingRequest, prepare_ring
from tmmu.runtime.device.choose import memory_device
from tmmu.runtime.execute.bind_request import BindRequest
from tmmu.runtime.ring.executor import RingOptions, StreamedExecutor, bind_beside, bind_ring
from tmmu.runtime.ring.streamed_weights import StreamedWeights


class WeightStream:
    """The ring of the step that is planned first, which all others follow; weights are read when one is bound.

    ``capacity``: bytes of the device for weights; ``policy``: one of ``tmmu.ir.ring.POLICIES``. ``ARENA_TOO_SMALL``
    where no ring fits in there, with the least.
    """

    def __init__(  # noqa: PLR0913 - of what, in which room, how
        self,
        graph: Graph,
        plan: Plan,
        *,
        capacity: int,
        device: torch.device,
        policy: str = "cyclic",
        prefetch: bool = True,
    ) -> None:
        ring = prepare_ring(graph, plan, RingRequest(capacity=capacity, policy=policy)).ring
        if ring is None:
            raise InternalError("a ring was planned, and the plan has none")
        self._leader, self._device = NamedRing(ring=ring, names=graph.notes.buffers), device
        self.ring, self._prefetch = ring, prefetch
        self.weights: StreamedWeights | None = None
        """``None`` until a step is bound."""
        self.before_piece: Callable[[int], object] | None = None
        """What is called before bytes of weights are copied; set it before a step is bound."""

    @property
    def figures(self) -> dict[str, int]:
        """What streaming has taken so far, as of ``StreamedWeights``; of no step yet, nothing has moved."""
        if self.weights is not None:
            return self.weights.figures
        sizes = {"pass_bytes": self.ring.bytes_per_pass, "resident_bytes": self.ring.resident_bytes}
        moved = dict.fromkeys(("passes", "copies", "moved_bytes", "waits"), 0)
        return moved | sizes | {"host_bytes": self.ring.model_bytes, "pinned_bytes": 0}

    def bind(self, request: BindRequest) -> StreamedExecutor:
        """The step of a request whose plan has no ring. The first one that is bound closes the weights with itself."""
        plan = follow_ring(request.program.graph, request.plan, self._leader)
        streamed = replace(request, plan=plan)
        if self.weights is not None:
            return bind_beside(streamed, self.weights)
        options = RingOptions(owns_device=True, prefetch=self._prefetch, before_piece=self.before_piece)
        executor = bind_ring(streamed, memory_device(self._device), options)
        self.weights = executor.weights
        return executor
