"""Views of a dense base: the elements that the strided window has, or none."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from tmmu.fusion.window_views import Strided, apply_views, is_reshaped, memory_order, view_steps


@st.composite
def dense_bases(draw: st.DrawFn) -> Strided:
    """A dense window in some order of its axes."""
    shape = tuple(draw(st.lists(st.integers(1, 4), min_size=1, max_size=4)))
    order = draw(st.permutations(range(len(shape))))
    stride, step = [0] * len(shape), 1
    for axis in reversed(order):
        stride[axis] = step
        step *= shape[axis]
    return Strided(shape, tuple(stride), "float32")


@st.composite
def windows_on(draw: st.DrawFn, base: Strided) -> Strided:
    """A window that slices, permutes, expands or reshapes what lies in the base's memory."""
    total = 1
    for length in base.shape:
        total *= length
    memory = torch.arange(total)
    view = memory
    for _ in range(draw(st.integers(0, 4))):
        axis = draw(st.integers(0, view.dim() - 1)) if view.dim() else 0
        step = draw(st.sampled_from(("split", "narrow", "swap", "grow", "expand")))
        if step == "split" and view.dim() and view.shape[axis] % 2 == 0 and view.shape[axis]:
            view = view.unflatten(axis, (2, view.shape[axis] // 2))
        elif step == "narrow" and view.dim() and view.shape[axis] > 1:
            start = draw(st.integers(0, view.shape[axis] - 1))
            view = view.narrow(axis, start, draw(st.integers(1, view.shape[axis] - start)))
        elif step == "swap" and view.dim() > 1:
            view = view.transpose(axis, draw(st.integers(0, view.dim() - 1)))
        elif step == "grow":
            view = view.unsqueeze(axis)
        elif step == "expand" and view.dim() and view.shape[axis] == 1:
            view = view.expand(*(3 if place == axis else n for place, n in enumerate(view.shape)))
    return Strided(tuple(view.shape), view.stride(), "float32", int(view.storage_offset()))


@given(st.data())
def test_views_have_the_elements_of_the_window(data: st.DataObject) -> None:
    base = data.draw(dense_bases())
    window = data.draw(windows_on(base))
    total = torch.Size(base.shape).numel()
    tensor = torch.arange(total, dtype=torch.float32).as_strided(base.shape, base.stride)
    steps = view_steps(base, window)
    if steps is not None:
        expected = tensor.as_strided(window.shape, window.stride, window.offset)
        assert apply_views(tensor, steps).equal(expected)
        # Of a tensor of the same shape that lies otherwise, the same elements.
        assert apply_views(tensor.clone(memory_format=torch.contiguous_format), steps).equal(expected)


def test_views_of_models_are_known() -> None:
    qkv = Strided((1, 192), (192, 1), "float32")
    heads = Strided((1, 4, 1, 16), (64, 16, 64, 1), "float32", 64)
    half = Strided((1, 4, 1, 8), (64, 16, 64, 1), "float32", 8)
    steps = view_steps(qkv, heads)
    assert steps is not None
    tensor = torch.arange(192.0).view(1, 192)
    assert apply_views(tensor, steps).equal(tensor[:, 64:128].view(1, 1, 4, 16).transpose(1, 2))
    assert view_steps(qkv, half) is not None


def test_what_no_view_gives_is_none() -> None:
    base = Strided((4, 4), (4, 1), "float32")
    assert view_steps(base, Strided((2, 2), (3, 1), "float32")) is None  # rows that overlap otherwise
    assert view_steps(base, Strided((4, 4), (4, 1), "int32")) is None
    assert view_steps(Strided((4, 4), (8, 1), "float32"), Strided((4,), (8,), "float32")) is None  # a base with gaps
    assert view_steps(base, Strided((8,), (1,), "float32", 12)) is None  # beyond its end


def test_a_window_that_is_the_base_needs_no_step_even_with_gaps() -> None:
    gapped = Strided((4, 4), (8, 1), "float32")
    assert view_steps(gapped, gapped) == ()


def test_reshaped_is_all_of_a_base_in_order() -> None:
    base = Strided((2, 6), (6, 1), "float32")
    assert is_reshaped(base, Strided((3, 4), (4, 1), "float32"))
    assert not is_reshaped(base, Strided((6, 2), (1, 6), "float32"))
    assert not is_reshaped(base, Strided((6,), (1,), "float32"))


def test_memory_order_is_from_the_widest_stride() -> None:
    assert memory_order((2, 3, 4), (1, 8, 2)) == (1, 2, 0)
    assert memory_order((5, 1, 4), (4, 9, 1)) == (1, 0, 2)
