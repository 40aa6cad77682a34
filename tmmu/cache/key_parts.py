"""Parts of cache keys: the request, our own code, the libraries and files of a target, or its traced graph.

Invariant: two keys that are equal give one plan. So a part covers everything that could change a trace or a plan, and
where that cannot be named (a library without code, a broken archive) the answer is ``NoKey`` and the model is traced.
docs/spec/cache.md lists the parts.
"""

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
from tmmu.codec.files import read_file
from tmmu.codec.json_text import decode_json
from tmmu.errors import TmmuError
from tmmu.ir.graph import Graph
from tmmu.ir.key import NoKey, Part, part_of
from tmmu.ir.plan import ArenaSpec

PLANNING_CODE: Final = (
    "driver.py",
    "errors.py",
    "ir",
    "judge",
    "kernel_switches.py",
    "passes",
    "planner",
    "torch_private.py",
)
"""Files and folders of our own package that decide a plan."""
CODE_SUFFIXES: Final = (".py", ".pyc", ".so", ".pyd", ".dll", ".dylib")
SWITCH_PREFIXES: Final = ("TORCH_", "PYTORCH_", "ATEN_", "TRANSFORMERS_")
"""Prefixes of environment variables that libraries read while they trace."""
HUGGING_FACE_LIBRARIES: Final = ("torch", "transformers")
MAX_NAME_TEXT: Final = 40
"""Characters of a model's name in a text, so that the digest after it fits into ``TEXT_LIMIT``."""
MAX_INPUTS_TEXT: Final = 8
WEIGHTS_FOLDER: Final = "/data/weights/"
"""Folder of an exported program with the bytes of weights, which planning does not read."""


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
    """The parts of what the caller asks for. The token is hashed; its first 8 bytes are its text."""
    rows = [[spec.name, spec.segment, spec.layout, spec.alignment, spec.page, spec.capacity] for spec in arenas]
    text = "; ".join(f"{spec.name} {spec.layout} {spec.alignment}/{spec.page}/{spec.capacity}" for spec in arenas)
    return (
        part_of("target", device),
        part_of("mode", mode),
        part_of("optimizer", optimizer),
        part_of("preset", preset),
        part_of("token", token, f"{token[:8].hex()}…"),
        part_of("arenas", rows, text),
        part_of("nodes", search_nodes),
    )


def program_parts(environment: Mapping[str, str]) -> tuple[Part, ...]:
    """The parts of our own code, of Python and its machine, and of the libraries' environment variables."""
    switches = {name: value for name, value in sorted(environment.items()) if name.startswith(SWITCH_PREFIXES)}
    python = f"{platform.python_implementation()} {platform.python_version()} {sys.platform} {platform.machine()}"
    return (
        part_of("tmmu", _planning_code_digest(), version("tmmu")),
        part_of("python", python),
        part_of("environment", switches, " ".join(switches) or "no switches"),
    )


@cache
def _planning_code_digest() -> bytes:
    """BLAKE3 over path and bytes of every file of ``PLANNING_CODE``, 32 bytes. Read once in a process."""
    root, digest = Path(tmmu.__file__).parent, blake3()
    for path in sorted(path for name in PLANNING_CODE for path in _python_files(root / name)):
        data = path.read_bytes()
        digest.update(f"{path.relative_to(root).as_posix()} {len(data)} ".encode()).update(data)
    return digest.digest()


def _python_files(path: Path) -> Iterator[Path]:
    return path.rglob("*.py") if path.is_dir() else iter((path,))


def library_parts(names: Sequence[str]) -> tuple[Part, ...] | NoKey:
    """The parts of these libraries, by import name; beside torch also of all else that is installed."""
    parts: list[Part] = []
    for name in names:
        part = library_part(name)
        if isinstance(part, NoKey):
            return part
        parts.append(part)
    return (*parts, *([] if set(names) == {"torch"} else [installed_part()]))


def library_part(name: str) -> Part | NoKey:
    """One library by path, size and modification time of all its code files: an edit in place is another library.

    Reading the files would take longer than a trace. ``NoKey`` where no code of it is found.
    """
    spec = PathFinder.find_spec(name)
    roots = (spec.submodule_search_locations or [spec.origin or ""]) if spec is not None else ()
    return _cached_library_part(name, tuple(sorted({*roots} - {""})))


@cache
def _cached_library_part(name: str, roots: tuple[str, ...]) -> Part | NoKey:
    try:
        files = [[root, *_code_file_rows(root)] for root in roots]
    except OSError as error:
        return NoKey(f"the library {name}: {error.strerror}")
    if not any(len(rows) > 1 for rows in files):
        return NoKey(f"the library {name}: no code of it is found")
    try:
        text = version(name)
    except PackageNotFoundError:
        text = ""
    return part_of(f"library.{name}", files, text)


def _code_file_rows(root: str) -> list[object]:
    rows = sorted(_code_files(root)) if Path(root).is_dir() else [_file_row(Path(root))]
    return [list(row) for row in rows]


def _code_files(root: str) -> Iterator[tuple[str, int, int]]:
    """Path, size and time of every code file below ``root``, also behind links; a linked folder is entered once."""
    folders, entered = [root], set[str]()
    while folders:
        with os.scandir(folders.pop()) as items:
            for item in items:
                if item.name.endswith(CODE_SUFFIXES):
                    with suppress(FileNotFoundError):  # a dangling link is no code
                        yield _file_row(item)
                elif item.name != "__pycache__" and item.is_dir():
                    target = os.path.realpath(item.path) if item.is_symlink() else item.path
                    if target not in entered:
                        folders.append(item.path)
                        entered.add(target)


def _file_row(file: os.DirEntry[str] | Path) -> tuple[str, int, int]:
    status = file.stat()
    return os.fspath(file), status.st_size, status.st_mtime_ns


@cache
def installed_part() -> Part:
    """Names and versions of all installed distributions: libraries probe for each other at run time."""
    names: set[str] = set()
    for folder in map(Path, sys.path):
        if folder.is_dir():
            names.update(path.name for path in folder.iterdir() if path.name.endswith((".dist-info", ".egg-info")))
    return part_of("installed", sorted(names), f"{len(names)} distributions")


def configuration_parts(path: Path, workload: Mapping[str, object]) -> tuple[Part, ...] | NoKey:
    """A Hugging Face configuration by the bytes of its files, its workload, torch and transformers.

    The folder's name is the model's name in the graph, so it counts too. ``NoKey`` where a file cannot be read.
    """
    folder = (path if path.is_dir() else path.parent).resolve()
    name = folder.name or "model"
    try:
        files = {file.name: read_file(file) for file in sorted(folder.glob("config*.json"))}
        configuration = decode_json(files.get("config.json", b"{}"))
    except (OSError, TmmuError) as error:
        return NoKey(f"{folder}: {type(error).__name__}")
    libraries = library_parts(HUGGING_FACE_LIBRARIES)
    if isinstance(libraries, NoKey):
        return libraries
    listed = configuration.get("architectures") if isinstance(configuration, dict) else None
    architectures = " ".join(map(str, listed)) if isinstance(listed, list) else ""
    return (
        part_of("model", [name, files], f"{name} {architectures}".strip()),
        _workload_part(workload),
        *libraries,
    )


def _workload_part(workload: Mapping[str, object]) -> Part:
    settings = [[key, value] for key, value in sorted(workload.items())]
    return part_of("workload", settings, ", ".join(f"{key} {value}" for key, value in settings if value))


def exported_parts(path: Path, workload: Mapping[str, object]) -> tuple[Part, ...] | NoKey:
    """An exported program by every record of its archive, but of weights only the sizes, and by its workload.

    ``NoKey`` if it is broken.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            rows = [_archive_row(archive, record) for record in archive.infolist()]
    except Exception as error:  # noqa: BLE001 - zipfile raises many kinds; capture reports the archive
        return NoKey(f"{path}: {type(error).__name__}")
    libraries = library_parts(("torch",))
    if isinstance(libraries, NoKey):
        return libraries
    return (part_of("model", [path.stem, rows], path.name), _workload_part(workload), *libraries)


def _archive_row(archive: zipfile.ZipFile, record: zipfile.ZipInfo) -> list[object]:
    is_weight = WEIGHTS_FOLDER in f"/{record.filename}" and not record.filename.endswith(".json")
    is_weight |= record.filename.endswith("/.data/serialization_id")  # a checksum of all bytes, weights included
    return [record.filename, record.file_size, b"" if is_weight else blake3(archive.read(record)).digest()]


def graph_parts(data: bytes, name: str) -> tuple[Part, ...]:
    """A graph file by its bytes, notes included, since both the graph and its name are taken from them."""
    return (part_of("model", blake3(data).digest(), f"{name[:MAX_NAME_TEXT]}, graph of {len(data)} bytes"),)


def traced_parts(graph: Graph) -> tuple[Part, ...]:
    """A traced program by the hash of its graph, which leaves names out; ``model.inputs`` is there to be read."""
    values, names = graph.values, graph.notes.buffers
    types = [f"{values.dtype[v]}[{','.join(map(str, values.shape[v]))}]" for v in graph.inputs]
    input_names = [names[values.buffer[v]] for v in graph.inputs]
    texts = [f"{name} {kind}".strip() for name, kind in zip(input_names, types, strict=True)]
    summary = f"{graph.notes.name[:MAX_NAME_TEXT]}, {len(graph.ops)} ops, {graph.ir_hash.hex()}"
    return (
        part_of("model", graph.ir_hash, summary),
        part_of("model.inputs", types, ", ".join(texts[:MAX_INPUTS_TEXT])),
    )
