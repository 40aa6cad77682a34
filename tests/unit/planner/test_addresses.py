"""Virtual addresses: a function of (token, arena, slot), aligned, distinct within a plan."""

import pytest
from blake3 import blake3

from tmmu.errors import AddressCollision
from tmmu.planner.addresses import map_to_virtual_addresses
from tmmu.planner.token import token_from_seed

TOKEN = token_from_seed(0)


def test_addresses_of_a_seed_never_change() -> None:
    names = ("parameters", "state", "activations", "gradients")
    assert map_to_virtual_addresses(TOKEN, names, (1, 0, 2, 1), (1, 128, 256, 4096)) == ADDRESSES


def test_address_is_the_truncated_hash_of_token_arena_and_slot() -> None:
    digest = blake3(TOKEN + b"tmmu_va" + b"state" + b"\x03" + bytes(7)).digest()
    address = map_to_virtual_addresses(TOKEN, ["state"], [4], [256])[3]
    assert address == int.from_bytes(digest[:8], "little") & ~255


def test_arenas_do_not_move_each_other() -> None:
    alone = map_to_virtual_addresses(TOKEN, ["b"], [3], [64])
    assert map_to_virtual_addresses(TOKEN, ["a", "b"], [5, 3], [64, 64])[5:] == alone
    assert map_to_virtual_addresses(TOKEN, ["b"], [2], [64]) == alone[:2]


def test_address_collision_is_refused_and_names_both_slots() -> None:
    with pytest.raises(AddressCollision) as caught:
        map_to_virtual_addresses(TOKEN, ["a", "b"], [2, 2], [2**62, 2**62 * 2])
    fields = caught.value.fields
    assert {"arena", "slot", "other_arena", "other_slot", "address"} <= set(fields)


ADDRESSES = (0x7892272880B6CA38, 0xF4B4CFB8DAEF1E00, 0xA25757DA40AE9400, 0x4E1F61021585A000)
