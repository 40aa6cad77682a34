"""``tmmu run`` with weights of every dtype from a file: resident and streamed, checked and sanitized, or refused."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from tests.unit.cli.graphs import Shell

NET = """
import torch
from torch import nn

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("weight", torch.zeros(64, 64, dtype=torch.DTYPE))

    def forward(self, x):
        return x + USE

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([Block() for _ in range(6)])

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x

model = Net
inputs = (torch.randn(64, 64),)
"""
PLAIN, PAIRS = "self.weight.to(torch.float32)", "torch.view_as_real(self.weight.to(torch.complex64)).sum(-1)"
STREAMED = ("--ring", "--budget", "64KiB")
DTYPES = (
    *("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu"),
    *("uint16", "uint32", "uint64", "bool", "complex64"),
)


def write_model(dtype: str, use: str) -> None:
    Path("net.py").write_text(NET.replace("DTYPE", dtype).replace("USE", use))


def write_weights(dtype: str) -> None:
    generator = torch.Generator().manual_seed(0)
    form = getattr(torch, dtype)
    codes = torch.randint(0, 2 if dtype == "bool" else 120, (6, 64, 64 * form.itemsize), generator=generator)
    short = codes.to(torch.uint8)
    save_file({f"layers.{i}.weight": rows.clone().view(form) for i, rows in enumerate(short)}, "net.safetensors")


def run_both_ways(shell: Shell, *options: str) -> None:
    for more in (("--sanitize",), STREAMED):
        done = shell.tmmu("run", "net.py", "--check", *options, *more)
        assert done.code == 0, done.err
        assert "checked: 1 outputs and states have the bits of the model itself" in done.out


@pytest.mark.parametrize("dtype", DTYPES)
def test_weights_of_a_dtype_stream_with_the_bits_of_the_model(shell: Shell, dtype: str) -> None:
    write_model(dtype, PAIRS if dtype == "complex64" else PLAIN)
    write_weights(dtype)
    run_both_ways(shell, "--weights", "net.safetensors")


@pytest.mark.parametrize("dtype", ["complex32", "complex128"])
def test_complex_weights_that_no_file_holds_stream_too(shell: Shell, dtype: str) -> None:
    write_model(dtype, PAIRS)
    run_both_ways(shell)


def test_weights_that_are_read_as_another_dtype_are_those_of_the_model(shell: Shell) -> None:
    write_model("int32", "self.weight.view(torch.float32)")
    write_weights("int32")
    run_both_ways(shell, "--weights", "net.safetensors")


@pytest.mark.parametrize("dtype", ["uint4", "int4"])
def test_packed_dtypes_are_refused_by_name(shell: Shell, dtype: str) -> None:
    write_model(dtype, "self.weight.view(torch.uint8).to(torch.float32)")
    for command in (("plan",), ("run", "--check"), ("run", "--check", *STREAMED)):
        done = shell.tmmu(command[0], "net.py", *command[1:])
        assert done.code == 2
        assert f"UNSUPPORTED_OP: net.py:8: tensors of dtype {dtype} are not modelled" in done.err


PACKED = """
import torch
from torch import nn

aten = torch.ops.aten

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        codes = torch.zeros(64, 64, dtype=torch.int32)
        self.register_buffer("codes", aten._convert_weight_to_int4pack_for_cpu(codes, 2))
        self.register_buffer("scales", torch.ones(2, 64, 2, dtype=torch.bfloat16))

    def forward(self, x):
        return aten._weight_int4pack_mm_for_cpu(x, self.codes, 32, self.scales)

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([Block() for _ in range(4)])

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x

model = Net
inputs = (torch.randn(4, 64, dtype=torch.bfloat16),)
"""


def test_products_of_packed_int4_weights_stream_with_the_bits_of_the_model(shell: Shell) -> None:
    Path("net.py").write_text(PACKED)
    generator = torch.Generator().manual_seed(0)
    weights = {}
    for layer in range(4):
        weights[f"layers.{layer}.codes"] = torch.randint(0, 255, (64, 32), generator=generator).to(torch.uint8)
        weights[f"layers.{layer}.scales"] = torch.rand(2, 64, 2, generator=generator).mul(0.01).bfloat16()
    save_file(weights, "net.safetensors")
    run_both_ways(shell, "--weights", "net.safetensors")
