"""The plan cache: a table in the process, then files in a folder, looked up by keys of named parts."""

from tmmu.cache.buckets import Buckets, InputShape, PaddedInputs, inputs_part, pad_inputs
from tmmu.cache.miss import Miss, MissReason
from tmmu.cache.plans import CachedPlan, LookupCounts, PlanCache

__all__ = [
    "Buckets",
    "CachedPlan",
    "InputShape",
    "LookupCounts",
    "Miss",
    "MissReason",
    "PaddedInputs",
    "PlanCache",
    "inputs_part",
    "pad_inputs",
]
