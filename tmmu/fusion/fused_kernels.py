"""Fusing a program for planning and for running: what the driver, the compiled models and the backend call."""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tmmu.fusion.fuse_below import fuse_below
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
    """A fused program and its kernels by operator; ``reason``: why there are none, for people."""

    program: Program
    kernels: Mapping[str, Kernel]
    reason: str = ""


def fuse_for_plan(program: Program, stack_bytes: Callable[[Graph], int], folder: Path | None) -> Program:
    """The fused program, the same on every machine of one version of torch. Compiles nothing."""
    folder = None if folder is None else usable_folder(folder)
    return fuse_below(program, KernelForms(folder).form_of, stack_bytes).program


def fuse_for_run(
    program: Program, stack_bytes: Callable[[Graph], int], folder: Path, *, is_planned: bool = False
) -> Fusion:
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
        fused = fuse_for_plan(program, stack_bytes, folder) if is_planned else program
        return Fusion(program=fused, kernels={}, reason=str(error))
    forms = KernelForms(folder)
    fused = fuse_below(program, forms.form_of, stack_bytes).program
    groups = [group_of(call.operator) for call in fused.calls if is_fused(call.operator)]
    known = {group.name: form for group in groups if (form := forms.form_of(group)) is not None}
    if not groups:
        return Fusion(program=fused, kernels={}, reason="no op can be fused")
    try:
        kernels, _ = load_kernels(groups, known, folder)
    except NoCompiler as error:
        _LOG.warning("nothing is fused: the kernels do not compile here: %s", error)
        return Fusion(program=fused if is_planned else program, kernels={}, reason=str(error))
    return Fusion(program=fused, kernels=kernels)
