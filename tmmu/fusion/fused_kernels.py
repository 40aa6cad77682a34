"""Fusing a program for planning and for running: what the driver, the compiled models and the backend call."""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tmmu.fusion.background.kernel_order import KernelOrder, order_kernels
from tmmu.fusion.call_form import KernelForm
from tmmu.fusion.fuse_below import FusedProgram, fuse_below
from tmmu.fusion.fuse_program import fuse_program
from tmmu.fusion.fused_operators import group_of, is_fused
from tmmu.fusion.group import FusionGroup
from tmmu.fusion.kernel_forms import KernelForms
from tmmu.fusion.kernel_library import (
    LibraryCounts,
    NoCompiler,
    is_compiled,
    load_kernels,
    load_sequence_operator,
    usable_folder,
)
from tmmu.fusion.triton.launch_library import load_launches, require_triton
from tmmu.ir.graph import Graph
from tmmu.ir.program import Program
from tmmu.runtime.kernels.kernel_calls import Kernel

_LOG: Final = logging.getLogger("tmmu")


@dataclass(frozen=True, slots=True, kw_only=True)
class Toolchain:
    """What makes kernels for a device. Both raise ``NoCompiler`` where it is not there.

    ``require``: that it is there, before anything is generated, with a folder for what it keeps. ``load``: kernels by
    operator of groups, of which the forms are known by name. ``is_compiled``: whether both find all of it compiled, or
    compile by themselves, a kernel at a time, when they are bound.
    """

    require: Callable[[Path], object]
    load: Callable[[Sequence[FusionGroup], Mapping[str, KernelForm], Path], tuple[dict[str, Kernel], LibraryCounts]]
    is_compiled: Callable[[Iterable[FusionGroup], Path], bool]


TOOLCHAINS: Final[Mapping[str, Toolchain]] = {
    "cpu": Toolchain(require=load_sequence_operator, load=load_kernels, is_compiled=is_compiled),
    "cuda": Toolchain(require=lambda _: require_triton(), load=load_launches, is_compiled=lambda *_: True),
}
"""By target of a graph."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fusion:
    """A fused program and its kernels by operator; ``reason``: why there are none, or which are not, for people.

    ``apart``: as of ``FusedProgram``. ``order``: kernels that are not compiled yet, for want of which none is there.
    """

    program: Program
    kernels: Mapping[str, Kernel]
    reason: str = ""
    apart: tuple[str, ...] = ()
    order: KernelOrder | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Guard:
    """What a fused program may take: no more, as ``stack_bytes`` plans it, than ``limit``, by default than unfused."""

    stack_bytes: Callable[[Graph], int]
    limit: int | None = None

    def fuse(self, program: Program, forms: KernelForms) -> FusedProgram:
        """The fused program below the limit."""
        return fuse_below(program, forms.form_of, self.stack_bytes, self.limit)


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptApart:
    """The groups that a plan says are cut, so that nothing has to be planned to find them."""

    apart: tuple[str, ...]

    def fuse(self, program: Program, forms: KernelForms) -> FusedProgram:
        """The fused program of the plan."""
        return FusedProgram(program=fuse_program(program, forms.form_of, apart=self.apart), apart=self.apart)


def fuse_for_plan(program: Program, guard: Guard, folder: Path | None) -> FusedProgram:
    """The fused program, the same on every machine of one version of torch. Compiles nothing."""
    return guard.fuse(program, KernelForms(None if folder is None else usable_folder(folder), program.graph.target))


def fuse_for_run(program: Program, guard: Guard | KeptApart, folder: Path, *, is_planned: bool = False) -> Fusion:
    """The fused program with its kernels, compiled or from ``folder``.

    Where no kernel can be compiled here the program stays as it is, unless its plan ``is_planned`` already: then each
    fused op runs its members. One line of the log says so.
    """
    toolchain, folder = TOOLCHAINS[program.graph.target], usable_folder(folder)
    forms = KernelForms(folder, program.graph.target)
    try:
        toolchain.require(folder)
    except NoCompiler as error:
        _LOG.warning("nothing is fused: no kernel can be compiled here: %s", error)
        fused = guard.fuse(program, forms).program if is_planned else program
        return Fusion(program=fused, kernels={}, reason=str(error))
    return _with_kernels(program, guard.fuse(program, forms), forms, folder, is_planned=is_planned)


def fuse_if_compiled(program: Program, guard: Guard, folder: Path) -> Fusion:
    """As ``fuse_for_run`` where its kernels are compiled already; else the program as it is, and their ``order``.

    Waits for no compiler. On a device whose kernels are compiled when they are bound it is ``fuse_for_run``.
    """
    toolchain, folder = TOOLCHAINS[program.graph.target], usable_folder(folder)
    forms = KernelForms(folder, program.graph.target)
    below = guard.fuse(program, forms)
    groups, known = _groups_of(below.program, forms)
    if not groups:
        return Fusion(program=below.program, kernels={}, reason="no op can be fused")
    if not toolchain.is_compiled(groups, folder):
        order = order_kernels(groups, known, folder)
        return Fusion(program=program, kernels={}, reason="its kernels are not compiled yet", order=order)
    try:
        toolchain.require(folder)
    except NoCompiler as error:
        _LOG.warning("nothing is fused: no kernel can be compiled here: %s", error)
        return Fusion(program=program, kernels={}, reason=str(error))
    return _with_kernels(program, below, forms, folder, is_planned=False)


def _groups_of(fused: Program, forms: KernelForms) -> tuple[list[FusionGroup], dict[str, KernelForm]]:
    """The groups of a fused program, and the forms of their kernels by name."""
    groups = [group_of(call.operator) for call in fused.calls if is_fused(call.operator)]
    return groups, {group.name: form for group in groups if (form := forms.form_of(group)) is not None}


def _with_kernels(
    program: Program, below: FusedProgram, forms: KernelForms, folder: Path, *, is_planned: bool
) -> Fusion:
    """The fused program of ``program`` with its kernels; where these do not compile, as ``fuse_for_run``."""
    fused = below.program
    groups, known = _groups_of(fused, forms)
    if not groups:
        return Fusion(program=fused, kernels={}, reason="no op can be fused")
    try:
        kernels, counts = TOOLCHAINS[program.graph.target].load(groups, known, folder)
    except NoCompiler as error:
        _LOG.warning("nothing is fused: the kernels do not compile here: %s", error)
        return Fusion(program=fused if is_planned else program, kernels={}, reason=str(error))
    reason = "; ".join(f"{name}: {why}" for name, why in sorted(counts.refused.items()))
    if reason:
        _LOG.warning("run unfused, for want of a kernel here: %s", reason)
    return Fusion(program=fused, kernels=kernels, apart=below.apart, reason=reason)
