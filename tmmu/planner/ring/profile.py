"""The cost model of the ring planner: a device by the rates of its link, its arithmetic and its memory."""

import re
from dataclasses import dataclass
from typing import Final

from tmmu.errors import InvalidConfig
from tmmu.ir.graph import DTYPE_BYTES, Graph

PREFIXES: Final = ("", "k", "m", "g", "t", "p")
RATE_MAX: Final = 10**21
NS_PER_SECOND: Final = 10**9
LOOKUP_OPS: Final = ("aten.embedding.", "aten.index.", "aten.index_select.", "aten.gather.")
"""Operators that read about as many bytes of a tensor as they write, however large it is."""
_RATE: Final = re.compile(r"([0-9]{1,18}(?:\.[0-9]{1,9})?)\s*([kmgtp]?)(i?)([a-z]+)/s", re.IGNORECASE | re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """Rates per second (``link``, ``memory``: bytes) and the fixed ns of a copy. Defaults: PCIe 4, data-centre GPU."""

    link: int = 24 * 10**9
    copy_ns: int = 10_000
    flops: int = 150 * 10**12
    memory: int = 1_500 * 10**9


def parse_rate(text: str, unit: str) -> int:
    """Units per second of a text such as ``24GB/s`` or ``150TFLOP/s``; ``InvalidConfig`` for anything else."""
    match = _RATE.fullmatch(text.strip())
    if not match or match[4].lower() not in (unit.lower(), unit.lower() + "s") or (match[3] and unit != "B"):
        raise InvalidConfig(f"{text!r} is not a rate", fix=f"write it as 24G{unit}/s", text=text)
    whole, _, part = match[1].partition(".")
    step = 1024 if match[3] else 1000
    scale = step ** PREFIXES.index(match[2].lower())
    rate: int = int(whole + part) * scale // 10 ** len(part)
    if not 0 < rate <= RATE_MAX:
        raise InvalidConfig(f"{text!r} is no rate from 1 to 10^21 {unit}/s", fix="check the unit", text=text)
    return rate


def copy_time(profile: Profile, size: int) -> int:
    """Nanoseconds of one copy of ``size`` bytes."""
    return profile.copy_ns + -(-size * NS_PER_SECOND // profile.link)


def op_time(profile: Profile, graph: Graph, op: int) -> int:
    """Nanoseconds of one op by the roofline model: its arithmetic or the bytes that it touches, whichever is longer."""
    values, ops = graph.values, graph.ops
    written = sum(_bytes(graph, value) for value in ops.writes[op])
    read = [_bytes(graph, value) for value in dict.fromkeys(ops.reads[op]) if values.shape[value]]
    if ops.target[op].startswith(LOOKUP_OPS):
        read = [min(size, written) for size in read]
    touched = -(-(written + sum(read)) * NS_PER_SECOND // profile.memory)
    return max(touched, -(-graph.notes.ops.flops[op] * NS_PER_SECOND // profile.flops))


def _bytes(graph: Graph, value: int) -> int:
    count = DTYPE_BYTES[graph.values.dtype[value]]
    for extent in graph.values.shape[value]:
        count *= extent
    return count
