"""Shadow memory equals an array of one value per byte."""

from hypothesis import given
from hypothesis import strategies as st

from tmmu.runtime.device.interface import ByteRange
from tmmu.runtime.device.shadow import ShadowMemory

SIZE = 12
RANGES = st.tuples(st.integers(0, 1), st.integers(0, SIZE), st.integers(0, SIZE)).map(
    lambda row: ByteRange(row[0], min(row[1:]), max(row[1:]))
)


@given(st.lists(st.tuples(RANGES, st.integers(0, 3))), RANGES)
def test_shadow_memory_holds_what_an_array_would(writes: list[tuple[ByteRange, int]], query: ByteRange) -> None:
    shadow: ShadowMemory[int] = ShadowMemory(-1)
    arrays = {0: [-1] * SIZE, 1: [-1] * SIZE}
    for place, value in writes:
        shadow.assign(place, value)
        arrays[place.arena][place.begin : place.end] = [value] * (place.end - place.begin)
    pieces = list(shadow.pieces(query))
    assert [value for place, value in pieces for _ in range(place.begin, place.end)] == arrays[query.arena][
        query.begin : query.end
    ]
    assert all(place.begin < place.end and place.arena == query.arena for place, _ in pieces)


def test_pieces_of_shadow_memory_do_not_pile_up() -> None:
    shadow: ShadowMemory[int] = ShadowMemory(-1)
    for value in range(100):
        for low in range(4):
            shadow.assign(ByteRange(0, low, low + 3), value)
    assert len(list(shadow.pieces(ByteRange(0, 0, 99)))) <= 8
