import pytest
from hypothesis import given
from hypothesis import strategies as st

from tmmu.cache import Buckets, InputShape, inputs_part, pad_inputs
from tmmu.errors import InvalidConfig


def ids(length: int, batch: int = 1) -> InputShape:
    return InputShape(name="ids", dtype="int64", shape=(batch, length))


def mask(length: int) -> InputShape:
    return InputShape(name="mask", dtype="bool", shape=(1, 1, length, length))


BUCKETS = Buckets(lengths=(16, 64), axes={"ids": (1,), "mask": (2, 3)})


def test_inputs_are_padded_to_the_least_bucket_that_holds_them() -> None:
    padded = pad_inputs((ids(17), mask(17)), BUCKETS)
    assert padded.inputs == (ids(64), mask(64))
    assert (padded.length, padded.padded_length) == (17, 64)


@pytest.mark.parametrize(("length", "padded_length"), [(1, 16), (16, 16), (17, 64), (64, 64), (65, 65), (1000, 1000)])
def test_length_of_a_bucket_or_past_the_last_stays(length: int, padded_length: int) -> None:
    assert pad_inputs((ids(length), mask(length)), BUCKETS).padded_length == padded_length


def test_axes_and_inputs_without_buckets_stay() -> None:
    unpadded = InputShape(name="other", dtype="float32", shape=(7,))
    padded = pad_inputs((ids(3, batch=5), unpadded), Buckets(lengths=(8,), axes={"ids": (1,)}))
    assert padded.inputs == (ids(8, batch=5), unpadded)


@given(st.integers(1, 200), st.integers(1, 200))
def test_lengths_share_a_part_exactly_where_they_share_a_bucket(first: int, second: int) -> None:
    parts = [inputs_part(pad_inputs((ids(n), mask(n)), BUCKETS).inputs) for n in (first, second)]
    same_bucket = (
        pad_inputs((ids(first), mask(first)), BUCKETS).padded_length
        == pad_inputs((ids(second), mask(second)), BUCKETS).padded_length
    )
    assert (parts[0].digest == parts[1].digest) is same_bucket


@pytest.mark.parametrize("lengths", [(), (0,), (4, 4), (8, 4), (-1, 4)])
def test_bucket_lengths_must_ascend(lengths: tuple[int, ...]) -> None:
    with pytest.raises(InvalidConfig, match="do not rise"):
        Buckets(lengths=lengths, axes={"ids": (1,)})


@pytest.mark.parametrize(
    ("inputs", "axes", "message"),
    [
        ((ids(3), mask(4)), {"ids": (1,), "mask": (2, 3)}, "lengths"),
        ((ids(3),), {"idz": (1,)}, "no input 'idz'"),
        ((ids(3),), {"ids": (2,)}, "has 2 axes"),
        ((ids(3),), {"ids": (-1,)}, "has 2 axes"),
        ((ids(3),), {}, "lengths"),
    ],
)
def test_bucket_axes_must_fit_the_inputs(
    inputs: tuple[InputShape, ...], axes: dict[str, tuple[int, ...]], message: str
) -> None:
    with pytest.raises(InvalidConfig, match=message):
        pad_inputs(inputs, Buckets(lengths=(16,), axes=axes))


def test_inputs_part_covers_name_dtype_and_shape() -> None:
    base = ids(3)
    others = [
        (InputShape(name="idz", dtype="int64", shape=(1, 3)),),
        (InputShape(name="ids", dtype="int32", shape=(1, 3)),),
        (InputShape(name="ids", dtype="int64", shape=(3, 1)),),
        (base, base),
        (),
    ]
    assert len({inputs_part(inputs).digest for inputs in ((base,), *others)}) == 6
    assert inputs_part((base,)).text == "ids int64[1,3]"
