"""Sizes of a MODEL: the request of the same model at another batch, sequence or other whole number that it takes."""

from dataclasses import replace
from typing import Final

from tmmu.cli.options import PYTHON
from tmmu.cli.planning import ModelRequest
from tmmu.errors import InvalidConfig

BATCH: Final = "batch"
SEQ: Final = "seq"
UNIT: Final = 64
"""Sequences that kernels pad are polynomials at its multiples alone."""


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


def size_unit(axis: str) -> int:
    """What sizes may have to be multiples of, to be predicted."""
    return UNIT if axis.startswith(SEQ) else 1


def first_sizes(request: ModelRequest, axis: str) -> tuple[int, ...]:
    """The sizes that are traced first: never 1, where kernels and broadcasting are others.

    What is no sequence grows in proportion, so that two will do, the request's own and the next; of a sequence three,
    the request's own the largest, as models end somewhere, and multiples of the unit where it is long enough.
    """
    own = _own_size(request, axis)
    if not axis.startswith(SEQ):
        return (max(2, own), max(2, own) + 1)
    own = own or 4 * UNIT
    if own < 4:
        return (2, 3, 4)
    top, step = (own // UNIT * UNIT, UNIT) if own >= 3 * UNIT else (own, 1)
    return (top, top - step, top - 2 * step)


def _own_size(request: ModelRequest, axis: str) -> int:
    """The size that the options name; 0 where they name none."""
    if request.model.kind == "hf":
        return request.capture.batch if axis == BATCH else request.capture.seq or 0
    text = dict(request.capture.settings).get(axis, "")
    return int(text) if text.isascii() and text.isdigit() else 0
