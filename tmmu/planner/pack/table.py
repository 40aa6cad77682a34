"""The packers: one row each, in the order in which they are tried; ties go to the earlier."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeAlias

from tmmu.planner.pack import orders
from tmmu.planner.pack.instance import Column, Index, PackingInstance
from tmmu.planner.pack.long_lived import place_long_lived_high
from tmmu.planner.pack.lowest import lowest_fit, tight_fit
from tmmu.planner.pack.sweep import sweep_best_fit, sweep_first_fit, sweep_long_lived_high, sweep_two_ended

PlaceItems: TypeAlias = Callable[[PackingInstance], Column]

ITEM_WORK: Final = 3000
"""Work of one item of a lowest fit, in overlaps looked at: 12 us against 4 ns."""
SWEEP_WORK: Final = 1500


@dataclass(frozen=True, slots=True, kw_only=True)
class Packer:
    """A heuristic: its name in a plan's ``method``, offsets per item, and its work in overlaps looked at."""

    name: str
    place: PlaceItems
    work: Callable[[PackingInstance], int]


def best_fit_work(instance: PackingInstance) -> int:
    """Work of a sweep with gaps indexed by size."""
    return len(instance) * SWEEP_WORK


def first_fit_work(instance: PackingInstance) -> int:
    """Work of a sweep that scans gaps, whose number grows with the items live at once."""
    return len(instance) * SWEEP_WORK + instance.overlaps // 4


def lowest_work(instance: PackingInstance) -> int:
    """Work of one lowest fit."""
    return len(instance) * ITEM_WORK + instance.overlaps


def _in_order(instance: PackingInstance, order: Callable[[PackingInstance], Index]) -> Column:
    return lowest_fit(instance, order(instance))


def _lowest(name: str, order: Callable[[PackingInstance], Index]) -> Packer:
    return Packer(name=name, place=partial(_in_order, order=order), work=lowest_work)


def _in_order_tight(instance: PackingInstance, order: Callable[[PackingInstance], Index]) -> Column:
    return tight_fit(instance, order(instance))


def _tight(name: str, order: Callable[[PackingInstance], Index]) -> Packer:
    return Packer(name=name, place=partial(_in_order_tight, order=order), work=lowest_work)


PACKERS: Final = (
    Packer(name="best_fit", place=sweep_best_fit, work=best_fit_work),
    Packer(name="long_lived_sweep", place=sweep_long_lived_high, work=first_fit_work),
    Packer(name="first_fit_backward", place=partial(sweep_first_fit, backward=True), work=first_fit_work),
    Packer(name="long_lived_high", place=place_long_lived_high, work=lowest_work),
    _lowest("size", orders.by_size),
    Packer(name="two_ended", place=partial(sweep_two_ended, short=8), work=first_fit_work),
    Packer(name="first_fit", place=sweep_first_fit, work=first_fit_work),
    _lowest("duration", orders.by_duration),
    _lowest("pressure", orders.by_pressure),
    _lowest("area", orders.by_area),
    _lowest("birth", orders.by_birth),
    _lowest("pressure_size", orders.by_pressure_and_size),
    _tight("size_tight", orders.by_size),
    _tight("duration_tight", orders.by_duration),
)
"""The first one always runs: it is near-linear whatever the input."""
