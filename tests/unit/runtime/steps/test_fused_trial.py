"""What whole numbers are where a fused kernel is tried: places, and on a GPU none that could be out of range."""

import torch

from tmmu.runtime.steps.fused_trial import INTEGERS, INTEGERS_OF_GPU, integers_of


def test_whole_numbers_are_places_on_a_cpu_and_zeros_on_a_gpu() -> None:
    cpu, other = torch.zeros(1), torch.zeros(1, device="meta")
    assert integers_of([cpu, cpu]) is INTEGERS
    assert integers_of([cpu, other]) is INTEGERS_OF_GPU
    assert len(INTEGERS_OF_GPU) == 2  # floats differ between the draws
    assert set(INTEGERS_OF_GPU) == {"zeros"}
