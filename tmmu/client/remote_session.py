"""A session from afar: a text under way, whose state lies on the server, and what of it is looked at."""

from collections.abc import Iterator, MutableMapping, Sequence
from contextvars import ContextVar, Token
from typing import TYPE_CHECKING, Any, Final

import torch

from tmmu.client.remote_value import RemoteValue, payload_of
from tmmu.errors import InvalidConfig, ServerGone, TmmuError
from tmmu.wire.session_messages import (
    CloseSession,
    DropValue,
    ForkSession,
    GenerateTokens,
    KeepValue,
    KeptList,
    ListKept,
    ReadTokens,
    SessionState,
    TokenPart,
)
from tmmu.wire.tensor_forms import TensorForm

if TYPE_CHECKING:
    from tmmu.client.remote_server import RemoteServer

CURRENT: Final[ContextVar["tuple[RemoteSession, ...]"]] = ContextVar("tmmu_remote_sessions", default=())
"""Sessions of the ``with`` blocks around, the innermost last."""
GENERATE_SECONDS: Final = 3600.0
"""For a text that names no deadline; a server that is gone is noticed long before."""


class RemoteSession:
    """Made by ``RemoteServer.session``, ``attach`` and ``fork``. ``id`` is all that ``attach`` needs; keep it secret.

    A context manager: within it, ghosts of its model generate in it; at the end it is closed.
    """

    def __init__(self, remote: "RemoteServer", state: SessionState) -> None:
        self._remote, self._state = remote, state
        self.id, self.model = state.session, state.model
        self.kept = RemoteKept(remote, self)
        """Values that it keeps under names, where ``keep=`` made room for them."""
        self.is_open = True
        self._tokens: list[Token[tuple[RemoteSession, ...]]] = []

    @property
    def length(self) -> int:
        """Tokens in its state, as of the last answer."""
        return self._state.length

    @property
    def capacity(self) -> int:
        """Tokens for which there is room."""
        return self._state.capacity

    @property
    def arena_bytes(self) -> int:
        """Bytes that it has on the server."""
        return self._state.arena_bytes

    @property
    def logits(self) -> RemoteValue:
        """``dtype[vocabulary]`` behind the last token, there; ``INVALID_CONFIG`` before the first."""
        if not self._state.length:
            raise InvalidConfig("the session has read no tokens", fix="give it a prompt")
        return RemoteValue(self._remote, self, epoch=self._state.epoch)

    def prefill(self, ids: Sequence[int] | torch.Tensor, *, deadline: float | None = None) -> RemoteValue:
        """Has a prompt read; the logits behind it stay there, and what is asked of them travels."""
        self._read(ids, deadline, is_source=False)
        return self.logits

    def decode(self, token: int, *, deadline: float | None = None) -> RemoteValue:
        """Has one more token read; as ``prefill``."""
        return self.prefill([token], deadline=deadline)

    def encode(self, source: Sequence[int] | torch.Tensor, *, deadline: float | None = None) -> None:
        """Has the encoder read a source; the text of the session begins anew."""
        self._read(source, deadline, is_source=True)

    def _read(self, ids: Sequence[int] | torch.Tensor, deadline: float | None, *, is_source: bool) -> None:
        header = ReadTokens(session=self.id, is_source=is_source)
        self._take(self._remote.request(header, [tokens_payload(ids)], deadline=deadline)[0])

    def generate(  # noqa: PLR0913 - as Session.generate
        self,
        ids: Sequence[int] | torch.Tensor | None = None,
        max_new_tokens: int = 64,
        *,
        temperature: float = 0.0,
        top_k: int = 0,
        top_p: float = 1.0,
        seed: int | None = None,
        stop: Sequence[int] | None = None,
        deadline: float | None = None,
    ) -> Iterator[int]:
        """Yields tokens as they are chosen there, as ``Session.generate`` does, with the same bits. ``deadline``: of
        the whole text, in seconds. The prompt is sent when the first token is taken; closing the iterator ends it.
        """
        try:
            header = GenerateTokens(
                session=self.id,
                count=max_new_tokens,
                temperature=float(temperature),
                top_k=top_k,
                top_p=float(top_p),
                seed=seed,
                stop=None if stop is None else tuple(int(token) for token in stop),
            )
        except (TypeError, ValueError, OverflowError) as error:
            raise InvalidConfig(
                f"what a text is to be: {error}", fix="give numbers, and whole ones to stop="
            ) from error
        payloads = [] if ids is None else [tokens_payload(ids)]
        stream = self._remote.connection.stream(
            header, payloads, deadline=GENERATE_SECONDS if deadline is None else deadline
        )
        try:
            for answer, _ in stream:
                if isinstance(answer, TokenPart):
                    yield answer.token
                else:
                    self._take(answer.state)  # type: ignore[attr-defined] # GenerateTokens names the class
        finally:
            stream.close()

    def fork(self) -> "RemoteSession":
        """A session that has read the same, and keeps the same; each goes on by itself."""
        state, _ = self._remote.request(ForkSession(session=self.id))
        return RemoteSession(self._remote, state)  # type: ignore[arg-type]

    def close(self) -> None:
        """Ends it: nothing of it is left on the server. Closing again does nothing."""
        if self.is_open:
            self._remote.request(CloseSession(session=self.id))
            self.is_open = False

    def __enter__(self) -> "RemoteSession":
        self._tokens.append(CURRENT.set((*CURRENT.get(), self)))
        return self

    def __exit__(self, kind: object, failure: object, trace: object) -> None:
        CURRENT.reset(self._tokens.pop())
        try:
            self.close()
        except ServerGone:
            pass  # it closes what is not there any more, or by its lease
        except TmmuError:
            if failure is None:  # what went wrong in the block says more
                raise

    def __repr__(self) -> str:
        return f"<RemoteSession of {self.model}: {self.length} of {self.capacity} tokens>"

    def _take(self, state: Any) -> None:
        self._state = state


class RemoteKept(MutableMapping[str, Any]):
    """Values of a session by name, there. Setting one sends it, logits of the session apart; reading one does not."""

    def __init__(self, remote: "RemoteServer", session: RemoteSession) -> None:
        self._remote, self._session = remote, session

    def __setitem__(self, name: str, value: "torch.Tensor | RemoteValue") -> None:
        if isinstance(value, RemoteValue):
            self._remote.request(KeepValue(session=self._session.id, name=name, epoch=value.epoch_of(self._session)))
            return
        if not isinstance(value, torch.Tensor):
            raise InvalidConfig(f"a value to keep of a {type(value).__name__}", fix="give a tensor, or session.logits")
        form = TensorForm(dtype=str(value.dtype).removeprefix("torch."), shape=tuple(value.shape))
        self._remote.request(KeepValue(session=self._session.id, name=name, form=form), [payload_of(value)])

    def __getitem__(self, name: str) -> RemoteValue:
        entry = next((entry for entry in self._entries().values if entry.name == name), None)
        if entry is None:
            raise InvalidConfig(f"the session keeps no {name!r:.40}", fix="see what list(session.kept) has")
        return RemoteValue(self._remote, self._session, epoch=entry.epoch, name=name)

    def __delitem__(self, name: str) -> None:
        self._remote.request(DropValue(session=self._session.id, name=name))

    def __iter__(self) -> Iterator[str]:
        return iter([entry.name for entry in self._entries().values])

    def __len__(self) -> int:
        return len(self._entries().values)

    def __contains__(self, name: object) -> bool:
        return name in list(self)

    def _entries(self) -> KeptList:
        header, _ = self._remote.request(ListKept(session=self._session.id))
        return header  # type: ignore[return-value] # ListKept names the class


def tokens_payload(ids: Sequence[int] | torch.Tensor) -> memoryview:
    """``int64[n]`` as bytes; ``INVALID_CONFIG`` for what are no tokens of one text."""
    try:
        tensor = ids if isinstance(ids, torch.Tensor) else torch.tensor(list(ids))
    except (TypeError, ValueError, RuntimeError) as error:
        raise InvalidConfig(
            f"tokens are {ids!r:.40}: {error}", fix="give whole numbers, or int64[1, tokens]"
        ) from error
    if tensor.dim() == 2 and tensor.shape[0] == 1:
        tensor = tensor[0]
    if tensor.dim() != 1 or not tensor.numel() or tensor.dtype not in (torch.int64, torch.int32):
        raise InvalidConfig(
            f"tokens are {str(tensor.dtype)[6:]}{list(tensor.shape)}", fix="give whole numbers, or int64[1, tokens]"
        )
    return payload_of(tensor.to(torch.int64))
