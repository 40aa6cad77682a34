"""Fusing a program for planning and for running: what the driver, the compiled models and the backend call."""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tmmu.fusion.fuse_below import FusedProgram, fuse_below
from tmmu.fusion.fuse_program import fuse_program
from tmmu.fusion.fused_operators import group_of, is_fused
from tmmu.fusion.kernel_forms import KernelForms
from tmmu.fusion.kernel_library import NoCompiler, load_kernels, load_sequence_operator, usable_folder
from tmmu.ir.graph import Graph
from tmmu.ir.program import Program
from tmmu.runtime.kernels.kernel_calls import Kernel

_LOG: Final = logging.getLogger("tmmu")
NOT_A_CPU: Final = "kernels are made for a CPU alone"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fusion:
    """A fused program and its kernels by operator; ``reason``: why there are none, or which are not, for people.

    ``apart``: as of ``FusedProgram``.
    """

    program: Program
    kernels: Mapping[str, Kernel]
    reason: str = ""
    apart: tuple[str, ...] = ()


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
    return guard.fuse(program, KernelForms(None if folder is None else usable_folder(folder)))


def fuse_for_run(program: Program, guard: Guard | KeptApart, folder: Path, *, is_planned: bool = False) -> Fusion:
    """The fused program with its kernels, compiled or from ``folder``.

    Where no kernel can be compiled here the program stays as it is, unless its plan ``is_planned`` already: then each
    fused op runs its members. One line of the log says so.
    """
    if program.graph.target != "cpu":
        _LOG.warning("nothing is fused: %s", NOT_A_CPU)
        return Fusion(program=program, kernels={}, reason=NOT_A_CPU)
    folder = usable_folder(folder)
    try:
        load_sequence_operator(folder)
    except NoCompiler as error:
        _LOG.warning("nothing is fused: no kernel can be compiled here: %s", error)
        fused = guard.fuse(program, KernelForms(folder)).program if is_planned else program
        return Fusion(program=fused, kernels={}, reason=str(error))
    forms = KernelForms(folder)
    below = guard.fuse(program, forms)
    fused = below.program
    groups = [group_of(call.operator) for call in fused.calls if is_fused(call.operator)]
    known = {group.name: form for group in groups if (form := forms.form_of(group)) is not None}
    if not groups:
        return Fusion(program=fused, kernels={}, reason="no op can be fused")
    try:
        kernels, counts = load_kernels(groups, known, folder)
    except NoCompiler as error:
        _LOG.warning("nothing is fused: the kernels do not compile here: %s", error)
        return Fusion(program=fused if is_planned else program, kernels={}, reason=str(error))
    reason = "; ".join(f"{name}: {why}" for name, why in sorted(counts.refused.items()))
    if reason:
        _LOG.warning("run unfused, for want of a kernel here: %s", reason)
    return Fusion(program=fused, kernels=kernels, apart=below.apart, reason=reason)
