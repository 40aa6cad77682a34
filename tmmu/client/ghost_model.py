"""A ghost: a module with the names, dtypes and shapes of a model's weights and none of their bytes; it runs there."""

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any
from weakref import finalize

import torch

from tmmu.client.remote_session import CURRENT, RemoteSession, tokens_payload
from tmmu.client.remote_value import RemoteValue
from tmmu.errors import InvalidConfig
from tmmu.wire.model_messages import LoadedModel
from tmmu.wire.session_messages import CloseSession, ForwardTokens

if TYPE_CHECKING:
    from tmmu.client.remote_server import RemoteServer


class GhostOutput:
    """What a ghost returns. ``logits``: ``dtype[vocabulary]`` behind the last token, there.

    They lie in a session of their own, which ends when nobody has the output or its logits any more.
    """

    def __init__(self, remote: "RemoteServer", session: RemoteSession) -> None:
        self.session = session
        self.logits: RemoteValue = session.logits
        finalize(session, remote.post, CloseSession(session=session.id))


class GhostModel(torch.nn.Module):
    """Made by ``RemoteServer.load``. Its parameters are on meta, tied ones are one.

    ``ghost(ids)`` reads tokens in one round trip, ``ghost.generate(ids)`` has them followed.
    """

    def __init__(self, remote: "RemoteServer", form: LoadedModel, config: bytes) -> None:
        super().__init__()
        self.remote, self.entry, self.name = remote, form.entry, form.entry.name
        self._config = config
        tensors: dict[str, torch.Tensor] = {}
        for weight in form.weights:
            if weight.tied not in tensors:
                empty = torch.empty(weight.shape, dtype=getattr(torch, weight.dtype), device="meta")
                tensors[weight.tied] = empty if weight.is_buffer else torch.nn.Parameter(empty, requires_grad=False)
            _place(self, weight.name, tensors[weight.tied])
        self.eval()

    @property
    def config(self) -> Any:
        """The configuration, of transformers where it is installed."""
        try:
            from transformers import AutoConfig  # noqa: PLC0415 - seconds to import
        except ImportError:
            return json.loads(self._config)
        return AutoConfig.for_model(**json.loads(self._config))

    def forward(self, input_ids: Sequence[int] | torch.Tensor, *, deadline: float | None = None) -> GhostOutput:
        """Has tokens read, ``int64[tokens]`` or ``int64[1, tokens]``; the logits stay there."""
        header = ForwardTokens(model=self.name)
        state, _ = self.remote.request(header, [tokens_payload(input_ids)], deadline=deadline)
        return GhostOutput(self.remote, RemoteSession(self.remote, state))  # type: ignore[arg-type]

    def session(self, **options: Any) -> RemoteSession:
        """A session of this model: ``RemoteServer.session``."""
        return self.remote.session(self, **options)

    def generate(self, ids: Sequence[int] | torch.Tensor, max_new_tokens: int = 64, **options: Any) -> torch.Tensor:
        """``int64[1, tokens]``: the prompt and what follows it, as transformers returns them.

        In the session of the ``with`` block around, where it is one of this model; else in one of its own. Options are
        those of ``RemoteSession.generate``.
        """
        prompt = torch.frombuffer(tokens_payload(ids), dtype=torch.int64)
        if self.entry.encodes:
            raise InvalidConfig("the model encodes its prompt", fix="have a session encode it, and generate")
        current = next((each for each in reversed(CURRENT.get()) if each.model == self.name), None)
        if current is not None:
            tokens = list(current.generate(prompt, max_new_tokens, **options))
        else:
            room = min(len(prompt) + max_new_tokens, self.entry.longest)
            with self.session(expected_tokens=room) as session:
                tokens = list(session.generate(prompt, max_new_tokens, **options))
        return torch.cat((prompt, torch.tensor(tokens, dtype=torch.int64)))[None]


def _place(module: torch.nn.Module, name: str, tensor: torch.Tensor) -> None:
    """Puts a weight where its name says, with the modules that it names."""
    *path, leaf = name.split(".")
    for part in path:
        if part not in dict(module.named_children()):
            module.add_module(part, torch.nn.Module())
        module = module.get_submodule(part)
    if isinstance(tensor, torch.nn.Parameter):
        module.register_parameter(leaf, tensor)
    else:
        module.register_buffer(leaf, tensor)
