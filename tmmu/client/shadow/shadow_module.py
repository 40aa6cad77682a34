"""A shadow: a local module that is uploaded in the background, runs here until it is there, and then there."""

from contextlib import suppress
from dataclasses import dataclass, replace
from threading import Event, RLock, Thread
from typing import TYPE_CHECKING, Any, Final, Literal

import torch
from torch import nn

from tmmu.client.forks import leave_to_parent
from tmmu.client.interlock import FreeBytes, host_free_bytes
from tmmu.client.shadow.local_run import LocalRuns
from tmmu.client.shadow.module_tensors import ModuleTensors, TensorImage, TensorState
from tmmu.client.shadow.remote_copy import RemoteCopy
from tmmu.client.shadow.tensor_uploads import TensorUploads, UploadCounts
from tmmu.errors import (
    DeadlineExceeded,
    InternalError,
    InvalidConfig,
    ReferenceStale,
    ServerBusy,
    ServerGone,
    TmmuError,
    WireBroken,
)

if TYPE_CHECKING:
    from tmmu.client.remote_server import RemoteServer

_PASSING: Final = (ServerGone, DeadlineExceeded, ServerBusy)
"""What an upload may fail of that another one need not."""
_MOST_ATTEMPTS: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class ShadowRun:
    """Where a call ran, and why there."""

    place: Literal["local", "remote"]
    reason: str


class ShadowModule:
    """Made by ``RemoteServer.shadow``. Called as its ``module`` is, without gradients; ``last_run`` says where it ran.

    Results of a remote call are remote tensors, of a local one tensors here; bits are the same. A call compares the
    versions of all parameters and buffers with those that were uploaded: what changed is uploaded again, and runs here
    meanwhile. Writes that torch does not count (``tensor.data``, arrays that share memory) need ``sync(changed=True)``.
    Threads may share a shadow; nobody else may call the module while it runs there.
    """

    def __init__(
        self,
        remote: "RemoteServer",
        module: nn.Module,
        *,
        deadline: float | None = None,
        local_bytes: int | None = None,
        free_bytes: FreeBytes = host_free_bytes,
    ) -> None:
        if not isinstance(module, nn.Module):
            raise InvalidConfig(f"a shadow of a {type(module).__name__}", fix="give a torch module")
        if local_bytes is not None and not (type(local_bytes) is int and local_bytes >= 0):
            raise InvalidConfig(f"local_bytes of {local_bytes!r:.40}", fix="give bytes, or a size such as 8GiB")
        self.module, self._remote, self._deadline = module, remote, deadline
        self.last_run: ShadowRun | None = None
        self._local = LocalRuns(module, local_bytes, free_bytes)
        self._lock, self._is_closed = RLock(), False
        self._local_calls = 0
        """Under way; while there are any, nobody puts remote tensors in the place of the module's."""
        self._counts, self._is_over = UploadCounts(), Event()
        self._copy: RemoteCopy | None = None
        self._error: TmmuError | None = None
        self._hashes: dict[int, tuple[TensorState, bytes]] = {}
        self._changes_told = 0
        """Calls of ``sync(changed=True)``: an upload that began before one of them begins again."""
        ModuleTensors(module)
        leave_to_parent(self)
        remote.shared_device()
        self._begin()

    @property
    def upload(self) -> UploadCounts:
        """Bytes of the upload that runs, or ran last."""
        return replace(self._counts)

    @property
    def is_there(self) -> bool:
        """Whether the next call runs on the server."""
        with self._lock:
            return self._current_copy()[0] is not None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """What the module returns. ``DEVICE_MEMORY`` where it would run here and there is too little memory.

        What an upload failed of, other than a server that is gone or busy, is raised until ``sync``.
        """
        with torch.no_grad():
            with self._lock:
                copy, reason = self._current_copy()
                if copy is not None and self._local_calls:
                    copy, reason = None, "another thread runs it here"
                if copy is not None:
                    result = self._call_there(copy, args, kwargs)
                    self.last_run = ShadowRun(place="remote", reason=reason)
                    return result
                if not self._is_running and self._error is not None and not isinstance(self._error, _PASSING):
                    raise _renewed(self._error)
                if not self._is_running and self._copy is None:
                    self._begin()
                self._local_calls += 1
            try:
                result = self._local.run(args, kwargs)
            finally:
                with self._lock:
                    self._local_calls -= 1
            self.last_run = ShadowRun(place="local", reason=reason)
            return result

    def sync(self, *, changed: bool = False) -> None:
        """Uploads again what is no more as it was uploaded, in the background, also after a failure.

        ``changed``: look at all bytes, since something was written that torch does not count.
        """
        with self._lock:
            if changed:
                self._copy, self._hashes = None, {}
                self._changes_told += 1
            if not self._is_running and self._current_copy()[0] is None:
                self._begin()

    def wait(self, deadline: float | None = None) -> None:
        """Returns when the upload that runs is over, and raises what it failed of. ``deadline``: in seconds."""
        if not self._is_over.wait(deadline):
            raise DeadlineExceeded("the module is not uploaded yet", fix="wait longer; meanwhile it runs here")
        if self._error is not None:
            raise _renewed(self._error)

    def close(self) -> None:
        """Ends the upload, and frees the module's tensors; the bytes that arrived stay. Closing again does nothing."""
        self._is_closed = True
        self._is_over.wait()
        with self._lock:
            copy, self._copy, self._hashes = self._copy, None, {}
            device = None if copy is None else copy.device
            del copy
            if device is not None and device.is_open:
                with suppress(TmmuError):  # of a connection that breaks, which frees all
                    device.free()

    def leave_to_parent(self) -> None:
        """As ``Forked.leave_to_parent``: the next call runs here, and begins an upload of this process."""
        self._lock, self._is_over, self._local_calls = RLock(), Event(), 0
        self._copy = None
        self._error = ServerGone("the upload is that of the process which forked this one", fix="call it again")
        self._is_over.set()

    def __enter__(self) -> "ShadowModule":
        return self

    def __exit__(self, *failure: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<ShadowModule of a {type(self.module).__name__} at {self._remote.address}>"

    # -- calls

    def _current_copy(self) -> tuple[RemoteCopy | None, str]:
        """What is there of the module as it is now, or why nothing is."""
        if self._is_closed:
            raise InvalidConfig("the shadow is closed", fix="call the module, or make another shadow")
        copy = self._copy
        if copy is None:
            counts = self._counts
            if self._error is not None:
                return None, str(self._error)
            return None, f"{counts.there} of {counts.total or 'its'} bytes are there"
        changes = copy.source.changed(self.module)
        if changes:
            reason = f"{len(changes)} tensors have changed since they were uploaded, {changes[0]} first"
        elif not copy.device.is_open:
            reason = "the device was closed, or its connection broke"
        else:
            return copy, "all tensors are there"
        self._copy = None
        return None, reason

    def _call_there(self, copy: RemoteCopy, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        try:
            return copy.call(self.module, args, kwargs)
        finally:
            if copy.written:
                self._copy = None

    # -- the upload

    @property
    def _is_running(self) -> bool:
        return not self._is_over.is_set()

    def _begin(self) -> None:
        self._error = None
        self._counts = UploadCounts()
        self._is_over.clear()
        Thread(target=self._run, name="tmmu-shadow", daemon=True).start()

    def _run(self) -> None:
        is_over = False
        while not is_over:
            told = self._changes_told
            copy, error = self._attempt()
            with self._lock:
                is_told = told != self._changes_told
                if is_told or isinstance(error, WireBroken):  # bytes changed, and torch counted nothing
                    self._hashes = {}
                is_over = not is_told or self._is_closed
                if is_over:
                    self._copy, self._error = copy, error
                    self._is_over.set()

    def _attempt(self) -> tuple[RemoteCopy | None, TmmuError | None]:
        """A copy of the module, or what its upload failed of; neither where it was closed or written meanwhile."""
        for attempt in range(_MOST_ATTEMPTS):
            try:
                return self._upload(ModuleTensors(self.module)), None
            except ReferenceStale as error:  # what was uploaded made room for another module before it was taken
                if attempt + 1 == _MOST_ATTEMPTS:
                    return None, error
            except TmmuError as error:
                return None, error
            except Exception as error:  # noqa: BLE001 - told to whoever waits
                return None, InternalError(f"the upload failed of {type(error).__name__}: {error}")
        return None, None

    def _upload(self, source: ModuleTensors) -> RemoteCopy | None:
        states = {id(state): state for state in source.states.values()}
        images = {key: TensorImage(state.tensor, self._hash_of(state)) for key, state in states.items()}
        self._hashes = {id(state.tensor): (state, images[key].hash) for key, state in states.items()}
        payloads = {image.hash: image.payload for image in images.values() if len(image.payload)}
        uploads = TensorUploads(payloads, self._counts)
        try:
            limits = self._remote.connection.limits
            if not uploads.send(self._remote, limits, deadline=self._deadline, must_stop=lambda: self._is_closed):
                return None
        except WireBroken:
            if source.changed(self.module):
                return None  # while it was sent: the next call says so, and begins again
            raise
        device = self._remote.shared_device()
        tensors = dict(
            zip(images, device.tensors_of_uploads([image.uploaded for image in images.values()]), strict=True)
        )
        return RemoteCopy(source, {name: tensors[id(state)] for name, state in source.states.items()}, device)

    def _hash_of(self, state: TensorState) -> bytes | None:
        """What a tensor hashed to, where nothing has written it since."""
        before, digest = self._hashes.get(id(state.tensor), (None, None))
        return digest if before is not None and before.is_state_of(state.tensor) else None


def _renewed(error: TmmuError) -> TmmuError:
    """The same error, with a traceback of its own."""
    return type(error)(error.what, fix=error.fix, **dict(error.fields))
