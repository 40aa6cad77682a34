"""What of a machine costs a server time or memory: a line for each thing that is looked at, and how to mend it."""

import os
import resource
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from tmmu.planner.arenas import readable_size
from tmmu.runtime.device.numa import node_cpus, parse_cpus

PROBE_BYTES: Final = 64 << 20
"""Bytes that are copied to see how fast pinned memory is."""
COMPILERS: Final = ("cc", "gcc", "clang")


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineFinding:
    """One thing that was looked at; ``fix``: what to do, where it is not as it should be."""

    name: str
    status: Literal["pass", "warn"]
    state: str
    fix: str = ""


def examine_machine(device: str) -> list[MachineFinding]:
    """Everything that is looked at for a server on this device; on a GPU a copy is measured. Imports torch."""
    return [
        check_swap(Path("/proc/swaps")),
        check_locked_memory(device, resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]),
        check_binding(node_cpus(), os.sched_getaffinity(0), _allowed_memory(Path("/proc/self/status"))),
        check_compiler(os.environ.get("CC")),
        _check_attention(),
        _check_pinned_copies(device),
    ]


def check_swap(swaps: Path) -> MachineFinding:
    """Swap is off: pages of weights or sessions that were swapped out are read back in the middle of a step."""
    lines = swaps.read_text().splitlines()[1:] if swaps.is_file() else []
    size = sum(int(line.split()[2]) * 1024 for line in lines if line.strip())
    if not size:
        return MachineFinding(name="swap", status="pass", state="off")
    return MachineFinding(name="swap", status="warn", state=f"on, {readable_size(size)}", fix="swapoff -a")


def check_locked_memory(device: str, limit: int) -> MachineFinding:
    """What may be pinned is not limited. ``limit``: of locked memory, in bytes."""
    if limit == resource.RLIM_INFINITY:
        return MachineFinding(name="locked memory", status="pass", state="not limited")
    state = f"limited to {readable_size(limit)}"
    if device == "cpu":
        return MachineFinding(name="locked memory", status="pass", state=f"{state}; nothing is pinned on cpu")
    return MachineFinding(name="locked memory", status="warn", state=state, fix="ulimit -l unlimited")


def check_binding(nodes: Mapping[int, tuple[int, ...]], cpus: set[int], memory: tuple[int, ...]) -> MachineFinding:
    """Threads and memory are of one NUMA node. ``cpus``: where threads may run; ``memory``: nodes of pages."""
    if len(nodes) < 2:
        return MachineFinding(name="NUMA", status="pass", state="one node")
    own = [node for node, of_node in nodes.items() if cpus & set(of_node)]
    if len(own) == 1 and memory == (own[0],):
        return MachineFinding(name="NUMA", status="pass", state=f"bound to node {own[0]} of {len(nodes)}")
    node = own[0] if own else next(iter(nodes))
    return MachineFinding(
        name="NUMA",
        status="warn",
        state=f"threads on {len(own)} of {len(nodes)} nodes, memory on {len(memory)}",
        fix=f"numactl --cpunodebind={node} --membind={node} tmmu serve …",
    )


def check_compiler(named: str | None) -> MachineFinding:
    """A C compiler is there, for what torch compiles. ``named``: what ``CC`` says, a program and perhaps options."""
    named = next(iter((named or "").split()), None)
    path_of = next((path for name in ((named,) if named else COMPILERS) if (path := shutil.which(name))), None)
    if path_of is not None:
        return MachineFinding(name="compiler", status="pass", state=path_of)
    return MachineFinding(
        name="compiler", status="warn", state=f"no {named or 'C compiler'}", fix="install gcc, or set CC"
    )


def _check_attention() -> MachineFinding:
    """Flash attention is not switched off: without it attention writes whole score matrices."""
    from tmmu.runtime.device.attention import flash_attention_is_on  # noqa: PLC0415 - torch

    if flash_attention_is_on():
        return MachineFinding(name="flash attention", status="pass", state="on")
    return MachineFinding(
        name="flash attention", status="warn", state="switched off", fix="torch.backends.cuda.enable_flash_sdp(True)"
    )


def _check_pinned_copies(device: str) -> MachineFinding:
    """Host memory can be pinned, and its copies are faster than others."""
    name = "pinned copies"
    if device == "cpu":
        return MachineFinding(name=name, status="pass", state="none on cpu")
    from tmmu.runtime.device.bandwidth import measure_bandwidth  # noqa: PLC0415 - torch

    measured = measure_bandwidth(device, PROBE_BYTES, 2)
    rates = {rate.source: rate.bytes_per_second for rate in measured.rates if rate.target == "device"}
    return judge_rates(rates, measured.unpinned)


def judge_rates(rates: Mapping[str, int], unpinned: str) -> MachineFinding:
    """What bytes a second of copies to a device, by kind of memory, say of it; ``unpinned``: why nothing was pinned."""
    if unpinned:
        state = f"memory cannot be pinned: {unpinned}"
        return MachineFinding(name="pinned copies", status="warn", state=state, fix="ulimit -l unlimited")
    state = ", ".join(f"{kind} {rate / 1e9:.1f} GB/s" for kind, rate in rates.items())
    if rates["pinned"] >= rates["pageable"]:
        return MachineFinding(name="pinned copies", status="pass", state=state)
    return MachineFinding(
        name="pinned copies", status="warn", state=state, fix="see what tmmu bandwidth says of the link"
    )


def _allowed_memory(status: Path) -> tuple[int, ...]:
    """The nodes on which pages of this process may lie; none where the system does not say."""
    lines = status.read_text().splitlines() if status.is_file() else []
    listed = next((line.partition(":")[2] for line in lines if line.startswith("Mems_allowed_list:")), "")
    return parse_cpus(listed)
