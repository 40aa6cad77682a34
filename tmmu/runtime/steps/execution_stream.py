"""What differs between devices when a plan runs: ordering with the caller's work, capture, counts of allocations.

CPU: a call returns when its work is done; captured code is a TorchScript graph. CUDA: a stream of its own, which waits
for the caller's current stream and is waited for by it; captured code is a CUDA graph. Invariants of CUDA: a graph is
captured on the stream that replays it, so it is ordered like any other work there; all graphs allocate from one pool,
which replays one after another can share; addresses never change, since the plan's do not and the pool lives as long as
the stream.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Final, Protocol

import torch

from tmmu.errors import DeviceMemory, InvalidConfig
from tmmu.ir.random_state import RANDOM_STATE_OPS
from tmmu.runtime.kernels.code import Code, Runnable, runnable_of, with_tensors
from tmmu.runtime.memory.sizing import require_device
from tmmu.runtime.steps.interpreter import build_function, is_expressible
from tmmu.runtime.steps.unplanned import CudaAllocations, Unplanned, count_allocations
from tmmu.torch_private import BelowAutograd, DisableAutocast

MIN_SCRATCH: Final = 1 << 18
SCRATCH_SHARE: Final = 50
"""Operators that can only allocate run in parts of ``stack_bytes / SCRATCH_SHARE``."""
GRAPHS_BY_PLACES: Final = 64
CUDA_SCRATCH: Final = 1 << 28
"""Bytes that captured operators may allocate on a GPU beside the plan, mostly workspaces of libraries; the default."""


class AllocationCounter(Protocol):
    """Counts what torch's allocator is asked for, by step."""

    def step_scope(self, index: int, /) -> AbstractContextManager[Any]:
        """While inside, allocations count for this step."""

    def counts(self, index: int, /) -> tuple[int, int]:
        """(allocations, most bytes live at once) of a step, once the counting block has ended."""

    def by_operator(self, names: list[str], /) -> tuple[Unplanned, ...]:
        """Sums by operator, of the name of each step, once the counting block has ended."""


class ExecutionStream(ABC):
    """A device as an executor uses it."""

    generators: tuple[int, ...] = ()
    """CUDA devices whose random state a run may advance."""

    @abstractmethod
    def activate(self) -> AbstractContextManager[None]:
        """Work issued inside runs after all that the caller has issued, and before all that it issues later."""

    @abstractmethod
    def can_capture(self, code: Code) -> bool:
        """Whether ``capture`` may succeed."""

    @abstractmethod
    def capture(self, code: Code, arguments: Sequence[torch.Tensor] = ()) -> Runnable | None:
        """A callable that launches all of the code at once; ``None`` where it cannot be captured.

        It takes a tensor in place of each of ``arguments``, which are told by their identity, in that order.
        """

    @abstractmethod
    def count_allocations(self) -> AbstractContextManager[AllocationCounter]:
        """Yields a counter of what torch's allocator is asked for inside."""

    @abstractmethod
    def scratch_limit(self, stack_bytes: int) -> int:
        """Bytes that an operator may allocate at a time beside a stack of ``stack_bytes``; 0 for no limit."""

    @abstractmethod
    def synchronize(self) -> None:
        """Waits until all issued work is done."""

    @abstractmethod
    def allocation_count(self) -> int:
        """How often torch's allocator has asked the device for memory."""

    @abstractmethod
    def record_event(self) -> Callable[[], None]:
        """A callable that waits for all work issued so far."""


class CpuExecutionStream(ExecutionStream):
    """The CPU, where a call returns when its work is done."""

    def activate(self) -> AbstractContextManager[None]:
        """Nothing: calls are in order."""
        return nullcontext()

    def can_capture(self, code: Code) -> bool:
        """Whether a TorchScript graph can express it."""
        return is_expressible(code)

    def capture(self, code: Code, arguments: Sequence[torch.Tensor] = ()) -> Runnable | None:
        """One call of torch's interpreter."""
        return build_function(code, arguments)

    def count_allocations(self) -> AbstractContextManager[AllocationCounter]:
        """Counted by the profiler's memory events."""
        return count_allocations()

    def scratch_limit(self, stack_bytes: int) -> int:
        """2 % of the stack, at least 256 KiB."""
        return max(MIN_SCRATCH, stack_bytes // SCRATCH_SHARE)

    def synchronize(self) -> None:
        """Nothing to wait for."""

    def allocation_count(self) -> int:
        """0: torch's CPU allocator keeps no memory between calls, so there is nothing to grow."""
        return 0

    def record_event(self) -> Callable[[], None]:
        """Nothing to wait for."""
        return lambda: None


class CudaExecutionStream(ExecutionStream):
    """A CUDA stream of its own, and CUDA graphs whose operators allocate from one pool of at most ``scratch`` bytes."""

    def __init__(self, device: torch.device, scratch: int = CUDA_SCRATCH, *, cuda: Any = torch.cuda) -> None:
        require_device(device, cuda)
        self.device, self.scratch, self._cuda = device, scratch, cuda
        self.generators = (device.index if device.index is not None else cuda.current_device(),)
        self._stream = cuda.Stream(device)
        self._pool = cuda.graph_pool_handle()
        self.capture_errors: list[str] = []
        """Why code could not be captured, in order."""

    @contextmanager
    def activate(self) -> Iterator[None]:
        """On the stream's own CUDA stream."""
        caller = self._cuda.current_stream(self.device)
        self._stream.wait_stream(caller)
        try:
            with self._cuda.stream(self._stream):
                yield
        finally:
            caller.wait_stream(self._stream)

    def can_capture(self, code: Code) -> bool:
        """Only a capture tells.

        But never code that reads or sets a generator's state, which a replay advances, or a number of a tensor, which a
        replay would keep.
        """
        return not any(str(instr.operator) in RANDOM_STATE_OPS or instr.computes_numbers for instr in code)

    def capture(self, code: Code, arguments: Sequence[torch.Tensor] = ()) -> Runnable | None:
        """The replay of a CUDA graph; ``DEVICE_MEMORY`` where graphs allocate more than ``scratch`` bytes.

        A graph has its addresses in it, so with ``arguments`` there is one for each tuple of places that it is called
        with, captured at the first call with it.
        """
        if not arguments:
            return self._capture(code)
        # The tensors for which the code was compiled may lie where nothing is, so no graph is captured of those.
        return _GraphByPlaces(self, code, tuple(arguments))

    def _capture(self, code: Code) -> Runnable | None:
        graph = self._cuda.CUDAGraph()
        run = runnable_of(code)
        try:
            with (
                torch.no_grad(),
                DisableAutocast(),
                BelowAutograd(),
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
        """Counted by the caching allocator."""
        return nullcontext(CudaAllocations(self.device, cuda=self._cuda))

    def scratch_limit(self, stack_bytes: int) -> int:  # noqa: ARG002
        """No limit: kernels run whole, and the pool bounds what they allocate."""
        return 0

    def allocation_count(self) -> int:
        """``cudaMalloc`` calls of the caching allocator."""
        return int(self._cuda.memory_stats(self.device)["segment.all.allocated"])

    def synchronize(self) -> None:
        """Waits for all work on the device."""
        self._cuda.synchronize(self.device)

    def record_event(self) -> Callable[[], None]:
        """Waits for an event recorded at the end of the stream."""
        event = self._cuda.Event()
        event.record(self._stream)
        wait: Callable[[], None] = event.synchronize
        return wait

    @property
    def pool_bytes(self) -> int:
        """Bytes that the graphs' pool has reserved on the device."""
        pools = ((tuple(row["segment_pool_id"]), row["total_size"]) for row in self._cuda.memory_snapshot())
        return sum(size for pool, size in pools if pool == tuple(self._pool))

    def _require_pool_fits(self) -> None:
        reserved = self.pool_bytes
        if reserved > self.scratch:
            raise DeviceMemory(
                f"operators allocate {reserved} bytes beside the plan, and the scratch is {self.scratch}",
                fix=f"bind with scratch={reserved}",
                bytes=reserved,
                scratch=self.scratch,
            )


class _GraphByPlaces:
    """A CUDA graph for each tuple of places of the arguments, ``GRAPHS_BY_PLACES`` of them at most, the last used.

    Calls one by one where none can be captured.
    """

    def __init__(self, stream: CudaExecutionStream, code: Code, arguments: tuple[torch.Tensor, ...]) -> None:
        self._stream, self._code, self._arguments = stream, code, arguments
        self._runs: dict[tuple[int, ...], Runnable] = {}

    def __call__(self, *tensors: torch.Tensor) -> None:
        places = tuple(tensor.data_ptr() for tensor in tensors)
        run = self._runs.pop(places, None)
        if run is None:
            exchanged = {id(own): tensor for own, tensor in zip(self._arguments, tensors, strict=True)}
            code = with_tensors(self._code, exchanged)
            run = self._stream.capture(code) or runnable_of(code)
        self._runs[places] = run  # the last in the dict is the last used
        if len(self._runs) > GRAPHS_BY_PLACES:
            del self._runs[next(iter(self._runs))]
        run()


def execution_stream_of(device: torch.device, scratch: int = CUDA_SCRATCH) -> ExecutionStream:
    """The execution stream of a device; ``DEVICE_MISSING`` where this machine has no such GPU."""
    if device.type == "cpu":
        return CpuExecutionStream()
    if device.type == "cuda":
        return CudaExecutionStream(device, scratch)
    raise InvalidConfig(f"plans are not run on {device}", fix="use cpu or cuda", device=str(device))
