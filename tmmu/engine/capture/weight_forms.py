"""The weights of a model as their names, dtypes and shapes: all that whoever has no bytes of them needs."""

from dataclasses import dataclass
from typing import Any

import torch

from tmmu.engine.capture.model_call import build_model
from tmmu.engine.capture.step import StepModel


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightForm:
    """``dtype``: as torch says it, without ``torch.``. ``tied``: the name of the weight that it is, or its own."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    tied: str
    is_buffer: bool


def weight_forms(subject: StepModel) -> tuple[WeightForm, ...]:
    """Of the parameters, then the buffers, in the order of the modules. Builds the model on meta: seconds once."""
    with torch.device("meta"):
        model: Any = build_model(subject.config, subject.dtype, subject.dtypes)
    first: dict[int, str] = {}
    named = [(False, *pair) for pair in model.named_parameters(remove_duplicate=False)]
    named += [(True, *pair) for pair in model.named_buffers(remove_duplicate=False)]
    return tuple(
        WeightForm(
            name=name,
            dtype=str(tensor.dtype).removeprefix("torch."),
            shape=tuple(tensor.shape),
            tied=first.setdefault(id(tensor), name),
            is_buffer=is_buffer,
        )
        for is_buffer, name, tensor in named
    )
