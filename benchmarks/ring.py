"""Weight streaming compared with its peers, on the CPU: ``python -m benchmarks.ring [--rounds N]``.

Needs ``pip install '.[bench]'``. One stack of layers, one budget of a quarter of its weights, one run. Per contestant:
the best time of a pass (contestants alternate), absolute, over that of the resident module, and the difference per
layer; and per pass the allocations of the calling thread beyond the resident run, the copies and the bytes that they
move. All computing is on one thread; copies have another.

- ``accelerate``: ``cpu_offload``. Both sides are the host here, so it moves nothing: this is the cost of its hooks.
- ``group``: group offloading as in diffusers, restated: before a group runs, each of its tensors is copied to a new
  one, which is dropped afterwards. ``group ahead``: with the next group's copies on a thread meanwhile.
- ``double``, ``cyclic``: ours, double buffering for all layers, or a part resident; ``no prefetch``: the ablation.

Every contestant must equal the module, to the bit: exits 1 where one does not.
"""

import argparse
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from time import perf_counter_ns
from typing import Any

import torch
from torch import nn
from torch._C import _autograd, _profiler

from tests.runtime.streamed import StreamedCase, plan_streamed, ring_in
from tmmu.runtime.device.threads import ThreadsDevice
from tmmu.runtime.ring.modules import StreamOptions, stream_module

SHARE = 4
OURS = (("double", "double", True), ("cyclic", "cyclic", True), ("no prefetch", "cyclic", False))


class Layer(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.nn.functional.gelu(self.up(self.norm(x))))


class Stack(nn.Module):
    def __init__(self, layers: int, width: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer(width) for _ in range(layers))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    name: str
    layers: int
    width: int
    rows: int
    passes: int
    """In a row, in one round."""


CASES = (
    Case(name="hooks: 48 layers of 10 KiB", layers=48, width=16, rows=1, passes=10),
    Case(name="bytes: 16 layers of 8 MiB, 8 rows", layers=16, width=512, rows=8, passes=3),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Contestant:
    """A module ready to be called, and its copies so far, as (copies, bytes)."""

    name: str
    module: nn.Module
    copied: Callable[[], tuple[int, int]]


class GroupOffload:
    """Group offloading, restated: a layer's parameters are new copies while it runs."""

    def __init__(self, module: nn.Module, *, ahead: bool) -> None:
        self.layers = list(module.layers)  # type: ignore[arg-type]
        self.host_tensors = [[tensor.data for tensor in layer.parameters()] for layer in self.layers]
        self.pool = ThreadPoolExecutor(1) if ahead else None
        self.pending: dict[int, Future[list[torch.Tensor]]] = {}
        self.copies = self.moved = 0

    def install_hooks(self) -> None:
        for n, layer in enumerate(self.layers):
            layer.register_forward_pre_hook(partial(self.load, n))
            layer.register_forward_hook(partial(self.drop, n))

    def copy_tensors(self, n: int) -> list[torch.Tensor]:
        return [tensor.clone() for tensor in self.host_tensors[n]]

    def load(self, n: int, *_: Any) -> None:
        if self.pool is None:
            tensors = self.copy_tensors(n)
        else:
            tensors = (self.pending.pop(n, None) or self.pool.submit(self.copy_tensors, n)).result()
            after = (n + 1) % len(self.layers)
            self.pending[after] = self.pool.submit(self.copy_tensors, after)
        for parameter, tensor in zip(self.layers[n].parameters(), tensors, strict=True):
            parameter.data = tensor
        self.copies += len(tensors)
        self.moved += sum(tensor.nbytes for tensor in tensors)

    def drop(self, n: int, *_: Any) -> None:
        for parameter, tensor in zip(self.layers[n].parameters(), self.host_tensors[n], strict=True):
            parameter.data = tensor


def make_contestants(plain: nn.Module, case: StreamedCase, stack: ExitStack) -> Iterator[Contestant]:
    nothing = lambda: (0, 0)  # noqa: E731
    yield Contestant(name="resident", module=plain, copied=nothing)
    if find_spec("accelerate") is None:
        print("accelerate is not installed and left out: pip install '.[bench]'")
    else:
        yield Contestant(name="accelerate", module=offload(deepcopy(plain)), copied=nothing)
    for ahead in (False, True):
        module = deepcopy(plain)
        group = GroupOffload(module, ahead=ahead)
        group.install_hooks()
        if group.pool is not None:
            stack.callback(group.pool.shutdown)
        name = "group ahead" if ahead else "group"
        yield Contestant(name=name, module=module, copied=lambda group=group: (group.copies, group.moved))
    for name, policy, prefetch in OURS:
        module = deepcopy(plain)
        ring = case.ring if policy == "cyclic" else ring_in(case.program, case.weights // SHARE, policy)
        device = stack.enter_context(closing_device())
        options = StreamOptions(prefetch=prefetch)
        stream = stack.enter_context(stream_module(module, ring, case.program.graph, device, options))
        yield Contestant(
            name=name,
            module=module,
            copied=lambda stream=stream: (stream.counters.copies, stream.counters.copied_bytes),
        )


@contextmanager
def closing_device() -> Iterator[ThreadsDevice]:
    device = ThreadsDevice()
    try:
        yield device
    finally:
        device.close()


def offload(module: nn.Module) -> nn.Module:
    from accelerate import cpu_offload  # noqa: PLC0415 - an extra

    cpu_offload(module, execution_device=torch.device("cpu"))
    return module


def run(contestant: Contestant, x: torch.Tensor) -> int:
    start = perf_counter_ns()
    contestant.module(x)
    return perf_counter_ns() - start


def allocations(contestant: Contestant, x: torch.Tensor) -> int:
    """Allocations of the calling thread from torch's allocator in a pass."""
    options = (_profiler.ProfilerState.CPU, False, True, False, False, False, _profiler._ExperimentalConfig())
    _autograd._enable_profiler_legacy(_profiler.ProfilerConfig(*options))
    contestant.module(x)
    threads = _autograd._disable_profiler_legacy()
    return sum(
        event.kind() == "memory_alloc" and event.cpu_memory_usage() > 0 for events in threads for event in events
    )


def measure(case: Case, rounds: int) -> bool:
    """Prints the table of a case; whether all outputs are equal."""
    torch.manual_seed(0)
    plain = Stack(case.layers, case.width).eval()
    x = torch.randn(case.rows, case.width)
    streamed_case = plan_streamed(lambda: Stack(case.layers, case.width), {"x": x}, share=SHARE)
    with ExitStack() as stack, torch.no_grad():
        row = list(make_contestants(plain, streamed_case, stack))
        expected = plain(x)
        same = all(contestant.module(x).equal(expected) for contestant in row)
        best: dict[str, int] = {}
        for _ in range(rounds):
            for contestant in row:
                taken = min(run(contestant, x) for _ in range(case.passes))
                best[contestant.name] = min(taken, best.get(contestant.name, taken))
        report(case, row, best, x)
    return same


def report(case: Case, contestants: list[Contestant], best: dict[str, int], x: torch.Tensor) -> None:
    least, fewest = best["resident"], allocations(contestants[0], x)
    print(f"\n{case.name}")
    print(f"{'':12}{'ms/pass':>9}{'ratio':>7}{'us/layer':>10}{'allocations':>13}{'copies':>8}{'MB':>8}")
    for contestant in contestants:
        copies, moved = contestant.copied()
        contestant.module(x)
        after, bytes_after = contestant.copied()
        extra = allocations(contestant, x) - fewest
        taken = best[contestant.name]
        more = (taken - least) / 1e3 / case.layers
        print(
            f"{contestant.name:12}{taken / 1e6:9.2f}{taken / least:7.2f}{more:10.1f}{extra:13}"
            f"{after - copies:8}{(bytes_after - moved) / 1e6:8.1f}"
        )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20)
    rounds = max(1, parser.parse_args().rounds)
    torch.set_num_threads(1)
    agree = [measure(case, rounds) for case in CASES]
    return 0 if all(agree) else 1


if __name__ == "__main__":
    sys.exit(main())
