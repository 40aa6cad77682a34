"""Random generators of the process: a step that runs on fake tensors may still draw from them."""

import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def generators_restored() -> Iterator[None]:
    """Block after which torch's, Python's and numpy's default generators are in the state in which they were."""
    numpy = sys.modules.get("numpy")
    states = torch.get_rng_state(), random.getstate(), numpy.random.get_state() if numpy else None
    try:
        yield
    finally:
        torch.set_rng_state(states[0])
        random.setstate(states[1])
        if numpy:
            numpy.random.set_state(states[2])
