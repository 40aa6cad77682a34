"""Greedy by size with best fit: TensorFlow Lite's arena planner, and the two orders of XLA's heap simulator.

TensorFlow Lite: what lives during the whole graph first, then larger first; each tensor in the smallest gap that holds
it (Pisarchyk and Lee, "Efficient Memory Management for Deep Neural Net Inference", 2020). XLA: decreasing size, or
decreasing life, with best fit.
"""

import numpy as np

from benchmarks.peers.gaps import best_fit, place_in_order, sort_by
from tmmu.planner.pack.instance import Column, PackingInstance


def tflite(instance: PackingInstance) -> Column:
    """Whole-graph items first, then larger first, then earlier."""
    whole = (instance.birth == instance.birth.min()) & (instance.death == instance.death.max())
    return place_in_order(instance, sort_by(~whole, np.where(whole, 0, -instance.size), instance.birth), best_fit)


def xla_spatial(instance: PackingInstance) -> Column:
    """Larger first, then longer-lived."""
    return place_in_order(instance, sort_by(-instance.size, instance.birth - instance.death), best_fit)


def xla_temporal(instance: PackingInstance) -> Column:
    """Longer-lived first, then larger."""
    return place_in_order(instance, sort_by(instance.birth - instance.death, -instance.size), best_fit)
