"""Bandwidth: the best of several tries; on a GPU both ways, pinned as a host image is."""

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.unit.runtime.device.test_cuda import FakeCuda
from tmmu.runtime.device import cuda
from tmmu.runtime.device.bandwidth import CopyRate, best_time, measure_bandwidth, measure_gpu, pci_link
from tmmu.runtime.device.cuda import CudaDevice
from tmmu.runtime.memory.slab import Slab


def test_best_time_ignores_the_warm_up_run() -> None:
    runs: list[int] = []
    times = iter([0, 7, 10, 14, 20, 25])
    assert best_time(lambda: runs.append(1), 3, clock=lambda: next(times)) == 4
    assert len(runs) == 4


def test_copy_rate_is_bytes_by_time() -> None:
    rate = CopyRate(source="a", target="b", bytes=24, best_ns=1, small_ns=0)
    assert rate.bytes_per_second == 24 * 10**9
    assert CopyRate(source="a", target="b", bytes=24, best_ns=0, small_ns=0).bytes_per_second == 24 * 10**9


def test_host_is_measured_with_one_thread_and_with_all() -> None:
    before = torch.get_num_threads()
    bandwidth = measure_bandwidth("cpu", 1 << 14, 1)
    assert bandwidth.rates[0].target == "host, 1 thread"
    assert len(bandwidth.rates) == (2 if before > 1 else 1)
    assert bandwidth.link is None


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[CudaDevice]:
    monkeypatch.setattr(cuda, "Slab", lambda size, alignment, device: Slab(size, alignment, torch.device("cpu")))
    device = CudaDevice(cuda=FakeCuda())
    yield device
    device.close()


class Registering:
    def __init__(self, why: str) -> None:
        self.why, self.held = why, list[int]()

    def register(self, address: int, size: int) -> str:
        if not self.why:
            self.held.append(address)
        return self.why

    def unregister(self, address: int) -> None:
        self.held.remove(address)


PROPERTIES: Any = SimpleNamespace(
    get_device_properties=lambda _: SimpleNamespace(name="a GPU", pci_domain_id=0, pci_bus_id=1, pci_device_id=2)
)


@pytest.mark.parametrize(
    ("why", "kinds"), [("", ["pinned", "pageable"]), ("no room", ["pageable"])], ids=["pinned", "refused"]
)
def test_gpu_is_measured_both_ways_and_nothing_stays_pinned(gpu: CudaDevice, why: str, kinds: list[str]) -> None:
    registering = Registering(why)
    gpu.registrar = registering
    bandwidth = measure_gpu(gpu, 1 << 14, 1, PROPERTIES)
    ways = [way for kind in kinds for way in ((kind, "device"), ("device", kind))]
    assert [(rate.source, rate.target) for rate in bandwidth.rates] == ways
    assert (bandwidth.name, bandwidth.unpinned, registering.held) == ("a GPU", why, [])


def test_pci_link_is_what_the_system_says_or_nothing(tmp_path: Path) -> None:
    assert pci_link("0000:01:02.0", tmp_path) is None
    folder = tmp_path / "0000:01:02.0"
    folder.mkdir()
    for name, text in (("current_link_speed", "16.0 GT/s PCIe"), ("current_link_width", "8")):
        (folder / name).write_text(text + "\n")
    assert pci_link("0000:01:02.0", tmp_path) is None
    (folder / "max_link_speed").write_text("32.0 GT/s PCIe\n")
    (folder / "max_link_width").write_text("16\n")
    link = pci_link("0000:01:02.0", tmp_path)
    assert link is not None
    assert (link.speed, link.width, link.max_speed, link.max_width) == (
        "16.0 GT/s PCIe", "8", "32.0 GT/s PCIe", "16"
    )  # fmt: skip
