"""``--loss``, ``--autocast`` and ``--dtype``: planned, run with eager's bits, named in the report, part of the key."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.unit.cli.graphs import Shell

NET = """
from collections import namedtuple
from dataclasses import dataclass
import torch
from torch import nn
Pair = namedtuple("Pair", "first second")
@dataclass
class Batch:
    x: torch.Tensor
    mask: torch.Tensor
class Net(nn.Module):
    def __init__(self, kind="sequence"):
        super().__init__()
        self.kind = kind
        self.embed, self.norm, self.head = nn.Embedding(11, 8), nn.LayerNorm(8), nn.Linear(8, 11)
        self.conv = nn.Conv2d(3, 5, 3)
        self.register_buffer("shift", torch.ones(8))
    def forward(self, x):
        if self.kind == "sequence":
            return self.head(self.norm(self.embed(x) + self.shift))
        return self.conv(x)
def model(kind="sequence"):
    return Net(kind)
def inputs(kind="sequence"):
    return (torch.zeros(2, 3, 8, 8),) if kind == "image" else (torch.zeros(2, 6, dtype=torch.int64),)
"""
LLAMA = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 32, "intermediate_size": 64,
    "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 50, "dtype": "float32",
}  # fmt: skip
LOSSES = ("cross_entropy", "mse", "sum")
CASTS = (("--autocast", "bf16"), ("--autocast", "fp16"), ("--dtype", "bfloat16"), ("--dtype", "float16"))


@pytest.fixture
def net(shell: Shell) -> str:
    (shell.folder / "net.py").write_text(NET)
    return "net.py"


@pytest.fixture
def llama(shell: Shell) -> str:
    (shell.folder / "llama").mkdir()
    (shell.folder / "llama/config.json").write_text(json.dumps(LLAMA))
    return "hf:llama"


def checked(shell: Shell, *words: str) -> dict[str, Any]:
    """The record of a checked run whose outputs and states all have the model's own bits."""
    ran = shell.tmmu("run", *words, "--check", "--json")
    assert ran.code == 0, ran.err
    assert ran.record["same"] == ran.record["checked"] > 0
    return ran.record  # type: ignore[no-any-return]


@pytest.mark.parametrize("kind", ["sequence", "image"])
@pytest.mark.parametrize("loss", LOSSES)
def test_losses_have_the_bits_of_the_model(shell: Shell, net: str, kind: str, loss: str) -> None:
    words = (net, "--set", f"kind={kind}", "--mode", "backward", "--loss", loss)
    record = checked(shell, *words, "--optimizer", "adamw")
    assert record["loss"] == {"cross_entropy": f"cross_entropy:dim={1 if kind == 'image' else 2}"}.get(loss, loss)
    assert len(record["inputs"]) == (1 if loss == "sum" else 2)
    assert checked(shell, *words)["same"] > 2  # gradients


@pytest.mark.parametrize("cast", CASTS, ids=" ".join)
@pytest.mark.parametrize("mode", [(), ("--mode", "backward", "--loss", "cross_entropy")], ids=["inference", "training"])
def test_casts_have_the_bits_of_the_model(shell: Shell, net: str, cast: tuple[str, ...], mode: tuple[str, ...]) -> None:
    record = checked(shell, net, *cast, *mode)
    assert record["autocast"] == (cast[1] if cast[0] == "--autocast" else None)
    image = checked(shell, net, "--set", "kind=image", *cast, *mode)
    assert image["inputs"][0] == f"x {cast[1] if cast[0] == '--dtype' else 'float32'}[2,3,8,8]"


@pytest.mark.parametrize("words", [("--loss", "mse", "--autocast", "bf16"), ("--loss", "sum", "--dtype", "bfloat16")])
def test_configurations_and_classes_take_the_options(
    shell: Shell, net: str, llama: str, words: tuple[str, ...]
) -> None:
    assert checked(shell, llama, "--seq", "5", "--mode", "backward", *words)["loss"] == words[1]
    named = checked(shell, f"{net}:Net", "--input", "x=int64[1,4]", "--mode", "backward", *words)
    assert named["loss"] == words[1]
    assert checked(shell, "net:Net", "--input", "x=int64[1,4]", "--mode", "backward", *words)["plan"] == named["plan"]


EXPORT_OPTIONS = (
    (), ("--dtype", "bfloat16"), ("--autocast", "bf16"), ("--mode", "backward", "--loss", "mse", "--autocast", "fp16"),
    ("--mode", "backward", "--loss", "cross_entropy", "--optimizer", "adamw"),
    ("--mode", "backward", "--loss", "sum", "--dtype", "bfloat16"),
)  # fmt: skip


@pytest.mark.parametrize("words", EXPORT_OPTIONS, ids=" ".join)
def test_exported_programs_take_the_options(shell: Shell, words: tuple[str, ...]) -> None:
    module = torch.nn.Sequential(torch.nn.Embedding(5, 4), torch.nn.LayerNorm(4), torch.nn.Linear(4, 5)).train()
    torch.export.save(torch.export.export(module, (torch.zeros(2, 3, dtype=torch.int64),)), "net.pt2")
    record = checked(shell, "net.pt2", *words)
    assert record["weights"]["model"] == 5
    assert record["same"] == (1 + 5 * (4 if "--optimizer" in words else 1) if "--mode" in words else 1)


def test_configuration_computes_its_own_loss_or_ours(shell: Shell, llama: str) -> None:
    own = shell.tmmu("plan", llama, "--seq", "5", "--mode", "backward", "--json").record
    ours = shell.tmmu("plan", llama, "--seq", "5", "--mode", "backward", "--loss", "cross_entropy", "--json").record
    assert (own["loss"], ours["loss"]) == (None, "cross_entropy:dim=2")
    assert [entry["name"] for entry in ours["inputs"]] == ["input_ids", "labels"]
    assert own["ir_hash"] != ours["ir_hash"]


def test_plans_differ_as_the_options_do(shell: Shell, net: str) -> None:
    train = ("--mode", "backward", "--loss")
    variants = [(*train, loss, *cast) for loss in LOSSES for cast in ((), *CASTS)]
    hashes = [shell.tmmu("plan", net, "--device", "cpu", *words, "--json").record["ir_hash"] for words in variants]
    assert len(set(hashes)) == len(variants)


def test_autocast_plans_the_casts_of_the_target(shell: Shell, net: str) -> None:
    rows = {}
    for device in ("cpu", "cuda"):
        planned = shell.tmmu("plan", net, "--device", device, "--autocast", "bf16", "--json")
        assert planned.code == 0, planned.err
        shown = shell.tmmu("show", "net.plan.cbor", "--ops", "--json").record["operators"]
        rows[device] = {row["operator"]: row["calls"] for row in shown}
    assert rows["cpu"]["aten._to_copy.default"] > 0
    assert rows["cuda"]["aten._to_copy.default"] > 0


def test_dtype_converts_weights_and_buffers_and_halves_their_bytes(shell: Shell, net: str) -> None:
    full, half = (
        shell.tmmu("plan", net, "--json", *words).record["memory"]["text"] for words in ((), ("--dtype", "bfloat16"))
    )
    assert half < full


@pytest.mark.parametrize("value", ["Pair(x, [x])", "{'first': x, 'second': [x]}", "(x, [x])"])
def test_dtype_reaches_tensors_inside_of_inputs_and_keeps_them_one(shell: Shell, value: str) -> None:
    unpacked = value if value.startswith("{") else f"tuple({value})"
    (shell.folder / "net.py").write_text(
        NET + "class Sum(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "        self.w = nn.Parameter(torch.ones(3))\n"
        "    def forward(self, first, second):\n        return first * self.w + second[0]\n"
        f"def inputs():\n    x = torch.zeros(2, 3)\n    return {unpacked}\nmodel = Sum\n"
    )
    assert checked(shell, "net.py", "--dtype", "bfloat16")["inputs"] == ["first bfloat16[2,3]"]


def test_dtype_of_a_batch_object(shell: Shell) -> None:
    (shell.folder / "net.py").write_text(
        NET + "class Masked(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "        self.w = nn.Parameter(torch.ones(3))\n"
        "    def forward(self, batch):\n        return batch.x * self.w * batch.mask\n"
        "def inputs():\n    return (Batch(torch.zeros(2, 3), torch.ones(2, 3, dtype=torch.bool)),)\nmodel = Masked\n"
    )
    inputs = checked(shell, "net.py", "--dtype", "bfloat16")["inputs"]
    assert inputs == ["batch.x bfloat16[2,3]", "batch.mask bool[2,3]"]


def test_dtype_keeps_tied_weights_and_the_values_that_the_file_gives(shell: Shell) -> None:
    (shell.folder / "net.py").write_text(
        "import torch\nfrom torch import nn\n"
        "class Net(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "        self.a, self.b = nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)\n"
        "        self.b.weight = self.a.weight\n        self.register_buffer('gain', torch.full((4,), 0.5))\n"
        "    def forward(self, x, on):\n        return self.b(self.a(x)) * (self.gain if on.sum() > 1 else x)\n"
        "model = Net\ndef inputs():\n    return (torch.zeros(2, 4), torch.ones(3))\n"
    )
    record = checked(shell, "net.py", "--dtype", "float16")
    assert record["assumed"] == ["on"]
    assert record["weights"] == {"seed": 1, "numbers": 1}


def test_report_names_loss_and_autocast(shell: Shell, net: str) -> None:
    words = (net, "--device", "cpu", "--mode", "backward", "--loss", "cross_entropy", "--autocast", "bf16")
    planned = shell.tmmu("plan", *words)
    assert "loss: cross_entropy of the output, classes in dimension 2" in planned.out.splitlines()
    assert "autocast: bf16 on cpu, forward and loss" in planned.out.splitlines()
    assert "inputs: x int64[2, 6], labels int64[2, 6]" in planned.out.splitlines()
    assert "loss: cross_entropy of the output, classes in dimension 2" in shell.tmmu("show", "net.plan.cbor").out
    ran = shell.tmmu("run", *words)
    assert "loss: cross_entropy of the output, classes in dimension 2" in ran.out.splitlines()
    assert "autocast: bf16 on cpu, forward and loss" in ran.out.splitlines()
    assert shell.tmmu("plan", net, "--json").record["autocast"] is None


def test_kept_plans_are_those_of_the_options(shell: Shell, llama: str) -> None:
    train = ("--seq", "5", "--mode", "backward", "--json")
    digests = set()
    for words in (("--loss", "mse"), ("--loss", "sum"), ("--loss", "mse", "--autocast", "bf16")):
        first, again = (shell.tmmu("plan", llama, *train, *words).record for _ in range(2))
        assert (first["cache"]["origin"], again["cache"]["origin"]) == ("cold", "disk")
        assert (first["digest"], first["loss"]) == (again["digest"], again["loss"])
        digests.add(first["digest"])
    assert len(digests) == 3


@pytest.mark.slow
def test_plan_is_compared_with_the_loss_that_it_was_made_with(shell: Shell, net: str) -> None:
    assert shell.tmmu("plan", net, "--mode", "backward", "--loss", "mse").code == 0
    compared = shell.tmmu("diff", "net.plan.cbor", net, "--json")
    assert compared.code == 0, compared.err


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--loss", "mse"), "--loss: only with --mode forward or backward (add --mode backward, or leave it out)"),
        (("--loss", "hinge"), "'hinge' is not one of"),
        (("--autocast", "int8"), "'int8' is not one of"),
        (("--dtype", "int8"), "'int8' is not one of"),
    ],
)
def test_options_that_make_no_sense_are_one_line(shell: Shell, net: str, words: tuple[str, ...], says: str) -> None:
    refused = shell.tmmu("plan", net, *words)
    assert refused.code == 2
    assert says in refused.err
    assert refused.err.count("\n") == 1


def test_dtype_of_a_function_is_refused(shell: Shell) -> None:
    Path("net.py").write_text("import torch\ndef double(x):\n    return x * 2\n")
    refused = shell.tmmu("plan", "net.py:double", "--input", "x=float32[2]", "--dtype", "bfloat16")
    assert refused.code == 2
    assert refused.err.startswith(
        "tmmu: INVALID_CONFIG: --dtype: double is a function, whose weights nobody can convert"
    )


def test_options_of_a_trace_are_refused_for_a_graph(shell: Shell, net: str) -> None:
    assert shell.tmmu("plan", net).code == 0
    for words in (("--mode", "forward", "--loss", "mse"), ("--autocast", "bf16"), ("--dtype", "bfloat16")):
        refused = shell.tmmu("plan", "net.ir.cbor", *words)
        assert refused.code == 2
        assert "settled when the graph was captured" in refused.err
