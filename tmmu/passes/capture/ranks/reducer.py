"""The reducer of ``DistributedDataParallel`` in Python: torch's own is C++ that reads addresses, which a trace has not.

It makes the same calls at the same places: buckets that last, each gradient divided by the number of ranks into its
view of a bucket as soon as it is there, a bucket reduced in its turn, and at the end of the backward pass every bucket
waited for and copied back, or its views taken for the gradients. Buckets are made anew, in the order in which gradients
came, before the second step. What it does not do is refused under the name of the wrapper.
"""

import weakref
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, Final

import torch

from tmmu.errors import UnsupportedOp
from tmmu.passes.capture.replace import replace_attribute
from tmmu.torch_private import REDUCER_FUNCTIONS, bucket_assignment, know_static_graph, queue_backward_callback

_PACKED_AT_ONCE: Final = 2
"""Broadcasts of buffers that torch has under way before it waits for the first."""


@contextmanager
def reducers_in_python() -> Iterator[None]:
    """Block in which ``DistributedDataParallel`` has this reducer."""
    distributed = torch.distributed
    if not distributed.is_available():
        yield
        return
    replacements = {
        "Reducer": PythonReducer,
        "Logger": _SilentLogger,
        REDUCER_FUNCTIONS["verify"]: _do_nothing,
        REDUCER_FUNCTIONS["broadcast"]: _broadcast_packed,
        REDUCER_FUNCTIONS["hook"]: _refuse_hook,
        REDUCER_FUNCTIONS["builtin_hook"]: _refuse_hook,
    }
    with ExitStack() as stack:
        for name, replacement in replacements.items():
            stack.enter_context(replace_attribute(distributed, name, replacement))
        yield


def begin_later_steps(module: torch.nn.Module) -> None:
    """Wrappers in it are as before any step but the first: a static graph is known to them."""
    for part in module.modules():
        reducer = getattr(part, "reducer", None)
        if isinstance(reducer, PythonReducer):
            reducer.begin_later_step()
            know_static_graph(part)


def named_buckets(module: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Name and memory of each bucket of the wrappers in it."""
    for path, part in module.named_modules():
        reducer = getattr(part, "reducer", None)
        if isinstance(reducer, PythonReducer):
            prefix = f"{path}." if path else ""
            for number, bucket in enumerate(reducer.buckets):
                yield f"{prefix}reducer.buckets.{number}.gradients", bucket.gradients


def end_first_step(module: torch.nn.Module) -> None:
    """Wrappers in it have the buckets that last, which torch makes when the second step begins: that finds them."""
    for part in module.modules():
        reducer = getattr(part, "reducer", None)
        if isinstance(reducer, PythonReducer):
            reducer._rebuild_buckets()


class Bucket:
    """Gradients that are reduced together: ``views`` are those of its parameters, ``pending`` has not come yet."""

    def __init__(self, parameters: Sequence[torch.Tensor], numbers: Sequence[int]) -> None:
        first = parameters[numbers[0]]
        sizes = [parameters[number].numel() for number in numbers]
        self.gradients = torch.empty(sum(sizes), dtype=first.dtype, device=first.device)
        parts = torch.split(self.gradients, sizes)
        self.views = {
            number: part.as_strided(parameters[number].shape, parameters[number].stride(), part.storage_offset())
            for number, part in zip(numbers, parts, strict=True)
        }
        self.pending: set[int] = set()
        self.work: Any = None


class PythonReducer:
    """State: the buckets, in the order in which they are reduced, and how far a backward pass has come."""

    def __init__(  # noqa: PLR0913, PLR0917 - the signature of torch's own
        self,
        parameters: Sequence[torch.Tensor],
        bucket_indices: Sequence[Sequence[int]],
        bucket_sizes: Sequence[int],
        group: Any,
        expect_sparse: Sequence[bool],
        bucket_bytes: int,
        find_unused: bool,  # noqa: FBT001
        gradient_as_bucket_view: bool,  # noqa: FBT001
        names: Any,
        first_bucket_bytes: int,
        *options: Any,
    ) -> None:
        del bucket_sizes, names
        if find_unused or any(expect_sparse) or any(options[:2]) or any(options[3:]):
            raise _refusal("unused parameters, sparse gradients or copies in batches")
        self._parameters, self._group = list(parameters), group
        self._takes_views = gradient_as_bucket_view
        self._limits = options[2] or [first_bucket_bytes, bucket_bytes]
        self._expects_gradients = self._is_rebuilt = self._waits_for_all = False
        self._order: list[int] = []
        self._next = 0
        self._make_buckets(bucket_indices)
        for number, parameter in enumerate(self._parameters):
            register: Any = parameter.register_post_accumulate_grad_hook
            register(_hook_of(weakref.ref(self), number))

    def _make_buckets(self, bucket_indices: Sequence[Sequence[int]]) -> None:
        self.buckets = [Bucket(self._parameters, numbers) for numbers in bucket_indices]
        self._bucket_of = {number: bucket for bucket in self.buckets for number in bucket.views}

    def note(self, number: int, parameter: torch.Tensor) -> None:
        """The gradient of a parameter is there."""
        if self._expects_gradients and not self._waits_for_all:
            self._take(number, parameter)
        elif self._expects_gradients:
            self._order.append(number)

    def _take(self, number: int, parameter: torch.Tensor) -> None:
        """A gradient is there: it goes into its bucket, and buckets that are full are reduced in their order."""
        if not self._is_rebuilt and not self._waits_for_all:
            self._order.append(number)
        with torch.no_grad():
            self._fill(number, parameter)
        while self._next < len(self.buckets) and not self.buckets[self._next].pending:
            ready = self.buckets[self._next]
            ready.work = torch.distributed.all_reduce(ready.gradients, group=self._group, async_op=True)
            self._next += 1
            if self._next == len(self.buckets) and not self._waits_for_all:
                queue_backward_callback(self._finish)

    def _fill(self, number: int, parameter: torch.Tensor) -> None:
        """Its share of the mean of all ranks goes into the bucket."""
        bucket, gradient, ranks = self._bucket_of[number], parameter.grad, self._group.size()
        view = bucket.views[number]
        assert gradient is not None  # it was just accumulated
        if self._takes_views and gradient is view:
            view.div_(ranks)
        else:
            torch.mul(gradient, 1.0 / ranks, out=view)
            if self._takes_views:
                parameter.grad = view
        bucket.pending.discard(number)

    def _finish(self) -> None:
        """At the end of the backward pass."""
        self._expects_gradients = False
        with torch.no_grad():
            for bucket in self.buckets:
                bucket.work.wait()
                bucket.work = None
                for number, view in bucket.views.items() if not self._takes_views else ():
                    gradient = self._parameters[number].grad
                    assert gradient is not None  # it was reduced
                    gradient.copy_(view)

    def prepare_for_forward(self) -> None:
        """Nothing: torch counts passes here."""

    def prepare_for_backward(self, outputs: Any) -> None:
        """Gradients of the next backward pass are reduced."""
        del outputs
        self._expects_gradients, self._next = True, 0
        for bucket in self.buckets:
            bucket.pending = set(bucket.views)

    def _rebuild_buckets(self) -> bool:
        """Makes the buckets anew once, in the order in which the first gradients came; whether it did."""
        if self._is_rebuilt or not self._order:
            return False
        order, self._order = self._order, []
        parameters = [self._parameters[number] for number in order]
        assignment = bucket_assignment(parameters, self._limits, order)
        self.buckets = []
        self._make_buckets(assignment)
        self._is_rebuilt = True
        return True

    def set_logger(self, logger: Any) -> None:
        """Nothing is logged."""

    def _set_static_graph(self) -> None:
        """The first backward pass reduces nothing before its end, as torch learns the graph in it."""
        self._waits_for_all = True

    def _delay_all_reduce(self) -> None:
        """At the end of the first backward pass of a static graph."""
        for number, parameter in enumerate(self._parameters):
            self._take(number, parameter)
        self._finish()
        self._waits_for_all = False

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise _refusal(f"what calls {name} of its reducer (mixed precision, join, an optimizer in the backward pass)")

    def begin_later_step(self) -> None:
        """The next backward pass is none of what torch does in the first alone."""
        self._waits_for_all = False


def _hook_of(reducer: "weakref.ref[PythonReducer]", number: int) -> Any:
    """What a gradient calls; the wrapper has the reducer, and no weight has."""

    def hook(parameter: torch.Tensor) -> None:
        owner = reducer()
        if owner is not None:
            owner.note(number, parameter)

    return hook


class _SilentLogger:
    """What a reducer reports to."""

    def __init__(self, reducer: Any) -> None:
        del reducer

    def set_construction_data_and_log(self, *_: Any) -> None:
        """Nothing."""

    def set_runtime_stats_and_log(self) -> None:
        """Nothing."""

    def _set_static_graph(self) -> None:
        """Nothing."""

    def _set_comm_hook_name(self, name: str) -> None:
        raise _refusal(f"a hook for its communication ({name})")


def _refusal(what: str) -> UnsupportedOp:
    return UnsupportedOp(
        f"DistributedDataParallel with {what} is not planned",
        fix="wrap a model all of whose weights get dense gradients, with find_unused_parameters=False and no hooks",
    )


def _refuse_hook(*_: Any) -> None:
    raise _refusal("a hook for its communication")


def _do_nothing(*_: Any) -> None:
    """Other ranks have parameters of the same shapes: they run the same program."""


def _broadcast_packed(group: Any, tensors: Sequence[torch.Tensor], buffer_bytes: int, source: int = 0) -> None:
    """The values of another rank, packed into buffers of so many bytes, of which two are under way at once."""
    assignment = bucket_assignment(tensors, [buffer_bytes])
    sender = torch.distributed.get_global_rank(group, source)
    under_way: deque[tuple[Any, torch.Tensor, list[torch.Tensor]]] = deque()
    for numbers in assignment:
        packed = [tensors[number] for number in numbers]
        flat = torch.cat([tensor.contiguous().view(-1) for tensor in packed])
        under_way.append((torch.distributed.broadcast(flat, sender, group=group, async_op=True), flat, packed))
        if len(under_way) == _PACKED_AT_ONCE:
            _unpack(*under_way.popleft())
    while under_way:
        _unpack(*under_way.popleft())


def _unpack(work: Any, flat: torch.Tensor, packed: Sequence[torch.Tensor]) -> None:
    work.wait()
    parts = torch.split(flat, [tensor.numel() for tensor in packed])
    for tensor, part in zip(packed, parts, strict=True):
        if tensor.numel():
            tensor.copy_(part.view(tensor.shape), non_blocking=True)
