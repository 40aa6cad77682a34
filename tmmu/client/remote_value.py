"""A value that lies on the server: what is asked of it runs there, and only that travels."""

from typing import TYPE_CHECKING, Any

import torch

from tmmu.errors import InvalidConfig
from tmmu.runtime.memory.tensor_bytes import tensor_over, tensor_payload
from tmmu.wire.session_messages import IndexStep, LookAtValue, ReduceStep, SliceStep, TensorsAnswer, TopStep, ValueStep
from tmmu.wire.tensor_forms import require_form

if TYPE_CHECKING:
    from tmmu.client.remote_server import RemoteServer
    from tmmu.client.remote_session import RemoteSession


class RemoteValue:
    """Logits of a session, or a value that it keeps, as of one epoch, with indices that were asked of it.

    ``argmax``, ``norm`` and the like, and ``topk``, give tensors; so does ``tensor()``, which sends all of it.
    Slices and indices are values again, and nothing travels for them. ``REFERENCE_STALE`` once the session went on, or
    the value was replaced.
    """

    def __init__(
        self,
        remote: "RemoteServer",
        session: "RemoteSession",
        *,
        epoch: int,
        name: str = "",
        steps: tuple[ValueStep, ...] = (),
    ) -> None:
        self._remote, self._session, self._epoch, self._name, self._steps = remote, session, epoch, name, steps

    def argmax(self, dim: int | None = None, *, keepdim: bool = False) -> torch.Tensor:
        """``int64``: where the largest value is."""
        return self._reduce("argmax", dim, keepdim=keepdim)

    def argmin(self, dim: int | None = None, *, keepdim: bool = False) -> torch.Tensor:
        """``int64``: where the smallest value is."""
        return self._reduce("argmin", dim, keepdim=keepdim)

    def amax(self, dim: int | None = None, *, keepdim: bool = False) -> torch.Tensor:
        """The largest value."""
        return self._reduce("amax", dim, keepdim=keepdim)

    def amin(self, dim: int | None = None, *, keepdim: bool = False) -> torch.Tensor:
        """The smallest value."""
        return self._reduce("amin", dim, keepdim=keepdim)

    def sum(self, dim: int | None = None, *, keepdim: bool = False) -> torch.Tensor:
        """The sum."""
        return self._reduce("sum", dim, keepdim=keepdim)

    def mean(self, dim: int | None = None, *, keepdim: bool = False) -> torch.Tensor:
        """The mean."""
        return self._reduce("mean", dim, keepdim=keepdim)

    def norm(self, dim: int | None = None, *, keepdim: bool = False) -> torch.Tensor:
        """The square root of the sum of squares."""
        return self._reduce("norm", dim, keepdim=keepdim)

    def topk(self, k: int, dim: int = -1) -> tuple[torch.Tensor, torch.Tensor]:
        """The ``k`` largest values of a dimension, and where they are."""
        values, places = self._look(TopStep(k=k, dim=dim))
        return values, places

    def tensor(self) -> torch.Tensor:
        """All of it, here."""
        return self._look()[0]

    def cpu(self) -> torch.Tensor:
        """``tensor``."""
        return self.tensor()

    def item(self) -> Any:
        """The only value of it, as a number."""
        return self.tensor().item()

    def tolist(self) -> Any:
        """All of it, as numbers."""
        return self.tensor().tolist()

    def __getitem__(self, index: Any) -> "RemoteValue":
        steps, dim = list(self._steps), 0
        for part in index if isinstance(index, tuple) else (index,):
            if isinstance(part, slice):
                if part != slice(None):
                    step = 1 if part.step is None else part.step
                    steps.append(SliceStep(dim=dim, start=part.start, stop=part.stop, step=step))
                dim += 1
            elif isinstance(part, int) and not isinstance(part, bool):
                steps.append(IndexStep(dim=dim, index=part))
            else:
                raise InvalidConfig(f"an index {part!r:.40} from afar", fix="give whole numbers and slices")
        return RemoteValue(self._remote, self._session, epoch=self._epoch, name=self._name, steps=tuple(steps))

    def epoch_of(self, session: "RemoteSession") -> int:
        """The epoch of the logits of ``session``, whole; ``INVALID_CONFIG`` where it is anything else."""
        if self._session.id != session.id or self._name or self._steps:
            raise InvalidConfig("only a session's own logits are kept there", fix="keep the tensor() of it")
        return self._epoch

    def __repr__(self) -> str:
        return f"<RemoteValue: {self._name or 'logits'} of {self._session!r}>"

    def _reduce(self, name: Any, dim: int | None, *, keepdim: bool) -> torch.Tensor:
        return self._look(ReduceStep(name=name, dim=dim, keepdim=keepdim))[0]

    def _look(self, *steps: ValueStep) -> list[torch.Tensor]:
        """What the steps make there; ``topk`` here, where the value is fewer bytes than so many of its values."""
        header = LookAtValue(session=self._session.id, epoch=self._epoch, name=self._name, steps=(*self._steps, *steps))
        answer, payloads = self._remote.request(header)
        tensors = tensors_of(answer, payloads)
        is_operand: bool = answer.is_operand  # type: ignore[attr-defined] # LookAtValue names the class
        self._remote.counts.note(
            answer.value_bytes,  # type: ignore[attr-defined]
            sum(map(len, payloads)),
            is_local=is_operand,
        )
        last = steps[-1] if steps else None
        return list(tensors[0].topk(last.k, last.dim)) if is_operand and isinstance(last, TopStep) else tensors


def tensors_of(answer: Any, payloads: Any) -> list[torch.Tensor]:
    """The tensors of an answer, over the memory in which they were received."""
    assert isinstance(answer, TensorsAnswer)
    tensors = []
    for form, payload in zip(answer.forms, payloads, strict=True):
        require_form(form, payload)
        tensors.append(tensor_over(payload, form.dtype, form.shape))
    return tensors


def payload_of(tensor: torch.Tensor) -> memoryview:
    """The bytes of a dense tensor; ``INVALID_CONFIG`` for anything else."""
    if (
        not isinstance(tensor, torch.Tensor)
        or tensor.is_meta
        or tensor.layout is not torch.strided
        or tensor.is_quantized
    ):
        raise InvalidConfig(f"a {type(tensor).__name__} without dense values", fix="give a dense tensor")
    return tensor_payload(tensor)
