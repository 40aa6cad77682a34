"""Compiled kernels: one shared library for the kernels of a program, kept on disk, and the operator that runs them.

A library's name is the hash of what is in it and of what compiles it: the groups, torch, the vectors and threads of
this machine, the compiler. It appears by an atomic rename under a lock, so that a process that is killed leaves a
temporary file at most, and two that want the same compile it once. It says itself what its kernels are called with,
so a warm start neither generates nor compiles anything. What cannot be loaded, or says something else, is compiled
again.

A text that the compiler refuses is left out, and the library says so: its op runs its members, and others their
kernels.
"""

import atexit
import ctypes
import json
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from time import time_ns
from typing import Any, Final

import torch
from blake3 import blake3
from filelock import FileLock, Timeout

from tmmu import torch_private
from tmmu.cache.access import shared_folder
from tmmu.cache.kernel_files import MAX_BYTES, evict_kernels
from tmmu.cache.store import UNFINISHED_AGE_NS
from tmmu.fusion.call_form import KernelForm, NotOneKernel, scratch_places
from tmmu.fusion.fused_operators import fused_operator
from tmmu.fusion.group import FusionGroup
from tmmu.fusion.kernel_source import generate_kernel
from tmmu.fusion.kernel_text import UnknownText, safe_kernel
from tmmu.runtime.kernels.kernel_calls import Kernel

FORMAT: Final = 4
COMPILE_SECONDS: Final = 900
MAX_TRIALS: Final = 16
"""Runs of the compiler to find the texts that it refuses."""
_MANIFEST: Final = "tmmu_manifest"
_NAMED: Final = re.compile(r"kernel_([0-9a-f]{20})\b")


class NoCompiler(Exception):
    """No kernel can be compiled here; the text says why."""


class RefusedSource(NoCompiler):
    """The compiler ran and refuses a source; ``digests``: of the kernels that it names, in their order."""

    def __init__(self, message: str, digests: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.digests = digests


@dataclass(frozen=True, slots=True, kw_only=True)
class LibraryCounts:
    """What getting kernels took: how many were generated, and whether they were compiled now.

    ``refused``: why a group has no kernel, by its name; of those that the compiler refuses, in warm starts too.
    """

    generated: int
    compiled: bool
    refused: Mapping[str, str]


def usable_folder(folder: Path) -> Path:
    """The folder, which is made; one for this process alone where nothing can be written there, or others may write.

    What lies there is code that is run.
    """
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        folder.mkdir(mode=0o700, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError:
        return _process_folder()
    return _process_folder() if shared_folder(folder) else folder


def abandoned_before() -> int:
    """The time in ns before which what is unfinished in a folder of kernels is nobody's."""
    return time_ns() - UNFINISHED_AGE_NS


@cache
def _process_folder() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="tmmu_kernels_"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def machine_text() -> str:
    """What compiled code depends on beside its source. Errors: ``NoCompiler``."""
    try:
        vectors = torch_private.cpu_vec_isa.pick_vec_isa()
        compiler = torch_private.cpp_builder.get_cpp_compiler()
        version = torch_private.cpp_builder.get_compiler_version_info(compiler)
    except Exception as error:  # whatever the search for a compiler trips over
        raise NoCompiler(_first_line(error)) from error
    return "\n".join((str(FORMAT), torch.__version__, str(vectors), str(torch.get_num_threads()), compiler, version))


def library_path(groups: Iterable[FusionGroup], folder: Path) -> Path:
    """Where the library of these groups is for this machine. Errors: ``NoCompiler``."""
    text = "\n".join((machine_text(), *sorted({group.digest for group in groups})))
    return folder / f"{blake3(text.encode()).hexdigest()[:32]}.so"


def is_compiled(groups: Iterable[FusionGroup], folder: Path) -> bool:
    """Whether ``load_kernels`` finds the library of these groups, and what calls it is there: then nothing compiles.

    Where no library is in the folder it is not even asked which compiler this machine has.
    """
    if not _operator_library and not any(folder.glob("operator_*.so")):
        return False
    try:
        has_operator = bool(_operator_library) or _operator_path(folder).exists()
        return has_operator and _load(library_path(groups, folder)) is not None
    except NoCompiler:
        return False


def load_kernels(
    groups: Sequence[FusionGroup], forms: Mapping[str, KernelForm], folder: Path
) -> tuple[dict[str, Kernel], LibraryCounts]:
    """Kernels by operator, from the library of these groups in ``folder``, which is made where it lacks.

    A group whose kernel has another form here than ``forms`` say is left out. Errors: ``NoCompiler``.
    """
    by_digest = {group.digest: group for group in groups}
    path = library_path(groups, folder)
    library = _load(path)
    counts = LibraryCounts(generated=0, compiled=False, refused={})
    if library is None:
        folder.mkdir(parents=True, exist_ok=True)
        with _locked(path):
            library = _load(path)
            if library is None:
                texts, refused = _generate(by_digest.values(), forms)
                faults = _compile_all_but_refused(path, texts)
                refused |= {by_digest[digest].name: fault for digest, fault in faults.items()}
                library = _load(path)
                evict_kernels(folder, limit=MAX_BYTES, before=abandoned_before(), keep=path)
                counts = LibraryCounts(generated=len(texts), compiled=True, refused=refused)
    if library is None:
        raise NoCompiler(f"{path} cannot be loaded")
    faults = _manifest(library)["refused"]
    known = {by_digest[digest].name: fault for digest, fault in faults.items() if digest in by_digest}
    return _kernels(library, by_digest, forms), replace(counts, refused=dict(counts.refused) | known)


@dataclass(frozen=True, slots=True, kw_only=True)
class _KernelText:
    """A kernel as it is compiled: the lines that it includes, its functions, and its form."""

    includes: tuple[str, ...]
    functions: str
    form: KernelForm


def _generate(
    groups: Iterable[FusionGroup], forms: Mapping[str, KernelForm]
) -> tuple[dict[str, _KernelText], dict[str, str]]:
    """(text of each kernel by digest, why a group has none by name)."""
    texts: dict[str, _KernelText] = {}
    refused: dict[str, str] = {}
    for group in sorted(groups, key=lambda group: group.digest):
        try:
            source = generate_kernel(group, for_plan=False)
            functions = safe_kernel(source.text, source.types, group.digest)
        except (NotOneKernel, UnknownText) as error:
            refused[group.name] = str(error)
            continue
        if source.form.scratch != forms[group.name].scratch:
            refused[group.name] = "another form on this machine"
            continue
        includes = tuple(line for line in source.text.splitlines() if line.startswith("#include"))
        texts[group.digest] = _KernelText(includes=includes, functions=functions, form=source.form)
    return texts, refused


def _unit(texts: Mapping[str, _KernelText], refused: Mapping[str, str]) -> str:
    """One translation unit of all kernels, with what each is called with, and why others are not there.

    The compiler names the kernel where it names a line.
    """
    includes = sorted({line for text in texts.values() for line in text.includes})
    kernels = {digest: [text.form.pointers, text.form.scratch] for digest, text in texts.items()}
    manifest = {"kernels": kernels, "refused": dict(refused)}
    literal = json.dumps(json.dumps(manifest, separators=(",", ":")))
    functions = [line for digest, text in texts.items() for line in (f'#line 1 "kernel_{digest}"', text.functions)]
    last = ('#line 1 "manifest"', f'extern "C" const char {_MANIFEST}[] = {literal};')
    return "\n".join(("#include <atomic>", *includes, *functions, *last, ""))


def _compile_all_but_refused(path: Path, texts: Mapping[str, _KernelText]) -> dict[str, str]:
    """The library of all texts that the compiler takes; returns why it refuses each other one, by digest.

    Errors: ``NoCompiler``, and ``RefusedSource`` where all texts are refused, a source without any, or in
    ``MAX_TRIALS`` runs it was not found which ones are.
    """
    try:
        _compile(path, _unit(texts, {}))
    except RefusedSource as error:
        with tempfile.TemporaryDirectory(prefix="compile_", dir=path.parent) as work:
            trial = Path(work) / "trial.so"
            faults = find_refused(texts, lambda some: _compile(trial, _unit(some, {})), error)
        if len(faults) == len(texts):
            raise
        _compile(path, _unit({digest: text for digest, text in texts.items() if digest not in faults}, faults))
        return faults
    return {}


def find_refused(
    texts: Mapping[str, _KernelText], compile_texts: Callable[[Mapping[str, _KernelText]], None], error: RefusedSource
) -> dict[str, str]:
    """By digest, the texts that the compiler refuses, and what it says of each; ``error`` is what it says of all.

    What it names is tried alone, and the rest without it; where that is not all, halves of the rest. Errors: ``error``
    where nothing compiles, or not in ``MAX_TRIALS`` runs; ``NoCompiler``.
    """
    trials = 0

    def fault_of(some: Sequence[str]) -> RefusedSource | None:
        nonlocal trials
        trials += 1
        if trials > MAX_TRIALS:
            raise error
        try:
            compile_texts({digest: texts[digest] for digest in some})
        except RefusedSource as fault:
            return fault
        return None

    if fault_of(()) is not None:
        raise error
    faults: dict[str, str] = {}
    pending: list[tuple[str, ...]] = [tuple(texts)]
    while pending:
        some = pending.pop(0)
        fault = error if len(some) == len(texts) else fault_of(some)
        if fault is None:
            continue
        if len(some) == 1:
            faults[some[0]] = str(fault)
            continue
        named = [digest for digest in some if digest in fault.digests]
        rest = tuple(digest for digest in some if digest not in named)
        middle = len(some) // 2
        parts = (*((digest,) for digest in named), rest) if named and rest else (some[:middle], some[middle:])
        pending += [part for part in parts if part]
    return faults


_OPERATOR_TEXT: Final = """
#include <torch/csrc/stable/library.h>
#include <cstdint>
#include <stdexcept>
struct Call { int (*function)(void**); void** pointers; };
struct Table { int64_t count; Call* calls; };
void sequence(int64_t slot) {
    const Table* table = *reinterpret_cast<Table**>(slot);
    for (int64_t place = 0; place < table->count; place++) {
        const int fault = table->calls[place].function(table->calls[place].pointers);
        if (fault == 1) throw std::out_of_range("index out of range in a fused kernel");
        if (fault) throw std::runtime_error("a fused kernel fails: an integer is divided by zero");
    }
}
STABLE_TORCH_LIBRARY_IMPL(tmmu_kernel, CompositeExplicitAutograd, m) { m.impl("sequence", TORCH_BOX(&sequence)); }
"""
_operator_library: list[Any] = []


def _operator_path(folder: Path) -> Path:
    text = "\n".join((machine_text(), _OPERATOR_TEXT))
    return folder / f"operator_{blake3(text.encode()).hexdigest()[:32]}.so"


def load_sequence_operator(folder: Path) -> None:
    """Gives ``tmmu_kernel::sequence`` its kernel, once for the process. Errors: ``NoCompiler``."""
    if _operator_library:
        return
    path = _operator_path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    with _locked(path):
        if _operator_library:
            return  # another thread has
        if not path.exists():
            _compile(path, _OPERATOR_TEXT)
        try:
            torch.ops.load_library(str(path))  # type: ignore[no-untyped-call]
        except Exception:  # noqa: BLE001 - what is there is no library of ours: it is made again, once
            path.unlink()
            _compile(path, _OPERATOR_TEXT)
            torch.ops.load_library(str(path))  # type: ignore[no-untyped-call]
    _operator_library.append(path)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Block in which no other process or thread makes this library. Errors: ``NoCompiler``."""
    lock = FileLock(path.with_suffix(".lock"), timeout=COMPILE_SECONDS)
    try:
        lock.acquire()
    except (Timeout, OSError) as error:
        raise NoCompiler(_first_line(error)) from error
    try:
        yield
    finally:
        lock.release()


def _compile(path: Path, text: str) -> None:
    """Compiles a source to a library that appears whole or not at all."""
    with tempfile.TemporaryDirectory(prefix="compile_", dir=path.parent) as work:
        source = Path(work) / "kernels.cpp"
        source.write_text(text)
        vectors = torch_private.cpu_vec_isa.pick_vec_isa()
        options = torch_private.cpp_builder.CppTorchOptions(vec_isa=vectors, include_pytorch=True)
        builder = torch_private.cpp_builder.CppBuilder("kernels", [str(source)], options, work)
        command = shlex.split(builder.get_command_line())
        try:
            done = subprocess.run(command, capture_output=True, check=False, cwd=work, timeout=COMPILE_SECONDS)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise NoCompiler(_first_line(error)) from error
        if done.returncode:
            raise _failure(done.returncode, done.stderr.decode(errors="replace").splitlines())
        Path(builder.get_target_file_path()).replace(path)


def _failure(code: int, said: Sequence[str]) -> NoCompiler:
    """What a compiler that failed found wrong: with a source, unless something ended it."""
    lines = [line for line in said if "error" in line] or ["the compiler fails"]
    if code < 0 or any("Killed" in line or "No space left" in line for line in said):
        return NoCompiler(lines[0][:300])
    in_errors = _NAMED.findall("\n".join(lines))
    return RefusedSource(lines[0][:300], tuple(dict.fromkeys(in_errors or _NAMED.findall("\n".join(said)))))


def _load(path: Path) -> Any:
    if not path.exists():
        return None
    try:
        library = ctypes.CDLL(str(path))
        library[_MANIFEST]
        path.touch()  # the least recently used go first
    except (OSError, AttributeError):
        return None
    return library


def _manifest(library: Any) -> Any:
    """What a library says of itself: ``kernels`` and ``refused``, by digest."""
    return json.loads(ctypes.string_at(ctypes.addressof(ctypes.c_char.in_dll(library, _MANIFEST))))


def _kernels(library: Any, groups: Mapping[str, FusionGroup], forms: Mapping[str, KernelForm]) -> dict[str, Kernel]:
    found: dict[str, Kernel] = {}
    for digest, (pointers, scratch) in _manifest(library)["kernels"].items():
        group = groups.get(digest)
        form = KernelForm(pointers=tuple((kind, place) for kind, place in pointers), scratch=tuple(scratch))
        if group is None or form.scratch != forms[group.name].scratch:
            continue
        address = ctypes.cast(getattr(library, f"run_{digest}"), ctypes.c_void_p).value
        assert address is not None
        places, _ = scratch_places(form)
        found[str(fused_operator(group))] = Kernel(
            address=address, pointers=form.pointers, scratch=places, library=library
        )
    return found


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:300]
