"""Groups as bytes from a process to its own child: operators by name, all else pickled. Never read from a file."""

import io
import pickle
from collections.abc import Sequence
from typing import Any

import torch

from tmmu.fusion.group import FusionGroup
from tmmu.torch_private import OpOverload


class _Pickler(pickle.Pickler):
    """Torch's operators hold code, which no process can hand to another: a name stands for one."""

    def persistent_id(self, value: Any) -> str | None:
        return str(value) if isinstance(value, OpOverload) else None


class _Unpickler(pickle.Unpickler):
    def persistent_load(self, name: Any) -> Any:
        namespace, packet, overload = name.split(".")
        return getattr(getattr(getattr(torch.ops, namespace), packet), overload)


def dump_groups(groups: Sequence[FusionGroup]) -> bytes:
    """The groups as bytes, for ``load_groups`` in a process of the same torch."""
    written = io.BytesIO()
    _Pickler(written).dump(tuple(groups))
    return written.getvalue()


def load_groups(data: bytes) -> tuple[FusionGroup, ...]:
    """The groups that ``dump_groups`` wrote. ``data`` is trusted: it comes from the process that started this one."""
    groups: tuple[FusionGroup, ...] = _Unpickler(io.BytesIO(data)).load()
    return groups
