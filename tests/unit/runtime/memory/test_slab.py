"""Slabs are aligned and zero; their views are disjoint; unaligned ones are refused."""

import pytest
import torch

from tmmu.errors import AlignmentViolation, DeviceMemory
from tmmu.runtime.memory.slab import Slab, host_copy, is_dense, is_same_view, row_major_bytes

CPU = torch.device("cpu")


@pytest.mark.parametrize("alignment", [1, 64, 4096, 1 << 16])
def test_slab_start_is_aligned_and_its_bytes_are_zero(alignment: int) -> None:
    slab = Slab(1000, alignment, CPU)
    assert slab.bytes(0, 1).data_ptr() % alignment == 0
    assert not slab.bytes(0, 1000).any()


def test_slab_views_are_windows_on_its_bytes() -> None:
    slab = Slab(256, 64, CPU)
    slab.view(64, (2, 3), (1, 2), torch.int16).copy_(torch.arange(6).view(2, 3))
    assert slab.bytes(64, 12).view(torch.int16).tolist() == [0, 3, 1, 4, 2, 5]
    assert slab.bytes(0, 64).sum() == slab.bytes(76, 180).sum() == 0


def test_slab_offset_unaligned_for_the_dtype_is_refused() -> None:
    with pytest.raises(AlignmentViolation, match="float64"):
        Slab(64, 64, CPU).view(4, (1,), (1,), torch.float64)


def test_slab_size_that_no_device_has_is_refused_with_the_number() -> None:
    with pytest.raises(DeviceMemory) as caught:
        Slab(1 << 60, 64, CPU)
    assert caught.value.fields["bytes"] == 1 << 60


def test_empty_slab_holds_empty_tensors() -> None:
    assert Slab(0, 64, CPU).view(0, (0, 3), (3, 1), torch.float32).shape == (0, 3)


@pytest.mark.parametrize(
    ("shape", "stride", "dense"),
    [((2, 3), (3, 1), True), ((2, 3), (1, 2), True), ((2, 3), (4, 1), False), ((2, 3), (0, 1), False),
     ((), (), True), ((1, 5), (99, 1), True), ((0, 3), (7, 7), True), ((4,), (2,), False)],
)  # fmt: skip
def test_is_dense_means_every_byte_once(shape: tuple[int, ...], stride: tuple[int, ...], dense: bool) -> None:
    assert is_dense(torch.empty(64).as_strided(shape, stride)) is dense


def test_same_view_means_same_storage_offset_shape_stride_and_dtype() -> None:
    x = torch.zeros(4, 4)
    assert is_same_view(x, x.detach())
    for view in (x.t(), x[1:], x.view(16), x.view(torch.int32), torch.zeros(4, 4)):
        assert not is_same_view(x, view)


def test_views_and_copies_made_in_inference_mode_are_written_outside() -> None:
    with torch.inference_mode():
        slab = Slab(512, 256, torch.device("cpu"))
        view = slab.view(64, (2, 4), (4, 1), torch.float32)
        copy = host_copy(slab.bytes(0, 512))
    view.fill_(1)
    copy.fill_(1)
    assert slab.bytes(64, 32).view(torch.float32).tolist() == [1.0] * 8


def test_bytes_are_row_major_whatever_the_strides() -> None:
    whole = torch.arange(12, dtype=torch.int32).view(3, 4)
    for tensor in (whole, whole.t(), whole[:, 1:2][1], whole.as_strided((1,), (2,), 5), whole[3:], whole[0, 0]):
        expected = torch.tensor(tensor.tolist(), dtype=torch.int32).reshape(-1).view(torch.uint8)
        assert row_major_bytes(tensor).equal(expected)
