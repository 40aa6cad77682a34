"""Which node of the machine memory comes from: a page belongs to the node of the thread that touches it first."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

NODES: Final = Path("/sys/devices/system/node")
DEVICES: Final = Path("/sys/bus/pci/devices")


def node_cpus(root: Path = NODES) -> dict[int, tuple[int, ...]]:
    """The CPUs of each node that has some, by node; nothing where the system does not say."""
    found = {}
    for folder in sorted(root.glob("node[0-9]*"), key=lambda path: (int(path.name[4:]), path.name)):
        try:
            cpus = parse_cpus((folder / "cpulist").read_text())
        except (OSError, ValueError):
            return {}
        if cpus:
            found[int(folder.name[4:])] = cpus
    return found


def parse_cpus(text: str) -> tuple[int, ...]:
    """``0-3,8`` is 0, 1, 2, 3, 8; ``ValueError`` for what is no such list."""
    cpus: list[int] = []
    for part in filter(None, text.strip().split(",")):
        low, _, high = part.partition("-")
        cpus.extend(range(int(low), int(high or low) + 1))
    return tuple(cpus)


def device_node(pci: str, root: Path = DEVICES) -> int:
    """The node that a PCI device is attached to, by its address such as ``0000:3b:00.0``; -1 where nobody knows."""
    try:
        return int((root / pci.lower() / "numa_node").read_text())
    except (OSError, ValueError):
        return -1


def first_touch_cpus(worker: int, nodes: Mapping[int, tuple[int, ...]], node: int) -> tuple[int, ...]:
    """Where a worker that touches pages first should run: on ``node`` if that is one, else each on the next in turn.

    Nothing on a machine of one node, where any place is right.
    """
    if len(nodes) < 2:
        return ()
    return nodes[node] if node in nodes else list(nodes.values())[worker % len(nodes)]


def bind_thread(cpus: Sequence[int]) -> bool:
    """The calling thread runs on these CPUs only, as far as it may; whether it does."""
    allowed = sorted(set(cpus) & os.sched_getaffinity(0))
    if not allowed:
        return False
    os.sched_setaffinity(0, allowed)
    return True
