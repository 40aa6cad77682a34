"""Every weight is announced by the call of whoever owns it, and by all around that hold no other block's."""

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


def found(blocks: Sequence[str], *, resident: Sequence[int] = (), order: Sequence[int] = ()) -> dict[str, list[int]]:
    """By path, the blocks that a call needs; each block is the weights whose names begin so."""
    names = [[name for name in named_tensors(NET) if name.startswith(tuple(block.split()))] for block in blocks]
    count = len(blocks)
    ring = ring_at([(n, n + 1) for n in range(count)], resident=resident, order=order or range(count))
    return {PATHS[id(one.module)]: list(one.blocks) for one in anchors(NET, ring, names)}


def test_a_layer_and_the_owners_in_it_announce_its_block() -> None:
    assert found(["layers.0", "layers.1", "head"]) == {
        "head": [2],
        "layers.0": [0], "layers.0.down": [0], "layers.0.up": [0],
        "layers.1": [1], "layers.1.down": [1], "layers.1.up": [1],
    }  # fmt: skip


def test_a_list_that_holds_one_block_announces_it_too() -> None:
    announced = found(["layers", "head"])
    assert announced["layers"] == announced["layers.1.down"] == [0]


def test_a_part_with_several_blocks_leaves_it_to_those_inside() -> None:
    announced = found(["layers.0.up layers.1.up", "layers.0.down layers.1.down"])
    assert announced == {
        "layers.0.down": [1], "layers.0.up": [0], "layers.1.down": [1], "layers.1.up": [0]
    }  # fmt: skip


def test_an_owner_of_weights_of_two_blocks_announces_both() -> None:
    assert found(["head.weight", "head.bias"]) == {"head": [0, 1]}


def test_a_weight_of_the_module_itself_comes_first_or_stays() -> None:
    assert found(["start", "head"])[""] == [0]
    assert found(["layers.0", "start", "head"], resident=[0])[""] == [1]
    assert "" not in found(["head", "start"], resident=[1])
    for blocks, order in ((["head", "start"], (0, 1)), (["start", "head"], (0, 1, 0))):
        with pytest.raises(InvalidConfig, match="start belongs to the streamed module itself"):
            found(blocks, order=order)
