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
from tmmu.runtime.kernels.code import Code, Runnable, runnable_of
from tmmu.runtime.memory.sizing import require_device
from tmmu.runtime.steps.interpreter import build_function, is_expressible
from tmmu.runtime.steps.unplanned import CudaAllocations, Unplanned, count_allocations

MIN_SCRATCH: Final = 1 << 18
SCRATCH_SHARE: Final = 50
"""Operators that must allocate are asked for parts of this share of the stack, where parts have the same bits."""
CUDA_SCRATCH: Final = 1 << 28
"""What a library's workspaces may take of a GPU beside a plan, unless the caller says otherwise."""


class AllocationCounter(Protocol):
    """Counts allocations, step by step."""

    def step_scope(self, index: int, /) -> AbstractContextManager[Any]:
        """While inside, what is allocated counts for this step."""

    def counts(self, index: int, /) -> tuple[int, int]:
        """Of a step, the allocations and the most bytes held at once, once the block that counts has ended."""

    def by_operator(self, names: list[str], /) -> tuple[Unplanned, ...]:
        """Sums, once the block that counts has ended."""


class ExecutionStream(ABC):
    """A device as an executor sees it."""

    generators: tuple[int, ...] = ()
    """Devices beside the CPU whose random state a run may move."""

    @abstractmethod
    def activate(self) -> AbstractContextManager[None]:
        """What runs inside comes after all that the caller has issued, and before all that it will."""

    @abstractmethod
    def can_capture(self, code: Code) -> bool:
        """Whether ``composed`` is worth a try."""

    @abstractmethod
    def capture(self, code: Code) -> Runnable | None:
        """What runs all of it at once, or ``None``."""

    @abstractmethod
    def count_allocations(self) -> AbstractContextManager[AllocationCounter]:
        """Yields who counts, inside, what torch's allocator is asked for."""

    @abstractmethod
    def scratch_limit(self, stack_bytes: int) -> int:
        """Bytes that an operator may hold at a time beside a stack of this size; 0 where nobody minds."""

    @abstractmethod
    def synchronize(self) -> None:
        """All that was issued is done."""

    @abstractmethod
    def allocation_count(self) -> int:
        """How often torch has asked the device itself for memory."""

    @abstractmethod
    def record_event(self) -> Callable[[], None]:
        """What waits for all that has been run."""


class CpuExecutionStream(ExecutionStream):
    """A call returns when its work is done."""

    def activate(self) -> AbstractContextManager[None]:
        """Nothing to order."""
        return nullcontext()

    def can_capture(self, code: Code) -> bool:
        """Whether torch's interpreter has words for it."""
        return is_expressible(code)

    def capture(self, code: Code) -> Runnable | None:
        """One call of torch's interpreter."""
        return build_function(code)

    def count_allocations(self) -> AbstractContextManager[AllocationCounter]:
        """By the profiler's memory events."""
        return count_allocations()

    def scratch_limit(self, stack_bytes: int) -> int:
        """A fiftieth of the stack, and a little at least."""
        return max(MIN_SCRATCH, stack_bytes // SCRATCH_SHARE)

    def synchronize(self) -> None:
        """It is."""

    def allocation_count(self) -> int:
        """Nobody counts: each allocation is the device's."""
        return 0

    def record_event(self) -> Callable[[], None]:
        """All is done."""
        return lambda: None


class CudaExecutionStream(ExecutionStream):
    """A stream of its own; runs of calls become CUDA graphs over addresses that never move.

    What operators allocate while a graph is made lies in one pool that the graphs share, of at most ``scratch`` bytes.
    """

    def __init__(self, device: torch.device, scratch: int = CUDA_SCRATCH, *, cuda: Any = torch.cuda) -> None:
        require_device(device, cuda)
        self.device, self.scratch, self._cuda = device, scratch, cuda
        self.generators = (device.index if device.index is not None else cuda.current_device(),)
        self._stream = cuda.Stream(device)
        self._pool = cuda.graph_pool_handle()
        self.capture_errors: list[str] = []
        """Why runs of calls could not become a graph."""

    @contextmanager
    def activate(self) -> Iterator[None]:
        """On the lane's own stream."""
        caller = self._cuda.current_stream(self.device)
        self._stream.wait_stream(caller)
        try:
            with self._cuda.stream(self._stream):
                yield
        finally:
            caller.wait_stream(self._stream)

    def can_capture(self, code: Code) -> bool:
        """Only the attempt tells; but a generator's state, which replays move as a whole, is taken and set between."""
        return not any(str(instr.operator) in RANDOM_STATE_OPS for instr in code)

    def capture(self, code: Code) -> Runnable | None:
        """A graph's replay; ``DEVICE_MEMORY`` where graphs need more than the scratch."""
        graph = self._cuda.CUDAGraph()
        run = runnable_of(code)
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
            self.capture_errors.append(" ".join(str(error).split())[:200])
            return None
        self._require_pool_fits()
        replay: Runnable = graph.replay
        return replay

    def count_allocations(self) -> AbstractContextManager[AllocationCounter]:
        """By the allocator's own counters."""
        return nullcontext(CudaAllocations(self.device, cuda=self._cuda))

    def scratch_limit(self, stack_bytes: int) -> int:  # noqa: ARG002
        """Kernels are few and large; the pool holds what they need."""
        return 0

    def allocation_count(self) -> int:
        """``cudaMalloc``s of the caching allocator."""
        return int(self._cuda.memory_stats(self.device)["segment.all.allocated"])

    def synchronize(self) -> None:
        """The host waits."""
        self._cuda.synchronize(self.device)

    def record_event(self) -> Callable[[], None]:
        """An event at the end of the stream."""
        event = self._cuda.Event()
        event.record(self._stream)
        wait: Callable[[], None] = event.synchronize
        return wait

    @property
    def pool_bytes(self) -> int:
        """Bytes that the graphs' pool has taken from the device."""
        segments = self._cuda.memory_snapshot()
        return sum(
            segment["total_size"] for segment in segments if tuple(segment["segment_pool_id"]) == tuple(self._pool)
        )

    def _require_pool_fits(self) -> None:
        reserved = self.pool_bytes
        if reserved > self.scratch:
            raise DeviceMemory(
                f"operators allocate {reserved} bytes beside the plan, and the scratch is {self.scratch}",
                fix=f"bind with scratch={reserved}",
                bytes=reserved,
                scratch=self.scratch,
            )


def execution_stream_of(device: torch.device, scratch: int = CUDA_SCRATCH) -> ExecutionStream:
    """The lane of a device; ``DEVICE_MISSING`` where it is not there."""
    if device.type == "cpu":
        return CpuExecutionStream()
    if device.type == "cuda":
        return CudaExecutionStream(device, scratch)
    raise InvalidConfig(f"plans are not run on {device}", fix="use cpu or cuda", device=str(device))
