"""Anchors: the owner of each weight, and all modules around it that hold no other block's weights."""

from collections.abc import Sequence

import pytest
import torch
from torch import nn

from tests.rings import ring_at
from tmmu.errors import InvalidConfig
from tmmu.runtime.ring.anchors import anchors
from tmmu.runtime.ring.module_tensors import named_tensors


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(2, 2), nn.Linear(2, 2)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Layer(), Layer()])
        self.head = nn.Linear(2, 2)
        self.start = nn.Parameter(torch.zeros(2))


NET = Net()
PATHS = {id(module): name for name, module in NET.named_modules()}


def anchors_of(blocks: list[str], *, resident: Sequence[int] = (), order: Sequence[int] = ()) -> dict[str, list[int]]:
    """By path, the blocks that a call needs; a block is given by the prefixes of its weights."""
    names = [[name for name in named_tensors(NET) if name.startswith(tuple(block.split()))] for block in blocks]
    count = len(blocks)
    ring = ring_at([(n, n + 1) for n in range(count)], resident=resident, order=order or range(count))
    return {PATHS[id(anchor.module)]: list(anchor.blocks) for anchor in anchors(NET, ring, names)}


def test_layer_and_owners_inside_anchor_its_block() -> None:
    assert anchors_of(["layers.0", "layers.1", "head"]) == {
        "head": [2],
        "layers.0": [0], "layers.0.down": [0], "layers.0.up": [0],
        "layers.1": [1], "layers.1.down": [1], "layers.1.up": [1],
    }  # fmt: skip


def test_module_list_with_one_block_anchors_it() -> None:
    announced = anchors_of(["layers", "head"])
    assert announced["layers"] == announced["layers.1.down"] == [0]


def test_part_with_several_blocks_is_no_anchor() -> None:
    announced = anchors_of(["layers.0.up layers.1.up", "layers.0.down layers.1.down"])
    assert announced == {
        "layers.0.down": [1], "layers.0.up": [0], "layers.1.down": [1], "layers.1.up": [0]
    }  # fmt: skip


def test_owner_of_weights_of_two_blocks_anchors_both() -> None:
    assert anchors_of(["head.weight", "head.bias"]) == {"head": [0, 1]}


def test_weight_of_the_root_streams_first_or_is_resident() -> None:
    assert anchors_of(["start", "head"])[""] == [0]
    assert anchors_of(["layers.0", "start", "head"], resident=[0])[""] == [1]
    assert "" not in anchors_of(["head", "start"], resident=[1])
    for blocks, order in ((["head", "start"], (0, 1)), (["start", "head"], (0, 1, 0))):
        with pytest.raises(InvalidConfig, match="start belongs to the streamed module itself"):
            anchors_of(blocks, order=order)
