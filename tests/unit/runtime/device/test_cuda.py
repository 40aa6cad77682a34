"""Calls of CUDA, on a stand-in for ``torch.cuda``; without a GPU the device is refused."""

from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.rings import ring_at, run_passes
from tmmu.errors import DeviceMissing
from tmmu.runtime.device import cuda
from tmmu.runtime.device.cuda import CudaDevice, pci_address
from tmmu.runtime.device.interface import ByteRange, Task
from tmmu.runtime.memory.slab import Slab
from tmmu.runtime.offload.copies import HostCopy
from tmmu.runtime.offload.loop import HostCopyLoop
from tmmu.runtime.ring.loop import StreamingLoop


class FakeStream:
    def __init__(self, log: list[str], name: str, handle: int) -> None:
        self.log, self.name, self.cuda_stream = log, name, handle

    def synchronize(self) -> None:
        self.log.append(f"{self.name} synchronizes")

    def wait_event(self, event: "FakeEvent") -> None:
        self.log.append(f"{self.name} waits {event.number}")


class FakeEvent:
    def __init__(self, log: list[str], number: int) -> None:
        self.log, self.number = log, number

    def record(self, stream: FakeStream) -> None:
        self.log.append(f"{stream.name} records {self.number}")

    def synchronize(self) -> None:
        self.log.append(f"host waits {self.number}")


class FakeCuda:
    """Logs the calls of ``torch.cuda``."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.made = 0
        self.current = FakeStream(self.log, "main", 0)

    def is_available(self) -> bool:
        return True

    def device_count(self) -> int:
        return 1

    def cudart(self) -> object:
        return self

    def get_device_properties(self, device: object) -> Any:
        return SimpleNamespace(pci_domain_id=0, pci_bus_id=0x3B, pci_device_id=0)

    def current_stream(self, device: object) -> FakeStream:
        return self.current

    def Stream(self, device: object, priority: int) -> FakeStream:  # noqa: N802
        self.log.append(f"stream of priority {priority}")
        self.made += 1
        return FakeStream(self.log, f"side {self.made}", self.made)

    def Event(self, *, enable_timing: bool, blocking: bool) -> FakeEvent:  # noqa: N802
        assert not enable_timing
        self.made += 1
        return FakeEvent(self.log, self.made)

    def stream(self, handle: FakeStream) -> Any:
        log = self.log

        class Inside:
            def __enter__(self) -> None:
                log.append(f"on {handle.name}")

            def __exit__(self, *_: object) -> None:
                pass

        return Inside()

    def synchronize(self, device: object) -> None:
        self.log.append("synchronize")


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
    """A stand-in whose arenas are in host memory."""
    monkeypatch.setattr(cuda, "Slab", lambda size, alignment, device: Slab(size, alignment, torch.device("cpu")))
    return FakeCuda()


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_cuda_device_without_a_gpu_is_refused() -> None:
    with pytest.raises(DeviceMissing, match="there is no cuda:0") as caught:
        CudaDevice()
    assert caught.value.code == "DEVICE_MISSING"


def test_cuda_device_knows_its_pci_address_and_registrar(fake: FakeCuda) -> None:
    assert pci_address(fake.get_device_properties(0)) == "0000:3b:00.0"
    assert pci_address(SimpleNamespace(pci_bus_id=1)) == ""
    assert CudaDevice(cuda=fake).registrar is not None


def test_host_is_told_by_a_thread_that_waits_for_an_event_behind_the_task(fake: FakeCuda) -> None:
    device, told = CudaDevice(cuda=fake), list[int]()
    host, arena = device.adopt(Slab.over(torch.arange(8, dtype=torch.uint8))), device.allocate(8)
    stream, event = device.create_stream("s"), device.create_event()
    for begin, content in ((0, 1), (4, 2)):
        move = device.make_move(ByteRange(host.number, begin, begin + 4), ByteRange(arena.number, 4 - begin, 8 - begin))
        device.submit(stream, Task(name="move", run=move))
        device.call_back(stream, partial(told.append, content))
    device.submit(stream, Task(name="zero", run=device.make_zero(ByteRange(arena.number, 0, 1))))
    device.record(event, stream)
    device.wait_on_host(event)
    assert device.memory(arena).bytes(0, 8).tolist() == [0, 5, 6, 7, 0, 1, 2, 3]
    device.close()
    assert told == [1, 2]
    waits = [line for line in fake.log if line.startswith("host waits")]
    assert len(waits) == len(set(waits)) == 3
    assert all(fake.log.index(line.replace("host waits", "side 1 records")) < fake.log.index(line) for line in waits)


def test_index_of_no_gpu_is_refused(fake: FakeCuda) -> None:
    with pytest.raises(DeviceMissing, match="cuda:1"):
        CudaDevice(1, cuda=fake)


def test_copies_run_on_an_urgent_stream_and_kernels_on_torch_s_current_one(fake: FakeCuda) -> None:
    device = CudaDevice(cuda=fake)
    link = device.create_stream("weights", urgent=True)
    assert fake.log == ["stream of priority -1"]
    caller = device.caller_stream()
    assert device.caller_stream() == caller
    device.submit(link, Task(name="copy"))
    device.submit(caller, Task(name="kernel"))
    assert fake.log[1:] == ["on side 1", "on main"]


def test_each_current_stream_is_adopted_once(fake: FakeCuda) -> None:
    device = CudaDevice(cuda=fake)
    first = device.caller_stream()
    fake.current = FakeStream(fake.log, "other", 7)
    second = device.caller_stream()
    assert first != second
    fake.current = FakeStream(fake.log, "main again", 0)
    assert device.caller_stream() == first


def test_events_are_recorded_and_waited_for_on_streams_never_on_the_host(fake: FakeCuda) -> None:
    device = CudaDevice(cuda=fake)
    link, event = device.create_stream("weights"), device.create_event()
    device.record(event, link)
    device.wait(device.caller_stream(), event)
    assert fake.log[1:] == ["side 1 records 2", "main waits 2"]
    device.synchronize()
    assert fake.log[-1] == "synchronize"


def test_loop_never_makes_the_host_wait(fake: FakeCuda) -> None:
    ring = ring_at([(slot * 512, slot * 512 + 512) for slot in (0, 1, 0)])

    class Image:
        def pieces(self, block: int) -> list[tuple[int, torch.Tensor | None, int]]:
            return [(0, torch.full((512,), block, dtype=torch.uint8), 512)]

    device = CudaDevice(cuda=fake)
    loop = StreamingLoop(device, ring, Image())  # type: ignore[arg-type]
    run_passes(loop, 3)
    assert "synchronize" not in fake.log
    assert device.memory(loop.arena).bytes(512, 512).eq(1).all()
    loop.close()
    assert fake.log.count("synchronize") == 1


@pytest.mark.parametrize("pinned", [True, False])
def test_copies_are_asynchronous_from_pinned_memory_only(fake: FakeCuda, pinned: bool) -> None:
    device = CudaDevice(cuda=fake)
    arena = device.allocate(64)
    queries: list[bool] = []

    class Source:
        def is_pinned(self) -> bool:
            queries.append(True)
            return pinned

    run: Any = device.make_copy(Source(), ByteRange(arena.number, 0, 64))  # type: ignore[arg-type]
    assert queries == [True]
    assert run.keywords == {"non_blocking": pinned}


def test_close_synchronizes_once(fake: FakeCuda) -> None:
    device = CudaDevice(cuda=fake)
    device.allocate(64)
    device.close()
    device.close()
    assert fake.log == ["synchronize"]


def test_values_go_to_the_host_and_back_on_streams_beside_torch_s_current_one(fake: FakeCuda) -> None:
    device = CudaDevice(cuda=fake)
    stack, host = (device.adopt(Slab.over(torch.arange(8, dtype=torch.uint8) * scale)) for scale in (1, 0))
    on_host = ByteRange(host.number, 0, 4)
    places = [(ByteRange(stack.number, 0, 4), on_host, True), (on_host, ByteRange(stack.number, 4, 8), False)]
    copies = [
        HostCopy(op=op, begin=op, end=op + 1, source=source, target=target, contents=(0, 1), to_host=to_host)
        for op, (source, target, to_host) in zip((1, 3), places, strict=True)
    ]
    loop = HostCopyLoop(device, copies, 5)
    assert loop.positions == (0, 1, 2, 3, 4, 5)
    fake.log.clear()
    for position in loop.positions:
        loop.before(position)
    assert device.memory(stack).bytes(0, 8).tolist() == [0, 1, 2, 3] * 2
    out, back = "side 1", "side 2"
    ready, landed = (
        [line.rpartition(" ")[2] for line in fake.log if line.startswith(tuple(f"{name} records" for name in names))]
        for names in (("main",), (out, back))
    )
    assert fake.log == [
        f"main records {ready[0]}", f"{out} waits {ready[0]}", f"on {out}", f"{out} records {landed[0]}",
        f"main waits {landed[0]}",
        f"main records {ready[1]}", f"{back} waits {ready[1]}", f"on {back}", f"{back} records {landed[1]}",
        f"main waits {landed[1]}",
    ]  # fmt: skip
    loop.close()
    device.close()
