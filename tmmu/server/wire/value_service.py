"""What a client looks at and keeps: logits and values of its sessions. What it asks of them runs here, and travels."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from tmmu.errors import InvalidRequest
from tmmu.server.wire.model_service import require_no_payloads
from tmmu.server.wire.session_record import SessionRecord
from tmmu.server.wire.session_table import SessionTable
from tmmu.wire.interface import Message, Payloads, Peer, RequestHeader, ServiceCall
from tmmu.wire.session_messages import (
    DropValue,
    IndexStep,
    KeepValue,
    ListKept,
    LookAtValue,
    ReduceStep,
    SliceStep,
    TensorsAnswer,
    TopStep,
    ValueStep,
)
from tmmu.wire.tensor_forms import TensorForm, require_form

if TYPE_CHECKING:
    import torch

_INTEGERS: Final = frozenset({"argmax", "argmin", "amax", "amin", "sum"})
"""What integers have as well as floats."""


class ValueService:
    """Values of the sessions of a table."""

    requests = (LookAtValue, KeepValue, ListKept, DropValue)

    def __init__(self, table: SessionTable) -> None:
        self._table = table
        self._answers: Mapping[type, Callable[[Any, Payloads, SessionRecord], Message]] = {
            LookAtValue: _look,
            KeepValue: _keep,
            ListKept: _list,
            DropValue: _drop,
        }

    def answer(self, header: RequestHeader, payloads: Payloads, call: ServiceCall) -> Message:
        """``REFERENCE_STALE`` for what is another by now, ``SESSION_UNKNOWN`` for sessions of others."""
        record = self._table.find(header.session, call.peer)  # type: ignore[attr-defined] # all of them have one
        with record.turn():
            return self._answers[type(header)](header, payloads, record)

    def connection_lost(self, peer: Peer) -> None:
        """The table is told by the service of sessions."""


def _look(header: LookAtValue, payloads: Payloads, record: SessionRecord) -> Message:
    require_no_payloads(payloads)
    from tmmu.runtime.memory.tensor_bytes import tensor_payload  # noqa: PLC0415 - torch comes with the engine

    value = record.value(header.name, header.epoch)
    tensors = apply_steps(value, header.steps)
    is_operand = False
    if header.steps and isinstance(header.steps[-1], TopStep):
        operand = apply_steps(value, header.steps[:-1])
        is_operand = sum(each.nbytes for each in tensors) > operand[0].nbytes
        tensors = operand if is_operand else tensors
    forms = tuple(TensorForm(dtype=str(each.dtype).removeprefix("torch."), shape=tuple(each.shape)) for each in tensors)
    answer = TensorsAnswer(forms=forms, value_bytes=value.nbytes, is_operand=is_operand)
    return answer, [tensor_payload(each) for each in tensors]


def _keep(header: KeepValue, payloads: Payloads, record: SessionRecord) -> Message:
    from tmmu.runtime.memory.tensor_bytes import tensor_over  # noqa: PLC0415 - torch comes with the engine

    if header.form is None:
        require_no_payloads(payloads)
        record.keep(header.name, record.value("", header.epoch))
    elif len(payloads) != 1:
        raise InvalidRequest("a value without bytes", fix="send one payload")
    else:
        require_form(header.form, payloads[0])
        record.keep(header.name, tensor_over(payloads[0], header.form.dtype, header.form.shape))
    return record.kept_list, ()


def _list(header: ListKept, payloads: Payloads, record: SessionRecord) -> Message:  # noqa: ARG001 - as the others
    require_no_payloads(payloads)
    return record.kept_list, ()


def _drop(header: DropValue, payloads: Payloads, record: SessionRecord) -> Message:
    require_no_payloads(payloads)
    record.drop(header.name)
    return record.kept_list, ()


def apply_steps(tensor: "torch.Tensor", steps: tuple[ValueStep, ...]) -> "tuple[torch.Tensor, ...]":
    """What the steps make of a tensor, one after the other. ``INVALID_REQUEST`` for one that it does not take."""
    for number, step in enumerate(steps, 1):
        try:
            if isinstance(step, TopStep):
                if number < len(steps):
                    raise InvalidRequest("a step behind topk", fix="have topk be the last")
                return tuple(tensor.topk(step.k, step.dim))
            tensor = _apply(tensor, step)
        except (RuntimeError, IndexError) as error:
            reason = " ".join(str(error).split())[:200]
            raise InvalidRequest(f"step {number}: {reason}", fix="ask for what the value has") from error
    return (tensor,)


def _apply(tensor: "torch.Tensor", step: IndexStep | SliceStep | ReduceStep) -> "torch.Tensor":
    if isinstance(step, IndexStep):
        return tensor.select(step.dim, step.index)
    if isinstance(step, SliceStep):
        index = [slice(None)] * tensor.dim()
        index[step.dim] = slice(step.start, step.stop, step.step)
        return tensor[tuple(index)]
    if not tensor.dtype.is_floating_point and step.name not in _INTEGERS:
        raise InvalidRequest(f"{step.name} of {str(tensor.dtype)[6:]}", fix="ask it of floats")
    options = {} if step.dim is None else {"dim": step.dim, "keepdim": step.keepdim}
    result: torch.Tensor = getattr(tensor, step.name)(**options)
    return result
