"""First fit in program order: what a caching allocator would do if it knew no more than the present."""

from benchmarks.peers.gaps import by, first_fit, placed_in_order
from tmmu.planner.pack.instance import Column, PackingInstance


def first_fit_in_program_order(instance: PackingInstance) -> Column:
    """By birth, each item in the lowest gap."""
    return placed_in_order(instance, by(instance.birth, instance.item), first_fit)
