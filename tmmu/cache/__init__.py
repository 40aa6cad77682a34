"""Plans that last: a table in the process before files in a folder, looked up by keys of named parts."""

from tmmu.cache.buckets import Buckets, InputShape, Padded, inputs_part, pad_inputs
from tmmu.cache.miss import Miss, MissReason
from tmmu.cache.plans import CachedPlan, Counts, PlanCache

__all__ = [
    "Buckets",
    "CachedPlan",
    "Counts",
    "InputShape",
    "Miss",
    "MissReason",
    "Padded",
    "PlanCache",
    "inputs_part",
    "pad_inputs",
]
