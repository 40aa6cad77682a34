"""The service that takes uploads, and says what of them is there."""

from tmmu.errors import InvalidRequest
from tmmu.server.uploads.upload_store import UploadStore
from tmmu.wire.interface import Message, Payloads, Peer, RequestHeader, ServiceCall
from tmmu.wire.upload_messages import FindUploads, PutUploads, UploadsReceived


class UploadService:
    """``store``: ``None`` where the server keeps no uploads, which it says."""

    requests = (FindUploads, PutUploads)

    def __init__(self, store: UploadStore | None) -> None:
        self._store = store

    def answer(self, header: RequestHeader, payloads: Payloads, call: ServiceCall) -> Message:
        """How many bytes of each tensor are there; ``INVALID_REQUEST`` where the server keeps none."""
        client = call.peer.client
        if self._store is None:
            raise InvalidRequest(
                "the server keeps no uploads", fix="have it serve with the settings tensor_bytes and upload_folder"
            )
        if isinstance(header, FindUploads) and not payloads:
            return UploadsReceived(received=self._store.received(client, header.tensors)), ()
        if not isinstance(header, PutUploads) or len(payloads) != len(header.parts):
            raise InvalidRequest("parts and payloads of different numbers", fix="use a client of this version")
        return UploadsReceived(received=self._store.put(client, header.parts, payloads)), ()

    def connection_lost(self, peer: Peer) -> None:
        """Uploads stay."""
