"""Sizes of a MODEL: the request of the same model at another batch, sequence or other whole number that it takes."""

from dataclasses import replace

from tmmu.cli.options import PYTHON
from tmmu.cli.planning import ModelRequest
from tmmu.errors import InvalidConfig
from tmmu.planner.sizes.first_sizes import BATCH, SEQ, first_sizes


def require_axis(request: ModelRequest, axis: str) -> str:
    """The name itself; ``INVALID_CONFIG`` for one that this kind of model cannot have."""
    kind = request.model.kind
    if kind == "hf" and axis not in (BATCH, SEQ):
        raise InvalidConfig(f"--max: an hf: model has no {axis!r:.40}", fix=f"use {BATCH} or {SEQ}")
    if kind not in ("hf", *PYTHON):
        raise InvalidConfig(
            f"--max: the sizes in {request.model.text} were settled when it was captured",
            fix="give the model: a model.py, a package.module:Name or an hf: model",
        )
    if not axis.isidentifier():
        raise InvalidConfig(f"--max: {axis!r:.40} is no name", fix=f"use {BATCH}, {SEQ}, or a parameter of the file")
    return axis


def at_size(request: ModelRequest, axis: str, size: int) -> ModelRequest:
    """The request with this size in the place of the one that it has; all else is the same."""
    capture = request.capture
    if request.model.kind == "hf":
        capture = replace(capture, batch=size) if axis == BATCH else replace(capture, seq=size)
    else:
        capture = replace(capture, settings=tuple((dict(capture.settings) | {axis: str(size)}).items()))
    return replace(request, capture=capture)


def sizes_of_request(request: ModelRequest, axis: str) -> tuple[int, ...]:
    """The sizes that are traced first: the request's own, and those beside it."""
    return first_sizes(axis, _own_size(request, axis))


def _own_size(request: ModelRequest, axis: str) -> int:
    """The size that the options name; 0 where they name none."""
    if request.model.kind == "hf":
        return request.capture.batch if axis == BATCH else request.capture.seq or 0
    text = dict(request.capture.settings).get(axis, "")
    return int(text) if text.isascii() and text.isdigit() else 0
