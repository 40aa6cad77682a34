"""The values of constants that a trace met: tensors that the model made of numbers, without weights or inputs."""

import torch

from tmmu.passes.program import Program
from tmmu.passes.values import evaluate


def constant_values(program: Program) -> dict[str, torch.Tensor]:
    """By buffer name, each constant that numbers alone decide; module buffers are the model's to give.

    A tensor lies as the program sees it; its storage may hold more.
    """
    found: dict[str, torch.Tensor] = {}
    for node in program.graph.nodes:
        if node.op == "placeholder":
            value, origin = node.meta["value"], node.meta.get("origin")
            if value is None and origin is not None and origin.recorder is not None and origin.index is None:
                value = evaluate(origin.node, origin.recorder)
            if value is not None:
                found[program.storages[node.meta["windows"][0].storage].name] = value
    return found
