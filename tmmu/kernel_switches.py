"""Torch's switches that choose kernels: those that differ from torch's default, and blocks in which they do.

``torch.backends``, ``set_float32_matmul_precision`` and ``use_deterministic_algorithms`` decide which kernel runs an
operator: its bits, its own temporaries, whether it raises, and whether memory made empty is filled. The default dtype
is what a call makes that names none, and what integers become beside a fraction. None of this is in a graph, so every
captured call has the switches under which it was made, and runs under them (``Call.switches``).
What the attention switches and autocast choose is in the graph, as other operators.

A precision that nobody has set (``none``) is that of IEEE. Every run asks, so that what a state of the switches means
is worked out once.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import torch

from tmmu.ir.program import Switches
from tmmu.torch_private import (
    deterministic_switches,
    fp32_precision,
    set_cublas_tf32,
    set_cudnn_tf32,
    set_deterministic_switches,
    set_fp32_precision,
    switch_readers,
    switch_writers,
)

DETERMINISTIC: Final = "torch.use_deterministic_algorithms"
_DEFAULT_DTYPE: Final = "torch.get_default_dtype"
_OFF, _ON, _WARNS, _UNFILLED, _WARNS_UNFILLED = "off", "on", "warn_only", "on, unfilled", "warn_only, unfilled"
_UNCHANGED: Final = nullcontext()
_DETERMINISTIC_STATES: Final[Mapping[tuple[bool, bool, bool], str]] = {
    (True, False, True): _ON,
    (True, True, True): _WARNS,
    (True, False, False): _UNFILLED,
    (True, True, False): _WARNS_UNFILLED,
}
"""By (mode, warn_only, fill_uninitialized_memory); all others are off."""


@dataclass(frozen=True, slots=True)
class KernelSwitch:
    """One switch: how it is read and set, and what it is where nobody has touched it."""

    read: Callable[[], Any]
    write: Callable[[Any], Any]
    default: Any


def current_switches(target: str) -> Switches:
    """Name and value of each switch that differs from torch's default, of those that act on ``target``."""
    state = tuple([read() for read in _READERS[target]])
    switches = _SEEN[target].get(state)
    if switches is None:
        values = [(name, switch.read(), switch.default) for name, switch in _TABLES[target]]
        switches = tuple((name, value) for name, value, default in values if value != default)
        _SEEN[target][state] = switches
    return switches


def under_switches(switches: Switches, target: str) -> AbstractContextManager[None]:
    """Block, begun at once, in which exactly these switches differ from torch's defaults; then they are as before."""
    before = current_switches(target)
    return _UNCHANGED if before == switches else _changed_switches(switches, before, target)


@contextmanager
def _changed_switches(switches: Switches, before: Switches, target: str) -> Iterator[None]:
    with _matmul_precision_restored():
        set_switches(switches, target)
        try:
            yield
        finally:
            set_switches(before, target)


def set_switches(switches: Switches, target: str) -> None:
    """From now on exactly these switches differ from torch's defaults, of those that act on ``target``."""
    values = dict(switches)
    for name, switch in _TABLES[target]:
        value = values.get(name, switch.default)
        if value != switch.read():
            switch.write(value)


@contextmanager
def switches_restored(target: str) -> Iterator[None]:
    """Block after which the switches that act on ``target`` are as before, whatever it has set."""
    before = current_switches(target)
    with _matmul_precision_restored():
        try:
            yield
        finally:
            set_switches(before, target)


def with_switches(function: Callable[[], object], switches: Switches, target: str) -> Callable[[], object]:
    """The function, run under these switches."""

    def run() -> object:
        with under_switches(switches, target):
            return function()

    return run


def is_deterministic(switches: Switches) -> bool:
    """Whether an operator without a deterministic kernel raises."""
    return dict(switches).get(DETERMINISTIC) in {_ON, _UNFILLED}


def fills_empty_memory(switches: Switches) -> bool:
    """Whether memory that is made empty is filled: NaN, or the largest number of an integer dtype."""
    return dict(switches).get(DETERMINISTIC) in {_ON, _WARNS}


def describe_switches(switches: Switches) -> str:
    """``torch.backends.cudnn.benchmark=True, ...``."""
    return ", ".join(f"{name}={value}" for name, value in switches)


@contextmanager
def _matmul_precision_restored() -> Iterator[None]:
    """Block that may set precisions of products; the old name of the switch agrees with the new ones if it did."""
    raw = {backend: fp32_precision(backend, "matmul") for backend in ("mkldnn", "cuda")}
    old_name = _old_name_now()
    yield
    if old_name is not None and old_name != _old_name_now():
        torch.set_float32_matmul_precision(old_name)
    for backend, value in raw.items():
        if fp32_precision(backend, "matmul") != value:
            set_fp32_precision(backend, "matmul", value)


def _old_name_now() -> str | None:
    """``None`` where old and new names were mixed: torch itself cannot say then."""
    try:
        return torch.get_float32_matmul_precision()
    except RuntimeError:
        return None


def _precision(backend: str, operation: str, default: str = "ieee") -> tuple[str, KernelSwitch]:
    def read() -> str:
        value = fp32_precision(backend, operation)
        return "ieee" if value == "none" else value

    switch = KernelSwitch(read, partial(set_fp32_precision, backend, operation), default)
    package = f"torch.backends.{'cudnn' if backend == 'cuda' else backend}"
    return f"{package}.{operation}.fp32_precision", switch


def _cudnn_precision(operation: str) -> tuple[str, KernelSwitch]:
    """Where both of cuDNN's precisions are one, the old name of the two is told, which torch compares with them."""
    name, switch = _precision("cuda", operation, "tf32")

    def write(value: str) -> None:
        switch.write(value)
        one_value = {fp32_precision("cuda", each) for each in ("conv", "rnn")}
        if one_value in ({"tf32"}, {"ieee"}):
            set_cudnn_tf32(value == "tf32")

    return name, KernelSwitch(switch.read, write, switch.default)


def _cublas_precision() -> tuple[str, KernelSwitch]:
    _, switch = _precision("cuda", "matmul")
    return "torch.backends.cuda.matmul.fp32_precision", KernelSwitch(
        switch.read, lambda value: set_cublas_tf32(value == "tf32"), "ieee"
    )


def _named(name: str, *, default: object) -> tuple[str, KernelSwitch]:
    write = switch_writers[name]
    if isinstance(default, tuple):
        return name, KernelSwitch(switch_readers[name], lambda value: write(*value), default)
    return name, KernelSwitch(switch_readers[name], write, default)


def _read_deterministic() -> str:
    mode, warn_only, fill = (read() for read in deterministic_switches)
    return _DETERMINISTIC_STATES.get((mode, warn_only, fill), _OFF)


def _write_deterministic(state: str) -> None:
    modes = {name: mode for mode, name in _DETERMINISTIC_STATES.items()}
    set_deterministic_switches(*modes.get(state, (False, False, True)))


def _read_default_dtype() -> str:
    return str(torch.get_default_dtype()).removeprefix("torch.")


def _write_default_dtype(name: str) -> None:
    torch.set_default_dtype(getattr(torch, name))


_ANYWHERE: Final = (
    (DETERMINISTIC, KernelSwitch(_read_deterministic, _write_deterministic, _OFF)),
    (_DEFAULT_DTYPE, KernelSwitch(_read_default_dtype, _write_default_dtype, "float32")),
)
_TABLES: Final[Mapping[str, tuple[tuple[str, KernelSwitch], ...]]] = {
    "cpu": (
        *_ANYWHERE,
        _precision("mkldnn", "matmul"),
        _precision("mkldnn", "conv"),
        _precision("mkldnn", "rnn"),
        _named("torch.backends.mkldnn.enabled", default=True),
        _named("torch.backends.mkldnn.deterministic", default=False),
        _named("torch.backends.nnpack.enabled", default=True),
    ),
    "cuda": (
        *_ANYWHERE,
        _cublas_precision(),
        _cudnn_precision("conv"),
        _cudnn_precision("rnn"),
        _named("torch.backends.cudnn.enabled", default=True),
        _named("torch.backends.cudnn.benchmark", default=False),
        _named("torch.backends.cudnn.deterministic", default=False),
        _named("torch.backends.cuda.matmul.allow_fp16_accumulation", default=False),
        _named("torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction", default=(True, True)),
        _named("torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction", default=(True, True)),
    ),
}
"""By target, in the order in which they are named."""


def _readers_of(target: str) -> tuple[Callable[[], Any], ...]:
    """What tells one state of the switches from another, each a function of C."""
    backend = "mkldnn" if target == "cpu" else "cuda"
    precisions = [partial(fp32_precision, backend, operation) for operation in ("matmul", "conv", "rnn")]
    named = [switch_readers[name] for name, _ in _TABLES[target] if name in switch_readers]
    return (*deterministic_switches, torch.get_default_dtype, *precisions, *named)


_READERS: Final = {target: _readers_of(target) for target in _TABLES}
_SEEN: Final[Mapping[str, dict[tuple[Any, ...], Switches]]] = {target: {} for target in _TABLES}
