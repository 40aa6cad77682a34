"""Kernels that a GPU launches, as an operator: ``tmmu_kernel::launch(int launcher, Tensor(a!)[] tensors) -> ()``.

A *launcher* is a function of this process, by number, that starts kernels on the tensors that it is given, in order, on
the current stream. Invariants: it allocates nothing and waits for nothing, so that a CUDA graph captures it; while one
is captured it compiles nothing, and raises ``RuntimeError`` where it would have to. Launchers last as long as the
process, as operators do.
"""

from collections.abc import Callable, Sequence
from threading import Lock
from typing import Any, Final, TypeAlias

import torch

NAMESPACE: Final = "tmmu_kernel"
Launcher: TypeAlias = Callable[[Sequence[torch.Tensor]], None]
_LAUNCHERS: Final[list[Launcher]] = []
_LOCK: Final = Lock()
_LIBRARY: Final = torch.library.Library(NAMESPACE, "FRAGMENT")  # type: ignore[no-untyped-call]
_LIBRARY.define("launch(int launcher, Tensor(a!)[] tensors) -> ()")  # type: ignore[no-untyped-call]


def add_launcher(launcher: Launcher) -> int:
    """The number of a launcher."""
    with _LOCK:
        _LAUNCHERS.append(launcher)
        return len(_LAUNCHERS) - 1


def launch_operator() -> Any:
    """``tmmu_kernel::launch``."""
    return torch.ops.tmmu_kernel.launch.default


def _launch(launcher: int, tensors: list[torch.Tensor]) -> None:
    _LAUNCHERS[launcher](tensors)


_LIBRARY.impl("launch", _launch, "CompositeExplicitAutograd")  # type: ignore[no-untyped-call]
