"""Contents of uploads: all or none of what is named, counted as any other, and written without changing the upload."""

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from blake3 import blake3

from tmmu.client.device.contents import UploadedTensor
from tmmu.client.device.registration import RemoteDevice, attach_device
from tmmu.errors import InvalidRequest, QuotaExceeded, ReferenceStale
from tmmu.server.graphs import contents
from tmmu.server.graphs.graph_limits import GraphLimits
from tmmu.server.graphs.graph_service import GraphService
from tmmu.server.uploads.upload_store import UploadStore
from tmmu.wire.graph import ContentUpload, TakeUploads
from tmmu.wire.in_process import InProcessConnection
from tmmu.wire.service_table import ServiceTable
from tmmu.wire.upload_messages import TensorContents, UploadPart

ROW = torch.arange(4.0)
DATA = ROW.numpy().tobytes()


def row_of(data: bytes, shape: tuple[int, ...] = (4,)) -> UploadedTensor:
    return UploadedTensor(
        hash=blake3(data).digest(), bytes=len(data), dtype=torch.float32, shape=shape, stride=(1,) * len(shape)
    )


@pytest.fixture(params=[contents.LEAST_MAPPED, 1], ids=["read", "mapped"], autouse=True)
def maps(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether the uploads of a test are large enough to be mapped."""
    monkeypatch.setattr(contents, "LEAST_MAPPED", request.param)
    return bool(request.param == 1)


@pytest.fixture
def store(tmp_path: Path) -> UploadStore:
    store = UploadStore(tmp_path, 1000, lambda client: client)
    store.put("anybody", [UploadPart(TensorContents(blake3(DATA).digest(), 16), 0)], [memoryview(DATA)])
    return store


@pytest.fixture
def service(store: UploadStore) -> GraphService:
    return GraphService(GraphLimits(bytes=100), uploads=store)


@pytest.fixture
def device(service: GraphService) -> Iterator[RemoteDevice]:
    connection = InProcessConnection(ServiceTable([service]))
    with torch.no_grad(), attach_device(connection) as device:
        yield device
    connection.close()
    assert service.usage_of("anybody").bytes == 0


def test_uploads_become_tensors_and_stay_as_they_are(device: RemoteDevice, store: UploadStore) -> None:
    first, second = device.tensors_of_uploads([row_of(DATA), row_of(DATA)])
    first.add_(1)
    assert first.tolist() == [1, 2, 3, 4]
    assert second.tolist() == [0, 1, 2, 3]
    file = store.whole_file("anybody", TensorContents(blake3(DATA).digest(), 16))
    assert file is not None
    file.unlink()  # what is mapped stays
    second.mul_(2)
    assert second.tolist() == [0, 2, 4, 6]
    assert device.tensors_of_uploads([row_of(b"", (0,))])[0].tolist() == []


def test_a_write_leaves_the_upload_as_it_was(device: RemoteDevice, store: UploadStore) -> None:
    (tensor,) = device.tensors_of_uploads([row_of(DATA)])
    tensor.add_(1)  # the only one on its content, so no copy goes before
    assert tensor.tolist() == [1, 2, 3, 4]
    file = store.whole_file("anybody", TensorContents(blake3(DATA).digest(), 16))
    assert file is not None
    assert file.read_bytes() == DATA
    assert device.tensors_of_uploads([row_of(DATA)])[0].tolist() == [0, 1, 2, 3]


def test_small_uploads_take_no_maps_of_the_process(device: RemoteDevice, tmp_path: Path, maps: bool) -> None:
    tensors = device.tensors_of_uploads([row_of(DATA)])
    assert (str(tmp_path) in Path("/proc/self/maps").read_text()) == maps
    assert len(tensors) == 1


@pytest.mark.parametrize("change", [Path.unlink, lambda path: path.write_bytes(DATA[:8])])
def test_a_file_that_went_or_was_cut_is_stale(tmp_path: Path, change: Callable[[Path], object]) -> None:
    path = tmp_path / "upload"
    path.write_bytes(DATA)
    assert bytes(contents.tensor_of_file(path, 16).tolist()) == DATA
    change(path)
    with pytest.raises(ReferenceStale):
        contents.tensor_of_file(path, 16)


def test_none_is_taken_where_one_is_not_there(device: RemoteDevice, service: GraphService) -> None:
    with pytest.raises(ReferenceStale, match="deleted"):
        device.tensors_of_uploads([row_of(DATA), row_of(b"else")])
    assert service.usage_of("anybody").contents == 0
    assert torch.ones(2, device="remote").tolist() == [1, 1]


def test_uploads_count_as_tensors_do(device: RemoteDevice) -> None:
    other = torch.ones(22, device="remote")
    device.run()
    with pytest.raises(QuotaExceeded):
        device.tensors_of_uploads([row_of(DATA)])
    assert other.sum().item() == 22


def test_a_number_is_taken_by_one_upload(device: RemoteDevice, service: GraphService) -> None:
    link = device.dispatcher.recorder._link
    upload = ContentUpload(7, 16, blake3(DATA).digest())
    for uploads in ((upload, upload), (upload,), (upload,)):
        before = service.usage_of("anybody").contents
        with pytest.raises(InvalidRequest, match="taken") if before or len(uploads) == 2 else nullcontext():
            link.take_uploads(uploads)
    assert service.usage_of("anybody").contents == 1


def test_another_opening_has_no_uploads(device: RemoteDevice) -> None:
    connection = device.dispatcher.recorder._link._connection
    with pytest.raises(ReferenceStale, match="opened again"):
        connection.request(TakeUploads(epoch=bytes(32), uploads=()))


def test_a_server_without_uploads_says_so() -> None:
    connection = InProcessConnection(ServiceTable([GraphService()]))
    with attach_device(connection) as device, pytest.raises(InvalidRequest, match="keeps no uploads"):
        device.tensors_of_uploads([row_of(DATA)])
