"""The parts of a key that need no model: the request, the program that plans, libraries and files behind a target."""

import json
import os
import platform
import sys
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from importlib.machinery import PathFinder
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final

from blake3 import blake3

import tmmu
from tmmu.ir.graph import Graph
from tmmu.ir.key import NoKey, Part, part_of
from tmmu.ir.plan import ArenaSpec

PLANNING: Final = ("driver.py", "errors.py", "ir", "judge", "passes", "planner", "torch_private.py")
"""What of our own package decides a plan."""
CODE: Final = (".py", ".pyc", ".so", ".pyd", ".dll", ".dylib")
SWITCHES: Final = ("TORCH_", "PYTORCH_", "ATEN_", "TRANSFORMERS_")
"""How variables of the environment begin that libraries read when they like."""
HUGGING_FACE: Final = ("torch", "transformers")
NAME_SHOWN: Final = 40
"""Characters, so that the digest after it is told whole."""
INPUTS_SHOWN: Final = 8
WEIGHTS: Final = "/data/weights/"
"""Where an exported program keeps the bytes that planning leaves unread."""


def request_parts(  # noqa: PLR0913 - one for each thing that a caller decides
    *,
    device: str,
    mode: str,
    optimizer: str | None,
    preset: str,
    token: bytes,
    arenas: Sequence[ArenaSpec],
    search_nodes: int,
) -> tuple[Part, ...]:
    """What the caller asked for. Of the token only a digest is kept."""
    specs = [[one.name, one.segment, one.layout, one.alignment, one.page, one.capacity] for one in arenas]
    shown = "; ".join(f"{one.name} {one.layout} {one.alignment}/{one.page}/{one.capacity}" for one in arenas)
    return (
        part_of("target", device),
        part_of("mode", mode),
        part_of("optimizer", optimizer),
        part_of("preset", preset),
        part_of("token", token, f"{token[:8].hex()}…"),
        part_of("arenas", specs, shown),
        part_of("nodes", search_nodes),
    )


def program_parts(environment: Mapping[str, str]) -> tuple[Part, ...]:
    """Which code plans, in which Python, under which switches."""
    switches = {name: value for name, value in sorted(environment.items()) if name.startswith(SWITCHES)}
    python = f"{platform.python_implementation()} {platform.python_version()} {sys.platform} {platform.machine()}"
    return (
        part_of("tmmu", _planning(), version("tmmu")),
        part_of("python", python),
        part_of("environment", switches, " ".join(switches) or "no switches"),
    )


@cache
def _planning() -> bytes:
    """BLAKE3 of our own code, as far as it decides a plan."""
    root, digest = Path(tmmu.__file__).parent, blake3()
    for path in sorted(path for name in PLANNING for path in _python_files(root / name)):
        data = path.read_bytes()
        digest.update(f"{path.relative_to(root).as_posix()} {len(data)} ".encode()).update(data)
    return digest.digest()


def _python_files(path: Path) -> Iterator[Path]:
    return path.rglob("*.py") if path.is_dir() else iter((path,))


def library_parts(names: Sequence[str]) -> tuple[Part, ...] | NoKey:
    """The installed libraries of these import names, and, beside torch, what else is installed."""
    parts: list[Part] = []
    for name in names:
        part = library_part(name)
        if isinstance(part, NoKey):
            return part
        parts.append(part)
    return (*parts, *([] if set(names) == {"torch"} else [installed_part()]))


def library_part(name: str) -> Part | NoKey:
    """One library: names, sizes and times of all its code files, so that an edit in place is another library.

    A library of which no code is found has no key.
    """
    spec = PathFinder.find_spec(name)
    roots = (spec.submodule_search_locations or [spec.origin or ""]) if spec is not None else ()
    return _library(name, tuple(sorted({*roots} - {""})))


@cache
def _library(name: str, roots: tuple[str, ...]) -> Part | NoKey:
    try:
        files = [[root, *_signature(root)] for root in roots]
    except OSError as error:
        return NoKey(f"the library {name}: {error.strerror}")
    if not any(len(rows) > 1 for rows in files):
        return NoKey(f"the library {name}: no code of it is found")
    try:
        text = version(name)
    except PackageNotFoundError:
        text = ""
    return part_of(f"library.{name}", files, text)


def _signature(root: str) -> list[object]:
    found = sorted(_code_files(root)) if Path(root).is_dir() else [_stamp(Path(root))]
    return [list(row) for row in found]


def _code_files(root: str) -> Iterator[tuple[str, int, int]]:
    """Every code file, also behind links to folders, each of which is followed once."""
    folders, followed = [root], set[str]()
    while folders:
        with os.scandir(folders.pop()) as found:
            for one in found:
                if one.name.endswith(CODE):
                    with suppress(FileNotFoundError):  # a link to nowhere is no code
                        yield _stamp(one)
                elif one.name != "__pycache__" and one.is_dir():
                    real = os.path.realpath(one.path) if one.is_symlink() else one.path
                    if real not in followed:
                        folders.append(one.path)
                        followed.add(real)


def _stamp(file: os.DirEntry[str] | Path) -> tuple[str, int, int]:
    about = file.stat()
    return os.fspath(file), about.st_size, about.st_mtime_ns


@cache
def installed_part() -> Part:
    """Everything installed, by name and version: libraries look for each other when they like."""
    names: set[str] = set()
    for folder in map(Path, sys.path):
        if folder.is_dir():
            names.update(one.name for one in folder.iterdir() if one.name.endswith((".dist-info", ".egg-info")))
    return part_of("installed", sorted(names), f"{len(names)} distributions")


def configuration_parts(path: Path, workload: Mapping[str, object]) -> tuple[Part, ...] | NoKey:
    """A Hugging Face configuration and how it is run: transformers makes the same model of the same files."""
    folder = (path if path.is_dir() else path.parent).resolve()
    name = folder.name or "model"
    try:
        files = {one.name: one.read_bytes() for one in sorted(folder.glob("config*.json"))}
        shown = json.loads(files.get("config.json", b"{}"))
    except (OSError, ValueError) as error:
        return NoKey(f"{folder}: {type(error).__name__}")
    libraries = library_parts(HUGGING_FACE)
    if isinstance(libraries, NoKey):
        return libraries
    listed = shown.get("architectures") if isinstance(shown, dict) else None
    architectures = " ".join(map(str, listed)) if isinstance(listed, list) else ""
    settings = [[key, value] for key, value in sorted(workload.items())]
    return (
        part_of("model", [name, files], f"{name} {architectures}".strip()),
        part_of("workload", settings, ", ".join(f"{key} {value}" for key, value in settings if value)),
        *libraries,
    )


def exported_parts(path: Path) -> tuple[Part, ...] | NoKey:
    """An exported program: all of its archive but the bytes of weights, of which the sizes count."""
    try:
        with zipfile.ZipFile(path) as archive:
            rows = [_record(archive, one) for one in archive.infolist()]
    except Exception as error:  # noqa: BLE001 - a broken archive breaks in many ways, and capture will say how
        return NoKey(f"{path}: {type(error).__name__}")
    libraries = library_parts(("torch",))
    return libraries if isinstance(libraries, NoKey) else (part_of("model", [path.stem, rows], path.name), *libraries)


def _record(archive: zipfile.ZipFile, one: zipfile.ZipInfo) -> list[object]:
    weights = WEIGHTS in f"/{one.filename}" and not one.filename.endswith(".json")
    weights |= one.filename.endswith("/.data/serialization_id")  # a number of all bytes, weights included
    return [one.filename, one.file_size, b"" if weights else blake3(archive.read(one)).digest()]


def graph_parts(data: bytes, name: str) -> tuple[Part, ...]:
    """A graph file, by its bytes; what it is called is in these."""
    return (part_of("model", blake3(data).digest(), f"{name[:NAME_SHOWN]}, graph of {len(data)} bytes"),)


def traced_parts(graph: Graph) -> tuple[Part, ...]:
    """A program that was traced, by its graph; what it is called and what goes in are told, and decide nothing more."""
    values, names = graph.values, graph.notes.buffers
    types = [f"{values.dtype[v]}[{','.join(map(str, values.shape[v]))}]" for v in graph.inputs]
    called = [names[values.buffer[v]] for v in graph.inputs]
    shown = [f"{name} {kind}".strip() for name, kind in zip(called, types, strict=True)]
    what = f"{graph.notes.name[:NAME_SHOWN]}, {len(graph.ops)} ops, {graph.ir_hash.hex()}"
    return (part_of("model", graph.ir_hash, what), part_of("model.inputs", types, ", ".join(shown[:INPUTS_SHOWN])))
