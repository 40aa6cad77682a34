"""Files of a golden folder: their names, the formats of digests and plans, and their checksums."""

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

from blake3 import blake3

from tmmu.codec.files import read_file
from tmmu.codec.read import read_plan
from tmmu.codec.text import print_graph, print_plan
from tmmu.errors import PlanCorrupt
from tmmu.golden.cases import CONFIGS, MANIFEST, GoldenCase, PlanConfig, graph_file
from tmmu.golden.digests import KINDS
from tmmu.golden.replay import PlanRow
from tmmu.ir.encoding import cbor
from tmmu.ir.graph import Graph
from tmmu.ir.plan import Plan

SUMS: Final = "SUMS"
SUMS_MAX: Final = 1 << 20
"""Bytes of the checksum file: some ten thousand files."""
FORMATS: Final = "formats"
KEPT_FOLDERS: Final = (FORMATS, "models")
"""Folders whose files have checksums but belong to no case."""
GENERATED_SUFFIXES: Final = (".digests.txt", ".plans.cbor", ".plan.txt")
"""Endings of the files that an update writes."""
FORMAT: Final = "tmmu.golden.plans"
VERSION: Final = 1
_SEED: Final = re.compile(r"[0-9]{1,20}", re.ASCII)
FIX: Final = "restore the file from version control"


def digests_file(case: GoldenCase) -> str:
    """The name of the file with one line per plan."""
    return f"{case.name}.digests.txt"


def plans_file(case: GoldenCase) -> str:
    """The name of the file with the first seed's plan of every preset and mode."""
    return f"{case.name}.plans.cbor"


def review_file(case: GoldenCase) -> str:
    """The name of the file with graph and one plan in print."""
    return f"{case.name}.plan.txt"


def files_of(case: GoldenCase) -> tuple[str, ...]:
    """Names of the files of a case; digests alone for a case with a recipe."""
    own = () if case.recipe else (graph_file(case), plans_file(case), review_file(case))
    return (*own, digests_file(case))


def print_digests(case: GoldenCase, rows: Iterable[PlanRow]) -> str:
    """One line per plan: seed, preset, mode, then the digests or the code of a refusal."""
    lines = [f"# {case.name}: {case.reason}", f"# seed preset mode {' '.join(KINDS)}"]
    lines += [f"{row.seed} {row.config.preset} {row.config.mode} {' '.join(row.digests)}" for row in rows]
    return "\n".join(lines) + "\n"


def parse_digests(text: str) -> dict[tuple[int, PlanConfig], tuple[str, ...]]:
    """The lines of ``print_digests`` by seed and configuration; other lines are skipped."""
    rows: dict[tuple[int, PlanConfig], tuple[str, ...]] = {}
    for line in text.splitlines():
        words = line.split()
        if line.startswith("#") or len(words) < 4 or not _SEED.fullmatch(words[0]):
            continue
        rows[int(words[0]), PlanConfig(preset=words[1], mode=words[2])] = tuple(words[3:])
    return rows


def encode_plans(plans: Mapping[PlanConfig, bytes]) -> bytes:
    """The file of a case's plans; refused ones (empty) are left out."""
    by_config = {str(config): data for config, data in plans.items() if data}
    return cbor.encode({"format": FORMAT, "version": VERSION, "plans": by_config})


def decode_plans(data: bytes) -> dict[PlanConfig, Plan]:
    """The plans of a file, each with its digest checked; ``PlanCorrupt`` if malformed."""
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


def print_review(case: GoldenCase, graph: Graph, plan: Plan | None) -> str:
    """Graph and plan as text, under the reason of the case."""
    origin = f"# made by: {case.origin}\n" if case.origin else ""
    refused = f"# no plan in {case.review}: it is refused\n"
    return f"# {case.name}: {case.reason}\n{origin}\n{print_graph(graph)}\n{print_plan(plan) if plan else refused}"


def list_files(folder: Path) -> tuple[str, ...]:
    """Every file below a folder, relative to it and in order, without hidden ones and the checksum file."""
    paths = (path.relative_to(folder) for path in folder.rglob("*") if path.is_file())
    names = (path.as_posix() for path in paths if not any(part.startswith(".") for part in path.parts))
    return tuple(sorted(name for name in names if name != SUMS))


def expected_files(cases: Sequence[GoldenCase]) -> frozenset[str]:
    """Names of the files of these cases and their manifest; not those in ``KEPT_FOLDERS``."""
    return frozenset({MANIFEST, *(name for case in cases for name in files_of(case))})


def is_kept(name: str) -> bool:
    """Whether a file lies in one of ``KEPT_FOLDERS``."""
    return name.startswith(tuple(f"{folder}/" for folder in KEPT_FOLDERS))


def checksum_of(data: bytes) -> str:
    """BLAKE3, hexadecimal."""
    return blake3(data).hexdigest()


def print_sums(sums: Mapping[str, str]) -> str:
    """One line per file, by name, as ``b3sum`` prints and checks them."""
    return "".join(f"{sums[name]}  {name}\n" for name in sorted(sums))


def read_sums(folder: Path) -> dict[str, str]:
    """The recorded checksums by file name; ``PlanCorrupt`` unless the file is exactly as printed."""
    data = read_file(folder / SUMS, limit=SUMS_MAX)
    text = data.decode("utf-8", errors="replace")
    sums = {name: digest for digest, _, name in (line.partition("  ") for line in text.splitlines())}
    if print_sums(sums).encode() != data:
        raise PlanCorrupt(f"{folder / SUMS}: not as it was written", fix=FIX)
    return sums
