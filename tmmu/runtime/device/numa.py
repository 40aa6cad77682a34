"""NUMA placement of host memory: a page belongs to the node of the thread that touches it first."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

NODES: Final = Path("/sys/devices/system/node")
DEVICES: Final = Path("/sys/bus/pci/devices")


def node_cpus(root: Path = NODES) -> dict[int, tuple[int, ...]]:
    """The CPUs of each node that has some, by ascending node; empty where the system does not say."""
    nodes = {}
    for folder in sorted(root.glob("node[0-9]*"), key=lambda path: (int(path.name[4:]), path.name)):
        try:
            cpus = parse_cpus((folder / "cpulist").read_text())
        except (OSError, ValueError):
            return {}
        if cpus:
            nodes[int(folder.name[4:])] = cpus
    return nodes


def parse_cpus(text: str) -> tuple[int, ...]:
    """The CPUs of a list in the kernel's notation, ``0-3,8``; ``ValueError`` for anything else."""
    cpus: list[int] = []
    for part in filter(None, text.strip().split(",")):
        low, _, high = part.partition("-")
        cpus.extend(range(int(low), int(high or low) + 1))
    return tuple(cpus)


def device_node(pci: str, root: Path = DEVICES) -> int:
    """The node that a PCI device (``0000:3b:00.0``) is attached to; -1 where it is not known."""
    try:
        return int((root / pci.lower() / "numa_node").read_text())
    except (OSError, ValueError):
        return -1


def first_touch_cpus(worker: int, nodes: Mapping[int, tuple[int, ...]], node: int) -> tuple[int, ...]:
    """The CPUs for a worker thread that touches pages first: those of ``node``, or of all nodes round robin.

    Empty, for no restriction, on a machine of one node.
    """
    if len(nodes) < 2:
        return ()
    return nodes[node] if node in nodes else list(nodes.values())[worker % len(nodes)]


def bind_thread(cpus: Sequence[int]) -> bool:
    """Restricts the calling thread to those of ``cpus`` that it may run on; false, and no change, if there are none."""
    allowed = sorted(set(cpus) & os.sched_getaffinity(0))
    if not allowed:
        return False
    os.sched_setaffinity(0, allowed)
    return True
