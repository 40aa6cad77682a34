"""Launches on disk and in the process: a file of Python for each group, which Triton compiles when it first runs.

A file's name is the hash of the group, torch and Triton; it says what its kernels are called with, so a warm start
generates nothing. It appears by an atomic rename, and begins with the hash of the rest: what was cut off or changed is
made again. What Triton compiles for a device lies in Triton's own cache, whose keys know the device.
"""

import json
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import torch
from blake3 import blake3

from tmmu.cache.kernel_files import MAX_BYTES, evict_kernels
from tmmu.codec.files import read_file, write_atomic
from tmmu.errors import InvalidConfig, PlanCorrupt
from tmmu.fusion.call_form import KernelForm, NotOneKernel, scratch_places
from tmmu.fusion.fused_operators import fused_operator
from tmmu.fusion.group import FusionGroup
from tmmu.fusion.kernel_library import LibraryCounts, NoCompiler, abandoned_before
from tmmu.fusion.triton.launch_source import LaunchSource, generate_launches
from tmmu.runtime.kernels.kernel_calls import Kernel
from tmmu.runtime.kernels.kernel_launches import add_launcher
from tmmu.torch_private import TRITON_IMPORTS

FORMAT: Final = 1
MAX_FILE: Final = 1 << 24
ALIGNMENT: Final = 16
"""Bytes by which Triton asks whether a pointer is aligned, and has other code where it is."""
OPTIONS: Final = {"num_stages": 1, "debug": True, "sanitize_overflow": False, "enable_fp_fusion": True}
"""How each kernel is compiled: ``debug`` keeps the checks of places, and torch has none of sums of whole numbers."""
_MANIFEST: Final = "MANIFEST"
_LOADED: Final[dict[str, "Launcher"]] = {}
"""By hash of a file's text."""
_LOCK: Final = threading.Lock()


def require_triton() -> str:
    """Its version. Errors: ``NoCompiler`` where it is not installed, or cannot be imported."""
    try:
        return str(import_module("triton").__version__)
    except ImportError as error:
        raise NoCompiler("Triton is not there: install what this torch asks for (triton)") from error
    except Exception as error:  # whatever its import trips over
        raise NoCompiler(f"Triton cannot be imported: {type(error).__name__}: {error}"[:300]) from error


def load_launches(
    groups: Sequence[FusionGroup], forms: Mapping[str, KernelForm], folder: Path
) -> tuple[dict[str, Kernel], LibraryCounts]:
    """Kernels by operator, from the files of these groups in ``folder``, which are made where they lack.

    A group whose kernels have another form here than ``forms`` say is left out. Compiles nothing: the trial of each
    kernel does. Errors: ``NoCompiler``.
    """
    version = require_triton()
    kernels: dict[str, Kernel] = {}
    refused: dict[str, str] = {}
    generated = 0
    for group in sorted({group.digest: group for group in groups}.values(), key=lambda group: group.digest):
        path = launch_path(group, folder, version)
        text = _read(path)
        try:
            if text is None:
                generated += 1
                text = launch_module(generate_launches(group))
                _write(path, text)
            form, launcher = _load(path, text)
        except NotOneKernel as error:
            refused[group.name] = str(error)
            continue
        if form.scratch != forms[group.name].scratch:
            refused[group.name] = "another form on this machine"
            continue
        kernels[str(fused_operator(group))] = Kernel(
            address=launcher.number,
            pointers=form.pointers,
            scratch=scratch_places(form)[0],
            library=launcher,
            is_launched=True,
        )
    if generated:
        evict_kernels(folder, limit=MAX_BYTES, before=abandoned_before())
    return kernels, LibraryCounts(generated=generated, compiled=False, refused=refused)


def launch_path(group: FusionGroup, folder: Path, version: str) -> Path:
    """Where the launches of a group are for a version of Triton."""
    text = "\n".join((str(FORMAT), torch.__version__, version, group.digest))
    return folder / "launches" / f"{blake3(text.encode()).hexdigest()[:32]}.py"


def launch_module(source: LaunchSource) -> str:
    """The text of a file: its hash, what its kernels are called with, and the kernels."""
    launches = [
        {
            "name": launch.text.name,
            "places": launch.places,
            "numbers": launch.numbers,
            "blocks": dict(launch.config.blocks),
            "grid": launch.config.grid,
            "warps": launch.config.warps,
        }
        for launch in source.launches
    ]
    form = {"pointers": source.form.pointers, "scratch": source.form.scratch, "dtypes": source.dtypes}
    manifest = form | {"launches": launches}
    texts = "\n\n\n".join(launch.text.text for launch in source.launches)
    body = f"{TRITON_IMPORTS}\n{_MANIFEST} = {json.dumps(manifest)!r}\n\n\n{texts}\n"
    return f"# {blake3(body.encode()).hexdigest()}\n{body}"


def _read(path: Path) -> str | None:
    """The text of a file; ``None`` for none, or where it is not what was written."""
    try:
        text = read_file(path, limit=MAX_FILE).decode()
    except (InvalidConfig, PlanCorrupt, UnicodeDecodeError):
        return None
    first, _, body = text.partition("\n")
    if first != f"# {blake3(body.encode()).hexdigest()}":
        return None
    with suppress(OSError):
        path.touch()  # the least recently used go first
    return text


def _write(path: Path, text: str) -> None:
    """Writes a file. Errors: ``NoCompiler``: Triton reads the text of a function from its file."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, text.encode())
    except (OSError, InvalidConfig) as error:
        raise NoCompiler(f"{path} cannot be written: {error}"[:300]) from error


def _load(path: Path, text: str) -> tuple[KernelForm, "Launcher"]:
    """The form and launcher of a file, which is run once for the process. Errors: ``NotOneKernel``."""
    digest = text.partition("\n")[0]
    with _LOCK:
        if digest not in _LOADED:
            module = ModuleType(f"tmmu_launches_{path.stem}")
            module.__file__ = str(path)
            try:
                exec(compile(text, str(path), "exec"), vars(module))
            except Exception as error:  # whatever Triton says of it
                raise NotOneKernel(f"{type(error).__name__}: {error}"[:300]) from error
            _LOADED[digest] = Launcher(json.loads(vars(module)[_MANIFEST]), vars(module))
        launcher = _LOADED[digest]
    return launcher.form, launcher


class Launcher:
    """Starts the kernels of a group on tensors, in the order of its form's pointers.

    Invariant: what a kernel is compiled for, a device and which of its pointers are aligned, was run once before a CUDA
    graph is captured with it.
    """

    def __init__(self, manifest: Mapping[str, Any], functions: Mapping[str, Any]) -> None:
        self.form = KernelForm(
            pointers=tuple((str(kind), int(place)) for kind, place in manifest["pointers"]),
            scratch=tuple(int(size) for size in manifest["scratch"]),
        )
        self._dtypes = [getattr(torch, name) if name else None for name in manifest["dtypes"]]
        self._starts = [_start_of(row, functions[row["name"]]) for row in manifest["launches"]]
        self._places = [tuple(row["places"]) for row in manifest["launches"]]
        self._compiled: set[tuple[Any, ...]] = set()
        self.number = add_launcher(self)

    def __call__(self, tensors: Sequence[torch.Tensor]) -> None:
        """Starts them. Errors: ``RuntimeError`` where a graph is being captured and one is not compiled yet."""
        device = tensors[0].device
        key = (device, tuple(tensor.data_ptr() % ALIGNMENT == 0 for tensor in tensors))
        if key not in self._compiled and is_capturing(device):
            raise RuntimeError("a fused kernel is not compiled for tensors that lie so, and a graph is being captured")
        typed = [t if dtype is None else t.view(dtype) for t, dtype in zip(tensors, self._dtypes, strict=True)]
        with torch.cuda.device(device if device.type == "cuda" else -1):
            for start, places in zip(self._starts, self._places, strict=True):
                start([typed[place] for place in places])
        self._compiled.add(key)


def is_capturing(device: torch.device) -> bool:
    """Whether work on a device is being recorded as a CUDA graph."""
    return device.type == "cuda" and bool(torch.cuda.is_current_stream_capturing())


def _start_of(row: Mapping[str, Any], function: Any) -> Callable[[Sequence[torch.Tensor]], None]:
    """What starts one kernel, which checks places that it looks up, as torch's own do."""
    launch, numbers = function[tuple(row["grid"])], tuple(row["numbers"])
    options = dict(row["blocks"]) | OPTIONS | {"num_warps": int(row["warps"])}

    def start(tensors: Sequence[torch.Tensor]) -> None:
        launch(*tensors, *numbers, **options)

    return start
