"""Kernels that a program registered in Python for torch's own operators: no object shows that they run instead."""

import re
import weakref
from collections.abc import Iterator
from typing import Final

import torch
from torch.library import Library

from tmmu.passes.capture.fingerprint.homes import home_of_file
from tmmu.passes.capture.fingerprint.walker import Walker

_TORCHS: Final = frozenset({"aten", "_"})
"""The namespace of torch's operators, and that of fallbacks for all operators."""
_PLACE: Final = re.compile(r"registered at (.*\.py):\d+")
_BY_DECORATOR: Final = re.compile(r"[/\\]torch[/\\]library\.py$")
"""Where torch says that a kernel is from which a decorator registered; torch's own are never made so."""


def kernels(w: Walker) -> None:
    """Refuses the user's; those of an installed library are told by that."""
    for library in _libraries():
        if library.ns == "_" or library._registration_handles:
            w.refuse("a kernel or a rule of gradients in Python, registered for an operator of torch,")
        for name in sorted(library._op_impls)[:1]:  # all of one library object are registered by one file
            for place in sorted(_places(name)):
                home = home_of_file(place)
                if home is None or _BY_DECORATOR.search(place):
                    w.refuse(f"a kernel in Python for {name.rpartition('/')[0].replace('/', '::')}")
                if home != "torch":
                    w.library(home, "kernels", "", "")


def _libraries() -> Iterator[Library]:
    """The objects through which Python code has registered kernels for torch's operators."""
    for entry in list(weakref.finalize._registry.values()):  # type: ignore[attr-defined]
        found = entry.weakref()
        if isinstance(found, Library) and found.ns in _TORCHS and found.m is not None:
            yield found


def _places(name: str) -> set[str]:
    """The Python files that registered kernels for the operator of ``namespace/operator/key``."""
    namespace, operator, _ = name.split("/")
    return set(_PLACE.findall(torch._C._dispatch_dump(f"{namespace}::{operator}")))
