"""Messages from rank to rank (``isend``, ``irecv``): what is under way is read or written until it is waited for.

Torch's operators begin a message and return; the wait is no operator, so that a trace without one would give away the
memory of a message that is under way. Here each wait is ``_c10d_functional.wait_tensor`` of what the message holds.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from typing import Any

import torch


@contextmanager
def messages_awaited() -> Iterator[None]:
    """Block in which the wait for a message is a call that reads what is sent and writes what is received."""
    distributed = torch.distributed
    if not distributed.is_available():
        yield
        return
    group_class = distributed.ProcessGroup
    methods = {name: vars(group_class)[name] for name in ("send", "recv")}  # as they lie there: what binds them to self
    try:
        for name in methods:
            setattr(group_class, name, _noting_tensors(getattr(group_class, name)))
        yield
    finally:
        for name, method in methods.items():
            setattr(group_class, name, method)


def _noting_tensors(begin: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(begin)
    def begin_message(group: Any, tensors: Sequence[torch.Tensor], *args: Any, **kwargs: Any) -> "Message":
        return Message(begin(group, tensors, *args, **kwargs), tensors)

    return begin_message


class Message:
    """A message under way. Like torch's own handle it holds its tensors until it is let go."""

    def __init__(self, work: Any, tensors: Sequence[torch.Tensor]) -> None:
        self._work = work
        self._tensors = tuple(tensors)

    def wait(self, *args: Any, **kwargs: Any) -> bool:
        """What it holds may be read and written afterwards."""
        self._work.wait(*args, **kwargs)
        with torch.no_grad():
            for tensor in self._tensors:
                torch.ops._c10d_functional.wait_tensor.default(tensor.detach())
        return True

    def __getattr__(self, name: str) -> Any:
        return getattr(self._work, name)
