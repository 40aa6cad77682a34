"""Images: each byte of a state has one place on the host, what is read since is added, what changed is taken out."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.engine.swaps import BOTH, GROWING
from tmmu.engine.geometry import Geometry, StateLengths
from tmmu.engine.swap import host_tier
from tmmu.engine.swap.host_tier import HostRange, HostTier
from tmmu.engine.swap.state_image import StateImage
from tmmu.errors import InternalError


def read_so_far(positions: int) -> StateLengths:
    """A text of so many positions, without a source."""
    return StateLengths(positions, 0)


def covered(image: StateImage, lengths: StateLengths) -> bool:
    """Whether the pieces hold each live byte once."""
    places = [(piece.tensor, piece.start + byte) for piece in image.pieces for byte in range(piece.size)]
    live = [(index, byte) for index, tensor in enumerate(BOTH.tensors) for byte in range(tensor.bytes_for(lengths))]
    return sorted(places) == live


@given(
    chunks=st.lists(st.integers(1, 9), min_size=1),
    reads=st.lists(st.integers(1, 5), min_size=1, max_size=4),
    changes=st.booleans(),
)
def test_image_has_each_live_byte_in_one_place(chunks: list[int], reads: list[int], changes: bool) -> None:
    tier = HostTier(200)
    tier.free(tier.take(50)[:1])
    image, positions = StateImage(BOTH), 0
    for read in reads:
        positions += read
        lengths = read_so_far(positions)
        if changes:
            tier.free(image.forget_changed())
        while (lacking := image.live_bytes(lengths) - sum(piece.size for piece in image.pieces)) > 0:
            size = min(chunks[positions % len(chunks)], lacking)
            assert sum(piece.size for piece in image.extend(lengths, size, tier)) == size
        assert covered(image, lengths)
        assert tier.used == image.live_bytes(lengths)
        offsets = [piece.offset + byte for piece in image.pieces for byte in range(piece.size)]
        assert len(set(offsets)) == len(offsets)
        parts = [part for begin in range(0, tier.used, 4) for part in image.between(begin, min(begin + 4, tier.used))]
        assert sum(part.size for part in parts) == tier.used
        assert {(part.tensor, part.start, part.offset) for part in parts} >= {
            (piece.tensor, piece.start, piece.offset) for piece in image.pieces
        }
    tier.free(image.forget())
    assert (tier.used, image.pieces, image.live_bytes(read_so_far(0))) == (0, [], 0)


def test_what_grows_is_not_taken_out_when_it_changes() -> None:
    tier, image = HostTier(100), StateImage(Geometry(tensors=(GROWING,), longest=0, alignment=1))
    image.extend(read_so_far(3), 6, tier)
    assert image.forget_changed() == []
    assert [(piece.start, piece.size) for piece in image.extend(read_so_far(4), 2, tier)] == [(6, 2)]


def test_extents_fill_the_lowest_gaps_and_never_reach_over_pinned_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_tier, "SEGMENT", 16)
    tier = HostTier(40)
    assert tier.take(20) == [HostRange(0, 16), HostRange(16, 4)]
    tier.free([HostRange(0, 16)])
    assert tier.take(30) == [HostRange(0, 16), HostRange(20, 12), HostRange(32, 2)]
    with pytest.raises(InternalError, match="7 bytes more in a host tier of 40"):
        tier.take(7)


class Registrar:
    """Pins up to so many segments, and keeps what is pinned."""

    def __init__(self, limit: int) -> None:
        self.limit, self.pinned = limit, dict[int, int]()

    def register(self, address: int, size: int) -> str:
        if len(self.pinned) == self.limit:
            return "no more"
        self.pinned[address] = size
        return ""

    def unregister(self, address: int) -> None:
        del self.pinned[address]


def test_tier_is_pinned_in_segments_or_says_that_it_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_tier, "SEGMENT", 4096)
    registrar = Registrar(9)
    tier = HostTier(10_000, registrar)
    assert list(registrar.pinned.values()) == [4096, 4096, 1808]
    tier.close()
    tier.close()
    assert not registrar.pinned
    with pytest.warns(RuntimeWarning, match="10000 bytes of the host tier are not pinned"):
        HostTier(10_000, Registrar(1))
    assert torch.equal(tier.slab.bytes(0, 10), torch.zeros(10, dtype=torch.uint8))
    HostTier(0, Registrar(0)).close()
