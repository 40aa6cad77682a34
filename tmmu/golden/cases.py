"""Golden cases: the graphs of a folder with their settings, read and checked from its ``cases.toml``."""

import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Final, TypeVar

from tmmu.codec.files import read_file
from tmmu.codec.read import read_graph
from tmmu.errors import InvalidConfig, TmmuError, UserError
from tmmu.golden.million import million_buffers
from tmmu.ir.graph import Graph
from tmmu.ir.plan import MODES, PRESETS, ArenaSpec
from tmmu.judge.rules import require_legal
from tmmu.planner.arenas import parse_arenas, parse_size
from tmmu.planner.token import token_from_seed

T = TypeVar("T")

MANIFEST: Final = "cases.toml"
MANIFEST_MAX: Final = 1 << 18
"""Bytes of a manifest: some thousand cases."""
DOTS_MAX: Final = 32
SEEDS: Final = (0, 1, 2, 3, 7, 42, 2**31, 2**32, 2**63, 2**64 - 1)
RECIPES: Final[Mapping[str, Callable[[], Graph]]] = {"million-buffers": million_buffers}
"""Graphs too large for a file: built on demand, the same on every machine."""

_NAME: Final = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)*")
_KEYS: Final = ("reason", "made", "recipe", "arenas", "ring", "seeds", "review", "keep")


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanConfig:
    """Preset and mode of a plan."""

    preset: str
    mode: str

    def __str__(self) -> str:
        return f"{self.preset}/{self.mode}"


CONFIGS: Final = tuple(PlanConfig(preset=preset, mode=mode) for preset in PRESETS for mode in MODES)


@dataclass(frozen=True, slots=True, kw_only=True)
class GoldenCase:
    """One golden graph, planned in every preset and mode under each of ``seeds``.

    ``recipe``: key of ``RECIPES`` if the graph is in no file; ``origin``: how its file was made; ``ring``: capacity in
    bytes of its weight ring, 0 where weights stay; ``review``: the plan that is kept as text; ``keep``: graph and plan
    join the files of old formats whenever a format gets a new version.
    """

    name: str
    reason: str
    origin: str
    recipe: str
    arenas: tuple[ArenaSpec, ...]
    ring: int
    seeds: tuple[int, ...]
    review: PlanConfig
    keep: bool


def read_cases(folder: Path) -> tuple[GoldenCase, ...]:
    """The cases of a folder, in the order of its ``cases.toml``; ``InvalidConfig`` if it is malformed."""
    path = folder / MANIFEST
    data = read_file(path, limit=MANIFEST_MAX)
    try:
        _require_plain(data)
        tables = tomllib.loads(data.decode("utf-8"))
        if not tables:
            raise InvalidConfig("has no cases", fix="name at least one")
        return tuple(_parse_case(name, table) for name, table in tables.items())
    except (ValueError, RecursionError) as error:
        raise InvalidConfig(f"{path} is no TOML: {error}", fix="correct the file") from error
    except UserError as error:
        raise type(error)(f"{path}: {error.what}", fix=error.fix, **error.fields) from error


def _require_plain(data: bytes) -> None:
    """No line has so many dots that the parser, quadratic in the parts of a key, takes long; a key of ours has none."""
    if any(line.count(b".") > DOTS_MAX for line in data.splitlines()):
        raise ValueError(f"a line has more than {DOTS_MAX} dots")


def _parse_case(name: str, table: object) -> GoldenCase:
    if not _NAME.fullmatch(name) or not isinstance(table, dict):
        raise InvalidConfig(f"{name!r} is no case", fix="name a table with small letters, digits and hyphens")
    for key in table:
        if key not in _KEYS:
            raise InvalidConfig(f"case {name}: unknown key {key!r}", fix=f"use {', '.join(_KEYS)}")
    case = GoldenCase(
        name=name,
        reason=_parse_text(name, table, "reason"),
        origin=_parse_text(name, table, "made"),
        recipe=_parse_text(name, table, "recipe"),
        arenas=parse_arenas(_parse_list(name, table, "arenas", str, ())),
        ring=_parse_ring_bytes(name, _parse_text(name, table, "ring")),
        seeds=_parse_list(name, table, "seeds", int, SEEDS),
        review=_parse_config(name, _parse_text(name, table, "review") or "inference/inference"),
        keep=_parse_flag(name, table, "keep"),
    )
    if not case.reason:
        raise InvalidConfig(f"case {name} has no reason", fix="say what it is there to catch")
    if case.recipe and case.recipe not in RECIPES:
        raise InvalidConfig(f"case {name}: no recipe {case.recipe!r}", fix=f"use one of {', '.join(RECIPES)}")
    if not case.seeds or len(set(case.seeds)) < len(case.seeds):
        raise InvalidConfig(f"case {name} has no seeds, or a seed twice", fix="leave seeds out, or name each once")
    for seed in case.seeds:
        token_from_seed(seed)
    return case


def _parse_text(name: str, table: Mapping[str, object], key: str) -> str:
    value = table.get(key, "")
    if not isinstance(value, str) or "\n" in value:
        raise InvalidConfig(f"case {name}: {key} is no line of text", fix="write it in quotes")
    return value


def _parse_list(name: str, table: Mapping[str, object], key: str, kind: type, default: tuple) -> tuple:  # type: ignore[type-arg]
    value = table.get(key, list(default))
    if not isinstance(value, list) or any(type(cell) is not kind for cell in value):
        raise InvalidConfig(f"case {name}: {key} is no list of {kind.__name__}", fix="write it in brackets")
    return tuple(value)


def _parse_ring_bytes(name: str, text: str) -> int:
    """Capacity of the ring in bytes; 0 without a ring."""
    if not text:
        return 0
    try:
        size = parse_size(text)
    except UserError as error:
        raise InvalidConfig(f"case {name}: ring: {error.what}", fix=error.fix) from error
    if not size:
        raise InvalidConfig(f"case {name}: a ring of 0 holds nothing", fix="give a size, such as 18GiB")
    return size


def _parse_flag(name: str, table: Mapping[str, object], key: str) -> bool:
    value = table.get(key, False)
    if not isinstance(value, bool):
        raise InvalidConfig(f"case {name}: {key} is neither true nor false", fix="write true, or leave it out")
    return value


def _parse_config(name: str, text: str) -> PlanConfig:
    match = next((config for config in CONFIGS if str(config) == text), None)
    if match is None:
        raise InvalidConfig(f"case {name}: review {text!r} is no PRESET/MODE", fix="for example train_full/backward")
    return match


def graph_file(case: GoldenCase) -> str:
    """The name of the file that holds its graph."""
    return f"{case.name}.ir.cbor"


def load(path: Path, read: Callable[[bytes], T]) -> T:
    """The result of ``read`` on the bytes of an ordinary file; errors name the file."""
    data = read_file(path)
    try:
        return read(data)
    except TmmuError as error:
        raise type(error)(f"{path}: {error.what}", fix=error.fix, **error.fields) from error


@lru_cache(maxsize=1)
def graph_of(folder: Path, case: GoldenCase) -> Graph:
    """The legal graph of a case, read or built by its recipe."""
    graph = RECIPES[case.recipe]() if case.recipe else load(folder / graph_file(case), read_graph)
    require_legal(graph)
    return graph
