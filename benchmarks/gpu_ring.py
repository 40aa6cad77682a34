"""Link utilization of weights that stream to a GPU: their rate over that of a plain copy.

    python -m benchmarks.gpu_ring [--device cuda|cpu] [--small] [--json]

A stack of layers in a ring of a quarter of its weights. Per variant: GB/s over all passes, as a share of the best plain
copy of pinned memory on this machine, in this run; and how many outputs differ from those of the resident module.
``poisoned`` overwrites blocks that a visit leaves, so that a missing wait shows; ``no prefetch`` is the ablation. Needs
torch, numpy, blake3 and cbor2. Exits 1 where a bit differs or a wait is missing.
"""

import json
import sys
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import asdict, dataclass
from time import perf_counter_ns
from typing import Any

import torch
from torch import nn
from torch.nn.functional import gelu

from benchmarks.gpu_table import parse_options
from tmmu.ir.graph import PARAMETER, Buffers, Graph, Notes, OpNotes, Ops, Values
from tmmu.ir.ring import Member, Ring, Visit
from tmmu.planner.ring.prepare import RingRequest, plan_ring
from tmmu.planner.ring.problem import RingProblem
from tmmu.runtime.device.bandwidth import measure_bandwidth
from tmmu.runtime.device.choose import memory_device
from tmmu.runtime.device.command_log import CommandRecorder
from tmmu.runtime.device.memory import MemoryDevice
from tmmu.runtime.device.races import races
from tmmu.runtime.ring.modules import StreamOptions, stream_module

ALIGNMENT = 512
SHARE = 4


class Layer(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(gelu(self.up(x)))


class Stack(nn.Module):
    def __init__(self, layers: int, width: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer(width) for _ in range(layers))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


@dataclass(frozen=True, slots=True, kw_only=True)
class RingVariant:
    """A policy, and options of the loop."""

    name: str
    policy: str = "cyclic"
    prefetch: bool = True
    poison: bool = False


VARIANTS = (
    RingVariant(name="cyclic"),
    RingVariant(name="double", policy="double"),
    RingVariant(name="no prefetch", prefetch=False),
    RingVariant(name="poisoned", poison=True),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Bytes of a pass, ns of all passes, their rate and its share of a plain copy's, and the count of wrong outputs."""

    name: str
    pass_bytes: int
    passes: int
    ns: int
    bytes_per_second: int
    share_ppm: int
    wrong: int
    races: int
    pinned: bool


def ring_of(module: nn.Module, policy: str) -> tuple[Ring, Graph]:
    """A block for each layer, in a quarter of the bytes of all of them."""
    named = list(module.named_parameters())
    sizes = [tensor.nbytes for _, tensor in named]
    padded = [-(-size // ALIGNMENT) * ALIGNMENT for size in sizes]
    layers: dict[str, list[int]] = {}
    for index, (name, _) in enumerate(named):
        layers.setdefault(".".join(name.split(".")[:2]), []).append(index)
    members = [_members(row, padded) for row in layers.values()]
    total = [sum(padded[index] for index in row) for row in layers.values()]
    problem = RingProblem(
        names=tuple(layers),
        bytes=tuple(total),
        members=tuple(members),
        pinned=(False,) * len(layers),
        visits=tuple(Visit(block=n, first=n, last=n) for n in range(len(layers))),
        op_ns=(1,) * len(layers),
        copy_ns=tuple(total),
        alignment=ALIGNMENT,
    )
    ring = plan_ring(problem, RingRequest(capacity=sum(total) // SHARE, policy=policy, depth=1))
    return ring, _weights_graph([name for name, _ in named], sizes)


def _members(row: list[int], padded: list[int]) -> tuple[Member, ...]:
    return tuple(
        Member(buffer=index, offset=sum(padded[before] for before in row[:place])) for place, index in enumerate(row)
    )


def _weights_graph(names: list[str], sizes: list[int]) -> Graph:
    """A graph of weights and no op."""
    nothing: tuple[Any, ...] = ()
    ops = Ops(**dict.fromkeys(Ops.__slots__, nothing))
    notes = OpNotes(phase=nothing, modality=nothing, flops=nothing, module=nothing, source=nothing)
    return Graph(
        target="cpu",
        buffers=Buffers(bytes=tuple(sizes), role=(PARAMETER,) * len(names)),
        values=Values(buffer=nothing, offset=nothing, shape=nothing, stride=nothing, dtype=nothing),
        ops=ops,
        inputs=nothing,
        outputs=nothing,
        notes=Notes(name="stack", buffers=tuple(names), ops=notes),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """A module, its input and output, and the rate of a plain copy in bytes per second."""

    plain: nn.Module
    x: torch.Tensor
    expected: torch.Tensor
    passes: int
    rate: int


def row_of(variant: RingVariant, subject: Subject) -> Row:
    plain, x, expected, passes = subject.plain, subject.x, subject.expected, subject.passes
    module = deepcopy(plain)
    ring, graph = ring_of(module, variant.policy)
    recording = CommandRecorder()
    device = memory_device(x.device, (recording,) if variant.poison else ())
    try:
        options = StreamOptions(prefetch=variant.prefetch, poison=variant.poison)
        with stream_module(module, ring, graph, device, options) as stream:
            wrong = sum(not module(x).equal(expected) for _ in range(passes))
            ns = _time_passes(module, x, device, passes)
            pinned = stream.image.pinning.pinned_bytes == stream.image.size
    finally:
        device.close()
    speed = ring.bytes_per_pass * passes * 10**9 // ns
    return Row(
        name=variant.name,
        pass_bytes=ring.bytes_per_pass,
        passes=passes,
        ns=ns,
        bytes_per_second=speed,
        share_ppm=speed * 10**6 // subject.rate,
        wrong=wrong,
        races=len(races(recording.log)),
        pinned=pinned,
    )


def _time_passes(module: nn.Module, x: torch.Tensor, device: MemoryDevice, passes: int) -> int:
    device.synchronize()
    start = perf_counter_ns()
    for _ in range(passes):
        module(x)
    device.synchronize()
    return perf_counter_ns() - start


def table(rows: list[Row], rate: int) -> Iterator[str]:
    yield f"one plain copy: {rate / 1e9:.2f} GB/s"
    yield f"{'':12}{'GB/s':>8}{'share':>8}{'MB/pass':>9}{'wrong':>7}{'races':>7}  memory"
    for row in rows:
        yield (
            f"{row.name:12}{row.bytes_per_second / 1e9:8.2f}{row.share_ppm / 1e4:7.1f}%{row.pass_bytes / 1e6:9.1f}"
            f"{row.wrong:7}{row.races:7}  {'pinned' if row.pinned else 'pageable'}"
        )


def main() -> int:
    options = parse_options(__doc__)
    if options is None:
        return 2
    layers, width, passes, size = (16, 32, 3, 1 << 16) if options.small else (16, 4096, 10, 1 << 28)
    dtype = torch.float32 if options.device == "cpu" else torch.bfloat16
    torch.manual_seed(0)
    with torch.no_grad():
        plain = Stack(layers, width).to(dtype).eval()
        x = torch.randn(4, width, dtype=dtype, device=options.device)
        resident = deepcopy(plain).to(options.device)
        expected = resident(x)
        del resident
        rate = measure_bandwidth(options.device, size, 5).rates[0].bytes_per_second
        subject = Subject(plain=plain, x=x, expected=expected, passes=passes, rate=rate)
        rows = [row_of(variant, subject) for variant in VARIANTS]
    if options.json:
        print(json.dumps({"bytes_per_second": rate, "rows": [asdict(row) for row in rows]}))
    else:
        print(*table(rows, rate), sep="\n")
    return int(any(row.wrong or row.races for row in rows))


if __name__ == "__main__":
    sys.exit(main())
