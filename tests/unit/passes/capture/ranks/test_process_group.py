"""A rank's process group is there while a model is traced, is whatever the program asks for, and is gone afterwards."""

import os
import sys

import pytest
import torch

from tmmu.errors import InvalidConfig
from tmmu.passes.capture.ranks.process_group import process_group

distributed = pytest.importorskip("torch.distributed")


def test_a_rank_has_its_group_and_the_environment_of_torchrun_for_as_long_as_the_block() -> None:
    before = dict(os.environ), sys.excepthook, torch.cuda.set_device
    with process_group(64, 11):
        assert (distributed.get_rank(), distributed.get_world_size()) == (11, 64)
        assert [os.environ[name] for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "GROUP_RANK")] == [
            *("11", "64", "3", "1")
        ]
        torch.cuda.set_device(3)
    assert not distributed.is_initialized()
    assert (dict(os.environ), sys.excepthook, torch.cuda.set_device) == before


def test_a_program_that_makes_its_own_group_gets_this_one() -> None:
    with process_group(8, 3):
        distributed.init_process_group("nccl")
        distributed.init_process_group(backend="gloo", world_size=8, rank=3)
        part = distributed.new_group([2, 3], backend="nccl")
        assert distributed.get_rank(part) == 1
        distributed.destroy_process_group(part)
        distributed.destroy_process_group()
        assert distributed.get_rank() == 3


@pytest.mark.parametrize(
    ("options", "said"),
    [({"world_size": 4}, "world_size 4, where world says 8"), ({"rank": 0}, "rank 0, where rank says 3")],
)
def test_a_group_of_another_size_or_rank_is_refused(options: dict[str, int], said: str) -> None:
    with process_group(8, 3), pytest.raises(InvalidConfig, match=said):
        distributed.init_process_group("nccl", **options)
    assert not distributed.is_initialized()


def test_a_group_that_the_process_has_is_left_alone() -> None:
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    try:
        with pytest.raises(InvalidConfig, match="a process group of its own, of 1 ranks"), process_group(8, 3):
            pass
        assert distributed.get_backend() == "gloo"
    finally:
        distributed.destroy_process_group()
