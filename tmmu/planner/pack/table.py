"""The packers: one row each, in the order in which they are tried; ties go to the earlier."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeAlias

from tmmu.planner.pack import orders
from tmmu.planner.pack.instance import Column, Index, Instance
from tmmu.planner.pack.lowest import lowest_fit
from tmmu.planner.pack.sweep import sweep

Place: TypeAlias = Callable[[Instance], Column]

ITEM_WORK: Final = 3000
"""Work of one step of lowest fit, in the work of looking at one overlap (12 microseconds to 4 nanoseconds)."""
SWEEP_WORK: Final = 1500


@dataclass(frozen=True, slots=True, kw_only=True)
class Packer:
    """A heuristic: a name for the record, offsets for an instance, and the work that it takes."""

    name: str
    place: Place
    work: Callable[[int, int], int]


def sweep_work(items: int, overlaps: int) -> int:  # noqa: ARG001 - every row of the table has this signature
    """Work of one sweep over time."""
    return items * SWEEP_WORK


def lowest_work(items: int, overlaps: int) -> int:
    """Work of one lowest fit."""
    return items * ITEM_WORK + overlaps


def _in_order(instance: Instance, order: Callable[[Instance], Index]) -> Column:
    return lowest_fit(instance, order(instance))


def _lowest(name: str, order: Callable[[Instance], Index]) -> Packer:
    return Packer(name=name, place=partial(_in_order, order=order), work=lowest_work)


def _sweep(name: str, *, backward: bool = False, tightest: bool = False, short: int = 0) -> Packer:
    place = partial(sweep, backward=backward, tightest=tightest, short=short)
    return Packer(name=name, place=place, work=sweep_work)


PACKERS: Final = (
    _sweep("first_fit"),
    _sweep("two_ended", short=8),
    _sweep("best_fit", tightest=True),
    _lowest("size", orders.by_size),
    _lowest("duration", orders.by_duration),
    _lowest("pressure", orders.by_pressure),
    _lowest("area", orders.by_area),
    _sweep("first_fit_backward", backward=True),
    _lowest("birth", orders.by_birth),
    _lowest("pressure_size", orders.by_pressure_and_size),
)
