"""Bytes of a plan beside the peak of eager, for the same module, weights and inputs.

    python -m benchmarks.peaks [--only TEXT] [--small]

MiB. `eager` is what torch's allocator had handed out at the worst moment of a step, weights and inputs included; `plan`
the arenas and the inputs, which stay where the caller has them; `beside` the most that operators allocate inside
themselves at once, and its shares. The last columns are plan / eager and (plan + beside) / eager. Exits 1 where a plan
is larger than eager's peak.
"""

import argparse
import sys
import warnings
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from benchmarks.architectures import ARCHITECTURES
from benchmarks.execute import workload
from benchmarks.subject import Subject, Tensors, Workload
from benchmarks.wide import WIDE, wide_workload
from tests.kernels import plain_kernels
from tmmu.errors import TmmuError
from tmmu.runtime.execute.executor import Executor
from tmmu.runtime.memory.tensor_views import segment_layout
from tmmu.runtime.steps.unplanned import count_allocations


@dataclass(frozen=True, kw_only=True)
class Peak:
    """Bytes of one workload. ``stack`` is the activations' part of ``plan``, ``beside`` what operators allocate."""

    name: str
    training: bool
    eager: int
    plan: int
    stack: int
    beside: int

    @property
    def ratio(self) -> float:
        return (self.plan + self.beside) / self.eager


def peak_of(name: str, subject: Subject) -> Peak:
    """Both sides of one workload. Eager goes first, without gradients, as an optimizer leaves them."""
    return peak_and_executor(name, subject, subject.inputs(0))[0]


def peak_and_executor(name: str, subject: Subject, inputs: Tensors) -> tuple[Peak, Executor]:
    """The same for these inputs, and the executor that is bound to them."""
    eager = eager_peak(subject, inputs)
    executor = subject.executor(external=inputs)
    need = segment_layout(subject.plan).bytes
    beside = max((operator.peak for operator in executor.unplanned_allocations), default=0)
    plan = sum(need.values()) + storage_bytes([*inputs.values()])
    training, stack = subject.work.training, need["stack"]
    return Peak(name=name, training=training, eager=eager, plan=plan, stack=stack, beside=beside), executor


def eager_peak(subject: Subject, inputs: Tensors) -> int:
    """Bytes before a step, and the most that it adds. An earlier step fills lazy caches."""
    subject.call(inputs)
    subject.module.zero_grad(set_to_none=True)
    with count_allocations() as counter:
        results = subject.call(inputs)
    del results
    before = storage_bytes([*subject.module.parameters(), *subject.module.buffers(), *inputs.values()])
    return before + counter.peak.get(-1, 0)


def storage_bytes(tensors: list[torch.Tensor]) -> int:
    """Bytes of the tensors' storages, each counted once."""
    return sum({t.untyped_storage()._cdata: t.untyped_storage().nbytes() for t in tensors}.values())


def workloads(*, small: bool) -> Iterator[tuple[str, Workload]]:
    """Five architectures at real widths, or all of the corpus small; inference, then a training step."""
    for training in (False, True):
        if small:
            yield from ((model.name, workload(model, training=training)) for model in ARCHITECTURES)
        else:
            yield from ((name, wide_workload(name, training=training)) for name in WIDE)


def line(peak: Peak) -> str:
    mode = "training" if peak.training else "inference"
    sizes = "".join(f"{size / 2**20:10.3f}" for size in (peak.eager, peak.plan, peak.stack, peak.beside))
    shares = f"{peak.beside / peak.plan:9.3%}{peak.beside / peak.stack:9.3%}" if peak.stack else ""
    return f"{peak.name:20} {mode:9}{sizes}{shares}{peak.plan / peak.eager:9.4f}{peak.ratio:9.4f}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="")
    parser.add_argument("--small", action="store_true")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    columns = "".join(f"{name:>10}" for name in ("eager", "plan", "stack", "beside"))
    print(f"{'model':20} {'mode':9}{columns}{'/ plan':>9}{'/ stack':>9}{'plan':>9}{'with it':>9}")
    worst = 0.0
    with plain_kernels():
        for name, work in workloads(small=options.small):
            if options.only.lower() in name.lower():
                try:
                    peak = peak_of(name, Subject(work))
                except TmmuError as error:
                    print(f"{name:20} {error}"[:110])
                    continue
                worst = max(worst, peak.plan / peak.eager)
                print(line(peak), flush=True)
    print(f"the largest plan is {worst:.4f} of what eager holds")
    return 0 if worst <= 1 else 1


if __name__ == "__main__":
    sys.exit(main())
