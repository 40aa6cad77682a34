"""Where a run takes place: what order its work has with the caller's, how a run of calls is handed over as one, and who
counts what operators allocate. The CPU has one lane; a GPU's has a stream of its own and graphs for replay.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Final, Protocol

import torch

from tmmu.errors import DeviceMemory, InvalidConfig
from tmmu.ir.random_state import RANDOM_STATE_OPS
from tmmu.runtime.kernels.code import Code, Run, runner
from tmmu.runtime.memory.sizing import require_device
from tmmu.runtime.steps.interpreter import interpreted, speakable
from tmmu.runtime.steps.unplanned import CudaAllocations, Unplanned, watched

LEAST_SCRATCH: Final = 1 << 18
SCRATCH_SHARE: Final = 50
"""Operators that must allocate are asked for parts of this share of the stack, where parts have the same bits."""
CUDA_SCRATCH: Final = 1 << 28
"""What a library's workspaces may take of a GPU beside a plan, unless the caller says otherwise."""


class Counting(Protocol):
    """Counts allocations, step by step."""

    def of_step(self, index: int, /) -> AbstractContextManager[Any]:
        """While inside, what is allocated counts for this step."""

    def counts(self, index: int, /) -> tuple[int, int]:
        """Of a step, the allocations and the most bytes held at once, once the block that counts has ended."""

    def by_operator(self, names: list[str], /) -> tuple[Unplanned, ...]:
        """Sums, once the block that counts has ended."""


class Lane(ABC):
    """A device as an executor sees it."""

    generators: tuple[int, ...] = ()
    """Devices beside the CPU whose random state a run may move."""

    @abstractmethod
    def entered(self) -> AbstractContextManager[None]:
        """What runs inside comes after all that the caller has issued, and before all that it will."""

    @abstractmethod
    def speaks(self, code: Code) -> bool:
        """Whether ``composed`` is worth a try."""

    @abstractmethod
    def composed(self, code: Code) -> Run | None:
        """What runs all of it at once, or ``None``."""

    @abstractmethod
    def counting(self) -> AbstractContextManager[Counting]:
        """Yields who counts, inside, what torch's allocator is asked for."""

    @abstractmethod
    def part(self, stack: int) -> int:
        """Bytes that an operator may hold at a time beside a stack of this size; 0 where nobody minds."""

    @abstractmethod
    def settle(self) -> None:
        """All that was issued is done."""

    @abstractmethod
    def taken(self) -> int:
        """How often torch has asked the device itself for memory."""

    @abstractmethod
    def mark(self) -> Callable[[], None]:
        """What waits for all that has been run."""


class CpuLane(Lane):
    """A call returns when its work is done."""

    def entered(self) -> AbstractContextManager[None]:
        """Nothing to order."""
        return nullcontext()

    def speaks(self, code: Code) -> bool:
        """Whether torch's interpreter has words for it."""
        return speakable(code)

    def composed(self, code: Code) -> Run | None:
        """One call of torch's interpreter."""
        return interpreted(code)

    def counting(self) -> AbstractContextManager[Counting]:
        """By the profiler's memory events."""
        return watched()

    def part(self, stack: int) -> int:
        """A fiftieth of the stack, and a little at least."""
        return max(LEAST_SCRATCH, stack // SCRATCH_SHARE)

    def settle(self) -> None:
        """It is."""

    def taken(self) -> int:
        """Nobody counts: each allocation is the device's."""
        return 0

    def mark(self) -> Callable[[], None]:
        """All is done."""
        return lambda: None


class CudaLane(Lane):
    """A stream of its own; runs of calls become CUDA graphs over addresses that never move.

    What operators allocate while a graph is made lies in one pool that the graphs share, of at most ``scratch`` bytes.
    """

    def __init__(self, device: torch.device, scratch: int = CUDA_SCRATCH, *, cuda: Any = torch.cuda) -> None:
        require_device(device, cuda)
        self.device, self.scratch, self._cuda = device, scratch, cuda
        self.generators = (device.index if device.index is not None else cuda.current_device(),)
        self._stream = cuda.Stream(device)
        self._pool = cuda.graph_pool_handle()
        self.refused: list[str] = []
        """Why runs of calls could not become a graph."""

    @contextmanager
    def entered(self) -> Iterator[None]:
        """On the lane's own stream."""
        caller = self._cuda.current_stream(self.device)
        self._stream.wait_stream(caller)
        try:
            with self._cuda.stream(self._stream):
                yield
        finally:
            caller.wait_stream(self._stream)

    def speaks(self, code: Code) -> bool:
        """Only the attempt tells; but a generator's state, which replays move as a whole, is taken and set between."""
        return not any(str(one.operator) in RANDOM_STATE_OPS for one in code)

    def composed(self, code: Code) -> Run | None:
        """A graph's replay; ``DEVICE_MEMORY`` where graphs need more than the scratch."""
        graph = self._cuda.CUDAGraph()
        run = runner(code)
        try:
            with (
                torch.no_grad(),
                torch._C._DisableAutocast(),
                torch._C._AutoDispatchBelowADInplaceOrView(),
                self._cuda.graph(graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"),
            ):
                run()
        except RuntimeError as error:
            self._cuda.synchronize(self.device)
            self.refused.append(" ".join(str(error).split())[:200])
            return None
        self._demand_room()
        replay: Run = graph.replay
        return replay

    def counting(self) -> AbstractContextManager[Counting]:
        """By the allocator's own counters."""
        return nullcontext(CudaAllocations(self.device, cuda=self._cuda))

    def part(self, stack: int) -> int:  # noqa: ARG002
        """Kernels are few and large; the pool holds what they need."""
        return 0

    def taken(self) -> int:
        """``cudaMalloc``s of the caching allocator."""
        return int(self._cuda.memory_stats(self.device)["segment.all.allocated"])

    def settle(self) -> None:
        """The host waits."""
        self._cuda.synchronize(self.device)

    def mark(self) -> Callable[[], None]:
        """An event at the end of the stream."""
        event = self._cuda.Event()
        event.record(self._stream)
        wait: Callable[[], None] = event.synchronize
        return wait

    @property
    def pooled(self) -> int:
        """Bytes that the graphs' pool has taken from the device."""
        segments = self._cuda.memory_snapshot()
        return sum(one["total_size"] for one in segments if tuple(one["segment_pool_id"]) == tuple(self._pool))

    def _demand_room(self) -> None:
        taken = self.pooled
        if taken > self.scratch:
            raise DeviceMemory(
                f"operators allocate {taken} bytes beside the plan, and the scratch is {self.scratch}",
                fix=f"bind with scratch={taken}",
                bytes=taken,
                scratch=self.scratch,
            )


def lane_of(device: torch.device, scratch: int = CUDA_SCRATCH) -> Lane:
    """The lane of a device; ``DEVICE_MISSING`` where it is not there."""
    if device.type == "cpu":
        return CpuLane()
    if device.type == "cuda":
        return CudaLane(device, scratch)
    raise InvalidConfig(f"plans are not run on {device}", fix="use cpu or cuda", device=str(device))
