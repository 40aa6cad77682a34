"""Trials end: no operator takes as many steps as a number that is drawn says."""

import subprocess
import sys

import pytest
import torch

from tmmu.runtime.steps.trial_values import COUNTED, NORMAL, WIDE, draws_of

ELEMENTWISE = """
import sys, torch
from tmmu.runtime.steps.trial_values import draws_of, fill_arguments

def overloads():
    for name in dir(torch.ops.aten):
        packet = getattr(torch.ops.aten, name)
        for overload in getattr(packet, "overloads", list)():
            operator = getattr(packet, overload)
            if torch.Tag.pointwise in operator.tags and not operator._schema.is_mutable:
                yield operator

def argument(place, dtype):
    if str(place.type) == "Tensor":
        return torch.zeros(61, dtype=dtype)
    if str(place.type) in ("Scalar", "int", "float"):
        return 2
    return place.default_value

torch.set_num_threads(1)
ran = 0
for operator in overloads():
    for dtype in (torch.float64, torch.float32):
        print(operator, dtype, file=sys.stderr, flush=True)
        places = [place for place in operator._schema.arguments if not place.kwarg_only]
        args = [argument(place, dtype) for place in places]
        tensors = [each for each in args if isinstance(each, torch.Tensor)]
        for draw, kind in enumerate(draws_of(operator, 61, special=True)):
            fill_arguments(tensors, kind, draw, integers=True)
            try:
                operator(*args)
            except Exception:
                continue
            ran += 1
print(ran)
"""
SECONDS = 100
"""Far more than all take together, about two, so that a busy machine does not matter."""


VALIDATED = """
import torch
from tests.unit.runtime.steps.test_build import ValuesInSlab, call
from tmmu.ir.program import ValueRef

values = ValuesInSlab(*(torch.zeros(25, dtype=torch.float64) for _ in range(3)))
polynomial = torch.ops.aten.special_legendre_polynomial_p.default
steps = values.validate(
    call(torch.ops.aten.polygamma.default, 2, ValueRef(0), results=(1,)),
    call(polynomial, ValueRef(0), ValueRef(1), results=(2,)),
)
print(all(step.is_settled and step.code is not step.fallback for step in steps))
"""


def printed(script: str) -> str:
    """What a script prints, whose kernels would not return to this process if they hung."""
    command = [sys.executable, "-W", "ignore", "-c", script]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=SECONDS).stdout
    except subprocess.TimeoutExpired as error:
        pytest.fail(f"no answer in {SECONDS} s: {(error.stderr or b'nothing said').decode().splitlines()[-1]}")


def test_elementwise_operators_return_from_every_draw() -> None:
    assert int(printed(ELEMENTWISE)) > 2000


def test_operators_that_count_are_validated() -> None:
    assert printed(VALIDATED).strip() == "True"


def test_operators_that_count_are_torchs() -> None:
    for name in COUNTED:
        assert getattr(torch.ops.aten, name.removeprefix("aten::")).overloads()
    assert set(draws_of(torch.ops.aten.polygamma.default, 5, special=True)) == {NORMAL}
    assert WIDE in draws_of(torch.ops.aten.digamma.default, 5, special=True)
