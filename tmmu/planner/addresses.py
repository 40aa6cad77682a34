"""Virtual addresses: a 64-bit hash that names each (arena, slot), the same on every replay of a token."""

from collections.abc import Sequence
from typing import Final

from blake3 import blake3

from tmmu.errors import AddressCollision

DOMAIN: Final = b"tmmu_va"


def map_to_virtual_addresses(
    token: bytes, arenas: Sequence[str], slots: Sequence[int], alignments: Sequence[int]
) -> tuple[int, ...]:
    """One address per slot, arena by arena: ``UML_OS.TMMU.MapToVirtualAddresses_v1``.

    ``slots[i]`` is how many slots ``arenas[i]`` has. An address is the first 8 bytes, little-endian, of
    BLAKE3(token, "tmmu_va", arena, slot as u64 little-endian), with the low log2(alignment) bits cleared.
    ``AddressCollision`` if two are equal. O(slots).
    """
    addresses: list[int] = []
    for arena, count, alignment in zip(arenas, slots, alignments, strict=True):
        prefix = blake3(token + DOMAIN + arena.encode())
        aligned_bits = ~(alignment - 1)  # mutation: address alignment
        for slot in range(count):
            # BLAKE3 of the common prefix is computed once per arena; each slot continues a copy of it.
            state = prefix.copy()
            state.update(slot.to_bytes(8, "little"))  # mutation: slot bytes
            addresses.append(int.from_bytes(state.digest(length=8), "little") & aligned_bits)
    _demand_distinct(addresses, arenas, slots)
    return tuple(addresses)


def _demand_distinct(addresses: Sequence[int], arenas: Sequence[str], slots: Sequence[int]) -> None:
    if len(set(addresses)) == len(addresses):
        return
    names = [(arena, slot) for arena, count in zip(arenas, slots, strict=True) for slot in range(count)]
    key_of_address: dict[int, tuple[str, int]] = {}
    for address, (arena, slot) in zip(addresses, names, strict=True):
        if address in key_of_address:
            other_arena, other_slot = key_of_address[address]
            raise AddressCollision(
                f"slot {slot} of {arena} and slot {other_slot} of {other_arena} have the address {address:#x}",
                fix="plan again with another token, or with a smaller alignment",
                address=address,
                arena=arena,
                slot=slot,
                other_arena=other_arena,
                other_slot=other_slot,
            )
        key_of_address[address] = (arena, slot)
