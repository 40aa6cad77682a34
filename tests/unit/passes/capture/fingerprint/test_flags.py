import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import nn
from torch.backends import opt_einsum
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from tests.unit.passes.nets import Net, digest, multiplier, refusal

BASE = digest(Net())


@contextmanager
def switched(turn: Callable[[], object], back: Callable[[], object]) -> Iterator[None]:
    turn()
    try:
        yield
    finally:
        back()


def pair(switch: Callable[[Any], object], on: Any, off: Any) -> tuple[Callable[[], object], Callable[[], object]]:
    return functools.partial(switch, on), functools.partial(switch, off)


def as_at_first() -> None:
    """The precision of products is what it was before anybody set it."""
    torch.set_float32_matmul_precision("highest")
    for backend in ("cuda", "mkldnn"):
        torch._C._set_fp32_precision_setter(backend, "matmul", "none")


FLAGS = {
    "default dtype": pair(torch.set_default_dtype, torch.float64, torch.float32),
    "deterministic": pair(torch.use_deterministic_algorithms, True, False),
    "precision of products": (functools.partial(torch.set_float32_matmul_precision, "high"), as_at_first),
    "flash attention": pair(torch.backends.cuda.enable_flash_sdp, False, True),
    "efficient attention": pair(torch.backends.cuda.enable_mem_efficient_sdp, False, True),
    "mathematical attention": pair(torch.backends.cuda.enable_math_sdp, False, True),
    "grad": pair(torch._C._set_grad_enabled, False, True),
    "autocast": pair(functools.partial(torch.set_autocast_enabled, "cpu"), True, False),
    "autocast on a GPU": pair(functools.partial(torch.set_autocast_enabled, "cuda"), True, False),
    "autocast dtype": pair(functools.partial(torch.set_autocast_dtype, "cpu"), torch.float16, torch.bfloat16),
    "short sums": pair(functools.partial(setattr, torch.backends.cuda.matmul, "allow_fp16_accumulation"), True, False),
    "precision of recurrence": pair(
        functools.partial(torch._C._set_fp32_precision_setter, "mkldnn", "rnn"), "ieee", "none"
    ),
    "fast path": pair(torch.backends.mha.set_fastpath_enabled, False, True),
}


@pytest.mark.parametrize("name", FLAGS)
def test_a_switch_of_torch_counts(name: str) -> None:
    turn, back = FLAGS[name]
    args = (torch.zeros(2, 4),)
    net = Net()
    with switched(turn, back):
        assert digest(net, *args) != BASE
    assert digest(net, *args) == BASE


SETTINGS = [
    (opt_einsum, "enabled", "never"),
    (opt_einsum, "strategy", "greedy"),
    (torch.backends.cudnn, "deterministic", True),
    (torch.backends.mkldnn, "deterministic", True),
]


@pytest.mark.parametrize(("owner", "name", "value"), SETTINGS)
def test_a_setting_of_a_backend_counts(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, value: Any) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(owner, name, value)
        assert digest(Net()) != BASE
    assert digest(Net()) == BASE


def test_hooks_of_every_module_count() -> None:
    handle = nn.modules.module.register_module_forward_hook(multiplier(2.0))
    try:
        assert digest(Net()) != BASE
    finally:
        handle.remove()
    assert digest(Net()) == BASE


def test_which_hooks_of_what_is_saved_are_on_counts() -> None:
    found = [BASE]
    for dtype in (torch.float16, torch.float64, torch.float64):
        with torch.autograd.graph.saved_tensors_hooks(lambda t, dtype=dtype: t.to(dtype), lambda t: t):
            found.append(digest(Net()))
    assert found[2] == found[3]
    assert len(set(found)) == 3


class Calls(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


class Operators(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("mode", [Calls, Operators])
def test_a_mode_of_the_user_s_that_is_on_for_all_code_has_none(mode: type[Any]) -> None:
    with mode():
        why = refusal(Net())
    assert f"a mode of class {mode.__name__}" in why
    assert digest(Net()) == BASE


def by_library(library: torch.library.Library) -> None:
    library.impl("erfinv", lambda x: x, "AutogradCPU", allow_override=True)


def by_decorator(library: torch.library.Library) -> None:
    torch.library.impl("aten::erfinv", "AutogradCPU", lambda x: x, lib=library)


@pytest.mark.parametrize("register", [by_library, by_decorator])
@pytest.mark.filterwarnings("ignore:Warning only once")
def test_a_kernel_in_python_for_an_operator_of_torch_has_none(register: Callable[[Any], None]) -> None:
    with torch.library._scoped_library("aten", "IMPL") as library:
        register(library)
        assert "aten::erfinv" in refusal(Net())
    assert digest(Net()) == BASE
