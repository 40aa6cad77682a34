"""Switches that choose kernels: what differs from torch's default is read, and set for a block alone."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from tmmu.kernel_switches import current_switches, set_switches, under_switches


@pytest.fixture(autouse=True)
def switches_as_before() -> Iterator[None]:
    assert not current_switches("cpu")
    assert not current_switches("cuda")
    yield
    torch.set_float32_matmul_precision("highest")
    set_switches((), "cpu")
    set_switches((), "cuda")


def set_attribute(owner: Any, name: str, value: object) -> Callable[[], None]:
    return lambda: setattr(owner, name, value)


backends: Any = torch.backends
SETTERS: dict[str, tuple[Callable[[], Any], dict[str, tuple[tuple[str, Any], ...]]]] = {
    "high": (
        lambda: torch.set_float32_matmul_precision("high"),
        {
            "cpu": (("torch.backends.mkldnn.matmul.fp32_precision", "tf32"),),
            "cuda": (("torch.backends.cuda.matmul.fp32_precision", "tf32"),),
        },
    ),
    "medium": (
        lambda: torch.set_float32_matmul_precision("medium"),
        {
            "cpu": (("torch.backends.mkldnn.matmul.fp32_precision", "bf16"),),
            "cuda": (("torch.backends.cuda.matmul.fp32_precision", "tf32"),),
        },
    ),
    "default dtype": (
        lambda: torch.set_default_dtype(torch.bfloat16),
        dict.fromkeys(("cpu", "cuda"), (("torch.get_default_dtype", "bfloat16"),)),
    ),
    "highest": (lambda: torch.set_float32_matmul_precision("highest"), {"cpu": (), "cuda": ()}),
    "allow_tf32": (
        set_attribute(backends.cuda.matmul, "allow_tf32", True),
        {"cpu": (), "cuda": (("torch.backends.cuda.matmul.fp32_precision", "tf32"),)},
    ),
    "fp16": (
        set_attribute(backends.cuda.matmul, "allow_fp16_reduced_precision_reduction", False),
        {
            "cpu": (),
            "cuda": (("torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction", (False, True)),),
        },
    ),
    "benchmark": (
        set_attribute(backends.cudnn, "benchmark", True),
        {"cpu": (), "cuda": (("torch.backends.cudnn.benchmark", True),)},
    ),
    "cudnn": (
        set_attribute(backends.cudnn, "enabled", False),
        {"cpu": (), "cuda": (("torch.backends.cudnn.enabled", False),)},
    ),
    "no tf32 of cudnn": (
        set_attribute(backends.cudnn, "allow_tf32", False),
        {
            "cpu": (),
            "cuda": (
                ("torch.backends.cudnn.conv.fp32_precision", "ieee"),
                ("torch.backends.cudnn.rnn.fp32_precision", "ieee"),
            ),
        },
    ),
    "mkldnn": (
        lambda: torch._C._set_mkldnn_enabled(False),
        {"cpu": (("torch.backends.mkldnn.enabled", False),), "cuda": ()},
    ),
    "conv": (
        set_attribute(backends.mkldnn.conv, "fp32_precision", "bf16"),
        {"cpu": (("torch.backends.mkldnn.conv.fp32_precision", "bf16"),), "cuda": ()},
    ),
    "deterministic": (
        lambda: torch.use_deterministic_algorithms(True),
        dict.fromkeys(("cpu", "cuda"), (("torch.use_deterministic_algorithms", "on"),)),
    ),
    "warn": (
        lambda: torch.use_deterministic_algorithms(True, warn_only=True),
        dict.fromkeys(("cpu", "cuda"), (("torch.use_deterministic_algorithms", "warn_only"),)),
    ),
}


@pytest.mark.parametrize("name", SETTERS)
def test_switches_are_read_where_they_differ_and_are_set_for_a_block(name: str) -> None:
    setter, expected = SETTERS[name]
    setter()
    for target, switches in expected.items():
        assert current_switches(target) == switches
        with under_switches((), target):
            assert current_switches(target) == ()
            with under_switches(switches, target):
                assert current_switches(target) == switches
            assert current_switches(target) == ()
        assert current_switches(target) == switches


@pytest.mark.parametrize("precision", ["highest", "high", "medium"])
@pytest.mark.parametrize("target", ["cpu", "cuda"])
def test_old_and_new_name_of_a_precision_agree_after_a_block(precision: str, target: str) -> None:
    torch.set_float32_matmul_precision(precision)
    for value in ("tf32", "ieee"):
        package = "mkldnn" if target == "cpu" else "cuda"
        switches = ((f"torch.backends.{package}.matmul.fp32_precision", value),) if value != "ieee" else ()
        with under_switches(switches, target):
            assert current_switches(target) == switches
        assert torch.get_float32_matmul_precision() == precision  # it raises where they do not


@pytest.mark.parametrize("allowed", [True, False])
def test_old_and_new_names_of_cudnn_agree_after_a_block(allowed: bool) -> None:
    torch.backends.cudnn.allow_tf32 = allowed
    before = current_switches("cuda")
    names = ("torch.backends.cudnn.conv.fp32_precision", "torch.backends.cudnn.rnn.fp32_precision")
    with under_switches(tuple((name, "ieee") for name in names) if allowed else (), "cuda"):
        assert torch.backends.cudnn.allow_tf32 != allowed  # it raises where names disagree
    assert torch.backends.cudnn.allow_tf32 == allowed
    assert current_switches("cuda") == before


def test_switches_of_a_fresh_process_are_none() -> None:
    code = "from tmmu.kernel_switches import current_switches as c; print(c('cpu'), c('cuda'))"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.split() == ["()", "()"]
