"""The forms of kernels, by group: made once for each version of torch, and kept on disk.

A form is what a plan needs of a kernel, the bytes that it wants beside its results. It is small, and takes a tenth of a
second to a few to make. Files appear by an atomic rename; one that cannot be read is made again.
"""

import json
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import torch
from blake3 import blake3

from tmmu.codec.files import read_file, write_atomic
from tmmu.errors import InvalidConfig, PlanCorrupt
from tmmu.fusion.call_form import KernelForm, NotOneKernel
from tmmu.fusion.group import FusionGroup
from tmmu.fusion.kernel_source import generate_kernel
from tmmu.fusion.triton.launch_source import generate_launches

FORMAT: Final = 3
MAX_SCRATCH: Final = 1 << 40
MAX_FILE: Final = 1 << 20


@dataclass(slots=True)
class KernelForms:
    """Forms by the group's digest, in ``folder``, which may be ``None``; ``generated``: how many were made here.

    ``target``: the device of the kernels, ``cpu`` or ``cuda``.
    """

    folder: Path | None
    target: str = "cpu"
    generated: int = 0
    refused: dict[str, str] = field(default_factory=dict)
    """By group's name, why it has no kernel."""
    _known: dict[str, KernelForm | str] = field(default_factory=dict)

    def form_of(self, group: FusionGroup) -> KernelForm | None:
        """What the kernel of a group is called with; ``None`` for one that Inductor makes no single kernel of."""
        if group.digest not in self._known:
            kept = self._read(group)
            self._known[group.digest] = self._generate(group) if kept is None else kept
        form = self._known[group.digest]
        if isinstance(form, str):
            self.refused[group.name] = form
            return None
        return form

    def _path(self, group: FusionGroup) -> Path | None:
        if self.folder is None:
            return None
        name = blake3(f"{FORMAT}\n{torch.__version__}\n{self.target}\n{group.digest}".encode()).hexdigest()[:32]
        return self.folder / "forms" / f"{name}.json"

    def _read(self, group: FusionGroup) -> KernelForm | str | None:
        path = self._path(group)
        if path is None:
            return None
        try:
            return _parsed(json.loads(read_file(path, limit=MAX_FILE)))
        except (InvalidConfig, PlanCorrupt, ValueError, TypeError, KeyError, RecursionError):
            return None

    def _generate(self, group: FusionGroup) -> KernelForm | str:
        self.generated += 1
        form: KernelForm | str
        try:
            is_launched = self.target != "cpu"
            form = generate_launches(group).form if is_launched else generate_kernel(group, for_plan=True).form
            row: dict[str, Any] = {"pointers": form.pointers, "scratch": form.scratch}
        except NotOneKernel as error:
            form = str(error) or "no kernel"
            row = {"refused": form}
        path = self._path(group)
        if path is not None:
            with suppress(OSError, InvalidConfig):  # it is made again where it cannot be kept
                path.parent.mkdir(parents=True, exist_ok=True)
                write_atomic(path, json.dumps(row).encode())
        return form


def _parsed(row: Any) -> KernelForm | str:
    if "refused" in row:
        return str(row["refused"])
    pointers = tuple((str(kind), int(place)) for kind, place in row["pointers"])
    scratch = tuple(int(size) for size in row["scratch"])
    if any(not 0 <= size <= MAX_SCRATCH for size in scratch):
        raise ValueError("a size that no kernel has")
    return KernelForm(pointers=pointers, scratch=scratch)
