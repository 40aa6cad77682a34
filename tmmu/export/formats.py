"""The formats that a plan is exported to: the table. A new one is a file in this folder and a row here."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from tmmu.export.memory_viz import EAGER, encode_memory_viz
from tmmu.export.perfetto import encode_perfetto
from tmmu.export.table import encode_csv, encode_json
from tmmu.ir.graph import Graph
from tmmu.ir.plan import Plan

PLANNED: Final = "planned"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportFormat:
    """One format: the end of its files' names, what opens them, and plan, graph and run as their bytes.

    ``runs``: what the option ``--run`` may ask of it, the default first; one run alone makes it no option.
    """

    suffix: str
    reader: str
    encode: Callable[[Plan, Graph | None, str], bytes]
    runs: tuple[str, ...] = (PLANNED,)


FORMATS: Final = {
    "perfetto": ExportFormat(suffix=".pftrace", reader="ui.perfetto.dev", encode=encode_perfetto),
    "memory_viz": ExportFormat(
        suffix=".pickle",
        reader="pytorch.org/memory_viz or torch.cuda._memory_viz",
        encode=encode_memory_viz,
        runs=(PLANNED, EAGER),
    ),
    "csv": ExportFormat(suffix=".csv", reader="a spreadsheet, or tmmu pack", encode=encode_csv),
    "json": ExportFormat(suffix=".jsonl", reader="any reader of JSON lines", encode=encode_json),
}
