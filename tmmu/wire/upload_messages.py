"""Messages about uploads: tensors by the hash of their bytes, in parts, which outlive the connection.

What a client has sent stays on the server for that client alone, so that whoever is interrupted sends what is missing.
"""

from typing import Annotated, Final, TypeAlias

import msgspec

from tmmu.wire.graph import Hash
from tmmu.wire.interface import RequestHeader, WireHeader

MOST_UPLOADS: Final = 4096
"""Of one request."""
Bytes: TypeAlias = Annotated[int, msgspec.Meta(ge=1, lt=1 << 62)]
Offset: TypeAlias = Annotated[int, msgspec.Meta(ge=0, lt=1 << 62)]


class TensorContents(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """``hash``: BLAKE3 of so many ``bytes``."""

    hash: Hash
    bytes: Bytes


class UploadPart(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Bytes of a tensor from ``offset`` on, which are the payload at the same position."""

    contents: TensorContents
    offset: Offset


class UploadsReceived(WireHeader, frozen=True):
    """How many bytes of each tensor are there, from its first on; all of them: it is whole, and has its hash."""

    received: tuple[int, ...]


class FindUploads(RequestHeader, frozen=True, tag="uploads.find"):
    """What of these tensors is there."""

    answer = UploadsReceived
    tensors: Annotated[tuple[TensorContents, ...], msgspec.Meta(max_length=MOST_UPLOADS)]


class PutUploads(RequestHeader, frozen=True, tag="uploads.put"):
    """Adds parts. One that does not begin where the bytes that are there end changes nothing, and is no fault: the
    answer says where they end.
    """

    answer = UploadsReceived
    parts: Annotated[tuple[UploadPart, ...], msgspec.Meta(max_length=MOST_UPLOADS)]
