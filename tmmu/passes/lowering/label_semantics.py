"""Modality and phase of each op, from patterns in operators and dataflow; names help, and decide nothing alone."""

from dataclasses import replace

from tmmu.ir.program import Call, Program
from tmmu.passes.operators.schema import argument_names
from tmmu.passes.semantics.analysis import analyze
from tmmu.torch_private import OpOverload


def label_semantics(program: Program) -> Program:
    """The program with phase and modality noted for every op (docs/spec/semantics.md)."""
    graph = program.graph
    causal = frozenset(op for op, call in enumerate(program.calls) if _is_told_causal(call))
    labels = analyze(graph, causal=causal).labels
    ops = replace(graph.notes.ops, phase=labels.phase, modality=labels.modality)
    return replace(program, graph=replace(graph, notes=replace(graph.notes, ops=ops)))


def _is_told_causal(call: Call) -> bool:
    """Whether the call says ``is_causal``: attention to earlier positions, without a mask that would show it."""
    if "attention" not in str(call.operator):
        return False
    names = argument_names(call.operator) if isinstance(call.operator, OpOverload) else ()
    arguments = dict(zip(names, call.args, strict=False)) | dict(call.kwargs)
    return bool(arguments.get("is_causal"))
