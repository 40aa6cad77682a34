"""Messages from rank to rank in planned memory: each is under way until its own tensor is waited for.

Torch's operators would wait for all messages on one storage at once, and planned tensors share one: a rank could wait
for a message that another sends only after it has one of this rank's later ones.

State: ``_UNDER_WAY`` has what is under way by the address of its first byte.
"""

from typing import Any, Final

import torch

NAMESPACE: Final = "tmmu_messages"
_LIBRARY: Final = torch.library.Library(NAMESPACE, "DEF")  # type: ignore[no-untyped-call]
_GROUP: Final = "__torch__.torch.classes.c10d.ProcessGroup process_group"
_UNDER_WAY: Final[dict[int, list[Any]]] = {}


def _send(tensor: torch.Tensor, process_group: Any, peer: int, tag: int) -> None:
    group = torch.distributed.ProcessGroup.unbox(process_group)
    _UNDER_WAY.setdefault(tensor.data_ptr(), []).append(group.send([tensor], peer, tag))


def _receive(tensor: torch.Tensor, process_group: Any, peer: int, tag: int) -> None:
    group = torch.distributed.ProcessGroup.unbox(process_group)
    _UNDER_WAY.setdefault(tensor.data_ptr(), []).append(group.recv([tensor], peer, tag))


def _wait(tensor: torch.Tensor) -> None:
    """Each is taken off first: one that fails is waited for by no later run."""
    for message in _UNDER_WAY.pop(tensor.data_ptr(), ()):
        message.wait()


if torch.distributed.is_available():
    _LIBRARY.define(f"send(Tensor tensor, {_GROUP}, int peer, int tag) -> ()")  # type: ignore[no-untyped-call]
    _LIBRARY.define(f"receive(Tensor(a!) tensor, {_GROUP}, int peer, int tag) -> ()")  # type: ignore[no-untyped-call]
    _LIBRARY.define("wait(Tensor(a!) tensor) -> ()")  # type: ignore[no-untyped-call]
    for _name, _function in (("send", _send), ("receive", _receive), ("wait", _wait)):
        _LIBRARY.impl(_name, _function, "CompositeExplicitAutograd")  # type: ignore[no-untyped-call]
