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


def test_inputs_grow_to_the_least_length_that_holds_them() -> None:
    padded = pad_inputs((ids(17), mask(17)), BUCKETS)
    assert padded.inputs == (ids(64), mask(64))
    assert (padded.length, padded.padded_length) == (17, 64)


@pytest.mark.parametrize(("length", "wanted"), [(1, 16), (16, 16), (17, 64), (64, 64), (65, 65), (1000, 1000)])
def test_a_length_in_the_list_stays_and_one_past_it_is_planned_as_it_is(length: int, wanted: int) -> None:
    assert pad_inputs((ids(length), mask(length)), BUCKETS).padded_length == wanted


def test_other_axes_and_other_inputs_stay() -> None:
    other = InputShape(name="other", dtype="float32", shape=(7,))
    padded = pad_inputs((ids(3, batch=5), other), Buckets(lengths=(8,), axes={"ids": (1,)}))
    assert padded.inputs == (ids(8, batch=5), other)


@given(st.integers(1, 200), st.integers(1, 200))
def test_two_lengths_share_a_plan_exactly_where_they_share_a_bucket(one: int, other: int) -> None:
    parts = [inputs_part(pad_inputs((ids(n), mask(n)), BUCKETS).inputs) for n in (one, other)]
    same_bucket = (
        pad_inputs((ids(one), mask(one)), BUCKETS).padded_length == pad_inputs((ids(other), mask(other)), BUCKETS).padded_length
    )
    assert (parts[0].digest == parts[1].digest) is same_bucket


@pytest.mark.parametrize("lengths", [(), (0,), (4, 4), (8, 4), (-1, 4)])
def test_lengths_that_do_not_rise_are_refused(lengths: tuple[int, ...]) -> None:
    with pytest.raises(InvalidConfig, match="do not rise"):
        Buckets(lengths=lengths, axes={"ids": (1,)})


@pytest.mark.parametrize(
    ("inputs", "axes", "said"),
    [
        ((ids(3), mask(4)), {"ids": (1,), "mask": (2, 3)}, "lengths"),
        ((ids(3),), {"idz": (1,)}, "no input 'idz'"),
        ((ids(3),), {"ids": (2,)}, "has 2 axes"),
        ((ids(3),), {"ids": (-1,)}, "has 2 axes"),
        ((ids(3),), {}, "lengths"),
    ],
)
def test_axes_that_fit_no_input_are_refused(
    inputs: tuple[InputShape, ...], axes: dict[str, tuple[int, ...]], said: str
) -> None:
    with pytest.raises(InvalidConfig, match=said):
        pad_inputs(inputs, Buckets(lengths=(16,), axes=axes))


def test_name_type_and_shape_of_an_input_decide_the_part() -> None:
    one = ids(3)
    others = [
        (InputShape(name="idz", dtype="int64", shape=(1, 3)),),
        (InputShape(name="ids", dtype="int32", shape=(1, 3)),),
        (InputShape(name="ids", dtype="int64", shape=(3, 1)),),
        (one, one),
        (),
    ]
    assert len({inputs_part(inputs).digest for inputs in ((one,), *others)}) == 6
    assert inputs_part((one,)).text == "ids int64[1,3]"
