"""First fit in program order: an online allocator, which knows nothing of later items."""

from benchmarks.peers.gaps import first_fit, place_in_order, sort_by
from tmmu.planner.pack.instance import Column, PackingInstance


def first_fit_in_program_order(instance: PackingInstance) -> Column:
    """By birth, each item in the lowest gap."""
    return place_in_order(instance, sort_by(instance.birth, instance.item), first_fit)
