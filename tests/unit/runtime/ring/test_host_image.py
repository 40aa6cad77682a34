"""The host image: every byte of every weight at its offset, within the budget, pinned or with a reason."""

import os
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from tests.rings import ring_at
from tmmu.errors import DeviceMemory, InvalidConfig
from tmmu.ir.ring import Block, Member, Ring
from tmmu.runtime.device.pinning import CudaRegistrar, PinningRefused, pin
from tmmu.runtime.ring import host_image as host
from tmmu.runtime.ring.host_image import HostImage, HostImageOptions
from tmmu.runtime.weights.safetensors_files import stored_tensors
from tmmu.runtime.weights.sources import FileSource, TensorSource, file_source, tensor_source

PAGE = 4096


def ring_of(*blocks: tuple[int, list[tuple[int, int]]]) -> Ring:
    """Blocks given as (bytes, members), members as (buffer, offset)."""
    filled = [
        Block(
            name=f"layer {n}",
            bytes=size,
            resident=True,
            address=0,
            members=tuple(Member(buffer=buffer, offset=offset) for buffer, offset in members),
        )
        for n, (size, members) in enumerate(blocks)
    ]
    return replace(ring_at([]), blocks=tuple(filled))


def bytes_of(*values: int) -> TensorSource:
    return TensorSource(torch.tensor(values, dtype=torch.uint8))


class FakeRegistrar:
    """Pins up to a limit, as a system with little lockable memory does."""

    def __init__(self, limit: int = 1 << 60) -> None:
        self.limit, self.held = limit, dict[int, int]()

    def register(self, address: int, size: int) -> str:
        if sum(self.held.values()) + size > self.limit:
            return "out of memory"
        self.held[address] = size
        return ""

    def unregister(self, address: int) -> None:
        del self.held[address]


def test_blocks_lie_one_after_another_with_zeros_between_members() -> None:
    ring = ring_of((8, [(0, 0), (1, 4)]), (4, [(2, 1)]), (0, []))
    image = HostImage(ring, {0: bytes_of(1, 2), 1: bytes_of(3), 2: bytes_of(4, 5)})
    assert image.size == 12
    assert image.bytes(0).tolist() == [1, 2, 0, 0, 3, 0, 0, 0]
    assert image.bytes(1).tolist() == [0, 4, 5, 0]
    assert image.bytes(2).tolist() == []


def test_image_is_one_mapping_of_just_its_size() -> None:
    size = 5 * PAGE
    image = HostImage(ring_of((size, [])), {})
    assert image.bytes(0).untyped_storage().nbytes() == size


def test_image_of_no_weights_is_empty() -> None:
    assert HostImage(ring_at([]), {}).size == 0


def test_large_weights_are_read_in_chunks_by_several_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "CHUNK", 1000)
    weights = torch.arange(5 * 2500).to(torch.uint8)
    ring = ring_of(*((2500, [(n, 0)]) for n in range(5)))
    image = HostImage(
        ring, {n: TensorSource(weights[n * 2500 : n * 2500 + 2500]) for n in range(5)}, HostImageOptions(workers=3)
    )
    assert torch.cat([image.bytes(n) for n in range(5)]).equal(weights)


@pytest.mark.parametrize(
    ("members", "sources", "reason"),
    [
        ([(0, 0)], {}, "no weight is given for buffer 0"),
        ([(0, 7)], {0: bytes_of(1, 2)}, "does not fit at byte 7"),
        ([(0, 0), (1, 1)], {0: bytes_of(1, 2), 1: bytes_of(3)}, "buffer 1 of layer 0 does not fit at byte 1"),
    ],
)
def test_members_that_do_not_fit_are_refused(members: Any, sources: Any, reason: str) -> None:
    with pytest.raises(InvalidConfig, match=reason):
        HostImage(ring_of((8, members)), sources)


def test_image_beyond_the_budget_is_refused_before_it_is_read() -> None:
    with pytest.raises(DeviceMemory, match="take 8 bytes of the host, and it may use 7") as caught:
        HostImage(ring_of((8, [(0, 0)])), {}, HostImageOptions(budget=7))
    assert caught.value.fields["bytes"] == 8
    with pytest.raises(DeviceMemory):
        HostImage(ring_of((1 << 60, [])), {})


def test_file_truncated_while_it_is_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "w.safetensors"
    save_file({"a": torch.ones(PAGE, dtype=torch.uint8)}, path)
    source = file_source(stored_tensors(path)["a"], PAGE)
    os.truncate(path, 100)
    with pytest.raises(InvalidConfig, match="it ends at byte 100, inside a"):
        HostImage(ring_of((PAGE, [(0, 0)])), {0: source})


def test_image_is_pinned_in_segments_of_whole_pages_and_no_copy_spans_two() -> None:
    registrar = FakeRegistrar()
    ring = ring_of((3 * PAGE // 2, []), (PAGE, []), (3 * PAGE, []))
    image = HostImage(ring, {}, HostImageOptions(segment=PAGE + 1), registrar)
    base = image.bytes(0).data_ptr()
    assert {address - base: size for address, size in registrar.held.items()} == {
        0: PAGE, PAGE: PAGE, 2 * PAGE: PAGE, 3 * PAGE: PAGE, 4 * PAGE: PAGE, 5 * PAGE: PAGE // 2
    }  # fmt: skip
    assert image.pinning.pinned_bytes == image.size
    for block, row in enumerate(ring.blocks):
        pieces = image.pieces(block)
        sizes = [size for _, _, size in pieces]
        assert [offset for offset, _, _ in pieces] == [sum(sizes[:n]) for n in range(len(pieces))]
        assert sum(sizes) == row.bytes
        for _, source, size in pieces:
            assert source is not None
            assert source.numel() == size
            assert (source.data_ptr() - base) // PAGE == (source.data_ptr() - base + size - 1) // PAGE
    image.close()
    image.close()
    assert registrar.held == {}


def test_refused_pinning_warns_and_leaves_a_pageable_image() -> None:
    registrar = FakeRegistrar(limit=2 * PAGE)
    ring = ring_of((4 * PAGE, [(0, 0)]))
    with pytest.warns(PinningRefused, match=r"not pinned \(out of memory\)"):
        image = HostImage(ring, {0: bytes_of(1, 2)}, HostImageOptions(segment=PAGE), registrar)
    assert (image.pinning.pinned_bytes, image.pinning.refusal) == (0, "out of memory")
    assert registrar.held == {}
    ((offset, source, size),) = image.pieces(0)
    assert (offset, size) == (0, 4 * PAGE)
    assert source is not None
    assert source[:2].tolist() == [1, 2]
    image.close()


def test_image_without_a_gpu_is_not_pinned_and_does_not_warn() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        image = HostImage(ring_of((8, [])), {})
    assert (image.pinning.pinned_bytes, image.pinning.refusal) == (0, "no GPU is to read it")


def test_cuda_registrar_reports_error_codes_and_clears_them() -> None:
    calls: list[Any] = []

    class Runtime:
        code = 0

        def cudaHostRegister(self, address: int, size: int, flags: int) -> int:  # noqa: N802
            calls.append((address, size, flags))
            return self.code

        def cudaHostUnregister(self, address: int) -> int:  # noqa: N802
            calls.append(address)
            return 0

    runtime, forgotten = Runtime(), list[int]()
    registrar = CudaRegistrar(runtime, lambda: forgotten.append(1))
    pinning = pin(100, [0, 8, 12], registrar)
    assert (pinning.pinned_bytes, pinning.segments) == (12, (100, 108))
    assert calls == [(100, 8, 0), (108, 4, 0)]
    assert forgotten == []
    runtime.code = 2
    assert pin(100, [0, 8], registrar).refusal == "cudaHostRegister returns 2"
    assert forgotten == [1]


def test_tensor_source_is_the_storage_or_its_own_elements() -> None:
    whole = torch.arange(8, dtype=torch.int16)
    assert tensor_source("w", whole.view(2, 4).t(), 16).image.view(torch.int16).equal(whole)
    assert tensor_source("w", whole[2:4], 4).image.view(torch.int16).tolist() == [2, 3]
    with pytest.raises(InvalidConfig, match="w has 4 bytes, and its place in the plan 6"):
        tensor_source("w", whole[2:4], 6)
    with pytest.raises(InvalidConfig, match="its place in the plan"):
        tensor_source("w", whole[::2], 8)


def test_file_source_is_laid_out_as_the_tensor_of_the_module(tmp_path: Path) -> None:
    value = torch.arange(6, dtype=torch.int16).view(2, 3)
    save_file({"a": value}, tmp_path / "w.safetensors")
    stored = stored_tensors(tmp_path / "w.safetensors")["a"]
    turned = torch.empty(3, 2, dtype=torch.int16).t()
    source = file_source(stored, 12, turned)
    assert not source.is_divisible
    target = torch.empty(12, dtype=torch.uint8)
    source.read(target, 0)
    assert target.view(torch.int16).as_strided((2, 3), turned.stride()).equal(value)
    assert file_source(stored, 12, torch.empty(2, 3, dtype=torch.int16)) == FileSource(stored, has_model_dtype=True)
    for like in (torch.empty(3, 2, dtype=torch.int16), torch.empty(2, 3, dtype=torch.float16)):
        with pytest.raises(InvalidConfig, match=r"a is int16\[2,3\] in w.safetensors, and"):
            file_source(stored, 12, like)
    for like in (torch.empty(1, dtype=torch.int16).expand(2, 3), torch.empty(2, 4, dtype=torch.int16)[:, :3]):
        with pytest.raises(InvalidConfig, match="a is a part of a tensor in the model"):
            file_source(stored, 12, like)
    with pytest.raises(InvalidConfig, match=r"a in w.safetensors has 12 bytes, and its place in the plan 14"):
        file_source(stored, 14)


def test_file_source_reads_pairs_as_complex_numbers_in_any_memory_order(tmp_path: Path) -> None:
    value = torch.randn(2, 3, dtype=torch.complex128)
    save_file({"a": torch.view_as_real(value).contiguous()}, tmp_path / "w.safetensors")
    stored = stored_tensors(tmp_path / "w.safetensors")["a"]
    turned = torch.empty(3, 2, dtype=torch.complex128, device="meta").t()
    target = torch.empty(96, dtype=torch.uint8)
    file_source(stored, 96, turned).read(target, 0)
    assert target.view(torch.complex128).as_strided((2, 3), turned.stride()).equal(value)
    for like in (torch.empty(2, 3, dtype=torch.complex64), torch.empty(3, 2, dtype=torch.complex128)):
        with pytest.raises(InvalidConfig, match=r"a is float64\[2,3,2\] in w.safetensors, and complex"):
            file_source(stored, 96, like)
