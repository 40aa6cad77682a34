"""The files of a golden folder: what they are called, how digests and plans are spelled, and one sum over each."""

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

from blake3 import blake3

from tmmu.codec.files import read_ordinary
from tmmu.codec.read import read_plan
from tmmu.codec.text import print_graph, print_plan
from tmmu.errors import PlanCorrupt
from tmmu.golden.cases import CONFIGS, MANIFEST, Case, Config, graph_file
from tmmu.golden.digests import KINDS
from tmmu.golden.replay import Row
from tmmu.ir import cbor
from tmmu.ir.graph import Graph
from tmmu.ir.plan import Plan

SUMS: Final = "SUMS"
FORMATS: Final = "formats"
KEPT_FOLDERS: Final = (FORMATS, "models")
"""Folders whose files are summed but belong to no one case."""
MADE: Final = (".digests.txt", ".plans.cbor", ".plan.txt")
"""How the files end that an update makes."""
FORMAT: Final = "tmmu.golden.plans"
VERSION: Final = 1
_SEED: Final = re.compile(r"[0-9]{1,20}", re.ASCII)
FIX: Final = "restore the file from version control"


def digests_file(case: Case) -> str:
    """The name of the file with one line per plan."""
    return f"{case.name}.digests.txt"


def plans_file(case: Case) -> str:
    """The name of the file with the first seed's plan of every preset and mode."""
    return f"{case.name}.plans.cbor"


def review_file(case: Case) -> str:
    """The name of the file with graph and one plan in print."""
    return f"{case.name}.plan.txt"


def files_of(case: Case) -> tuple[str, ...]:
    """The files that a case has. One that is made by a recipe keeps its digests alone."""
    own = () if case.recipe else (graph_file(case), plans_file(case), review_file(case))
    return (*own, digests_file(case))


def print_digests(case: Case, rows: Iterable[Row]) -> str:
    """One line per plan: seed, preset, mode, then the digests or the code of a refusal."""
    lines = [f"# {case.name}: {case.reason}", f"# seed preset mode {' '.join(KINDS)}"]
    lines += [f"{row.seed} {row.config.preset} {row.config.mode} {' '.join(row.digests)}" for row in rows]
    return "\n".join(lines) + "\n"


def parse_digests(text: str) -> dict[tuple[int, Config], tuple[str, ...]]:
    """The lines of ``print_digests`` by seed and configuration; lines that are none are left out."""
    found: dict[tuple[int, Config], tuple[str, ...]] = {}
    for line in text.splitlines():
        words = line.split()
        if line.startswith("#") or len(words) < 4 or not _SEED.fullmatch(words[0]):
            continue
        found[int(words[0]), Config(preset=words[1], mode=words[2])] = tuple(words[3:])
    return found


def encode_plans(plans: Mapping[Config, bytes]) -> bytes:
    """The bytes of a file of plans; a refused one is left out."""
    held = {str(config): data for config, data in plans.items() if data}
    return cbor.encode({"format": FORMAT, "version": VERSION, "plans": held})


def decode_plans(data: bytes) -> dict[Config, Plan]:
    """The plans of a file, each whole and with its digest checked; ``PlanCorrupt`` for anything else."""
    top = cbor.decode(data)
    if not isinstance(top, dict) or set(top) != {"format", "version", "plans"} or top["format"] != FORMAT:
        raise PlanCorrupt(f"no file of {FORMAT}", fix=FIX)
    if top["version"] != VERSION or not isinstance(top["plans"], dict):
        raise PlanCorrupt(f"not version {VERSION} of {FORMAT}", fix=FIX)
    names = {str(config): config for config in CONFIGS}
    for name, plan in top["plans"].items():
        if name not in names or not isinstance(plan, bytes):
            raise PlanCorrupt(f"{name!r:.80} is no plan of a golden case", fix=FIX)
    return {names[name]: read_plan(plan) for name, plan in top["plans"].items()}


def print_review(case: Case, graph: Graph, plan: Plan | None) -> str:
    """Graph and plan for a reader, under the reason why they are here."""
    made = f"# made by: {case.made}\n" if case.made else ""
    refused = f"# no plan in {case.review}: it is refused\n"
    return f"# {case.name}: {case.reason}\n{made}\n{print_graph(graph)}\n{print_plan(plan) if plan else refused}"


def present(folder: Path) -> tuple[str, ...]:
    """Every file below a folder, relative to it and in order, but for hidden ones and the sums themselves."""
    paths = (path.relative_to(folder) for path in folder.rglob("*") if path.is_file())
    names = (path.as_posix() for path in paths if not any(part.startswith(".") for part in path.parts))
    return tuple(sorted(name for name in names if name != SUMS))


def expected(cases: Sequence[Case]) -> frozenset[str]:
    """The files that a folder of these cases has outside the folders that are kept whole."""
    return frozenset({MANIFEST, *(name for case in cases for name in files_of(case))})


def is_kept(name: str) -> bool:
    """Whether a file lies in a folder that belongs to no one case."""
    return name.startswith(tuple(f"{folder}/" for folder in KEPT_FOLDERS))


def sum_of(data: bytes) -> str:
    """BLAKE3, hexadecimal."""
    return blake3(data).hexdigest()


def print_sums(sums: Mapping[str, str]) -> str:
    """One line per file, by name, as ``b3sum`` prints and checks them."""
    return "".join(f"{sums[name]}  {name}\n" for name in sorted(sums))


def read_sums(folder: Path) -> dict[str, str]:
    """What the sums were when they were last written; ``PlanCorrupt`` unless the file is as it was printed."""
    data = read_ordinary(folder / SUMS)
    text = data.decode("utf-8", errors="replace")
    found = {name: digest for digest, _, name in (line.partition("  ") for line in text.splitlines())}
    if print_sums(found).encode() != data:
        raise PlanCorrupt(f"{folder / SUMS}: not as it was written", fix=FIX)
    return found
