"""``tmmu fit --max``: the size that is found is the largest, by plans of it and of the next; what makes no sense."""

import json
from pathlib import Path
from typing import Any

import pytest

import tmmu
from tests.unit.cli.graphs import Shell, small
from tmmu.cli.options import CaptureOptions, PlanningOptions, TokenOptions
from tmmu.cli.parsing import parse_model
from tmmu.cli.planning import compile_request, model_request
from tmmu.cli.sizes import at_size, sizes_of_request
from tmmu.planner.sizes.size_model import SizeModel, same_memory

EXAMPLE = Path(__file__).parents[4] / "examples" / "gpt2.py"
MODEL = """
import torch
from torch import nn

def model(layers=3):
    return nn.Sequential(*(nn.Sequential(nn.Linear(64, 64), nn.GELU()) for _ in range(layers)))

def inputs(batch=4):
    return (torch.randn(batch, 64),)
"""
TRAINING = ("--mode", "backward", "--loss", "sum", "--optimizer", "sgd")


@pytest.fixture
def model(shell: Shell) -> Path:
    """Three layers, as ``rows.py``."""
    Path("rows.py").write_text(MODEL)
    return Path("rows.py")


def stack_of(shell: Shell, size: int) -> int:
    done = shell.tmmu("plan", "rows.py", "--set", f"batch={size}", *TRAINING, "-o", "any", "--json")
    assert done.code == 0, done.err
    return int(done.record["memory"]["stack"])


def test_largest_batch_is_the_last_whose_plan_fits(shell: Shell, model: Path) -> None:
    limit = 200_000
    done = shell.tmmu("fit", model, *TRAINING, "--step", limit, "--max", "batch", "--json")
    assert done.code == 0, done.err
    found = done.record["max"]
    plain, fitted = found["as_it_is"], found["fitted"]
    assert found["axis"] == "batch"
    assert len(found["traces"]) <= 4
    assert plain["predicted"]
    assert fitted["predicted"]
    assert plain["needed_bytes"] == stack_of(shell, plain["size"]) <= limit < stack_of(shell, plain["size"] + 1)
    assert fitted["size"] > plain["size"]
    assert not list(Path().glob("rows.*.cbor"))
    size = fitted["size"]
    options = (*TRAINING, "--step", limit)
    one = shell.tmmu("fit", model, "--set", f"batch={size}", *options, "--json")
    assert one.code == 0, one.err
    assert one.record["digest"] == fitted["digest"]
    assert shell.tmmu("fit", model, "--set", f"batch={size + 1}", *options).code == 3


@pytest.mark.parametrize("size", ["150000", pytest.param("240000", marks=pytest.mark.slow)])
def test_python_s_largest_batch_is_the_command_s(shell: Shell, model: Path, size: str) -> None:
    """``plan.max_size`` of the same model, as it is and with the levers: the same sizes, plans and traces."""
    done = shell.tmmu(
        "fit", model, "--set", "batch=4", *TRAINING, "--budget", size, "--reserve", "9000", "--max", "batch", "--json"
    )
    assert done.code == 0, done.err
    found = done.record["max"]
    file: dict[str, Any] = {}
    exec(MODEL, file)
    module = file["model"]()
    plan = tmmu.plan(module, file["inputs"](4), training=True, loss="sum", optimizer="sgd")
    plain, fitted = (plan.max_size("batch", int(size), reserve=9_000, fit=fit) for fit in (False, True))
    assert (plain.size, plain.plan.total) == (found["as_it_is"]["size"], found["as_it_is"]["needed_bytes"])
    assert (fitted.size, fitted.plan.total) == (found["fitted"]["size"], found["fitted"]["needed_bytes"])
    assert fitted.plan.plan.digest.hex() == found["fitted"]["digest"]
    assert list(fitted.sizes) == found["traces"]


def test_report_names_both_sizes_and_the_command(shell: Shell, model: Path) -> None:
    done = shell.tmmu(
        "fit", model, *TRAINING, "--budget", "1MiB", "--reserve", "0", "--max", "batch", "--only", "order"
    )
    assert done.code == 0, done.err
    for text in ("the largest batch with all of it in 1.0 MiB", "as it is", "with order", "traces, at batch 2, 3, "):
        assert text in done.out
    assert "tmmu fit rows.py --set batch=" in done.out


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--max", "batch"), "--max: no limit in bytes is named (give --budget SIZE or --step SIZE)"),
        (("--max", "batch", "--curve"), "--max: no limit in bytes is named (give --budget SIZE or --step SIZE)"),
        (("--max", "batch", "--at-most", "10"), "--max: no limit in bytes is named (give --budget SIZE"),
        (("--max", "seq", "--step", "1MiB"), "nothing takes the setting 'seq' (known here: batch, layers"),
        (("--max", "a b", "--step", "1MiB"), "'a b' is no name"),
        (("--max", "batch", "--step", "1MiB", "--curve"), "--curve: nothing is written with --max"),
        (("--max", "batch", "--step", "1MiB", "-o", "x"), "--output: nothing is written with --max"),
        (("--max", "batch", "--step", "1MiB", "--report", "x.html"), "--report: nothing is written with --max"),
    ],
)
def test_what_makes_no_sense_is_refused(shell: Shell, model: Path, options: tuple[str, ...], words: str) -> None:
    done = shell.tmmu("fit", model, *TRAINING, *options)
    assert done.code == 2
    assert words in done.err


def test_files_of_graphs_have_no_other_size(shell: Shell) -> None:
    done = shell.tmmu("fit", shell.graph(small()), "--step", "1MiB", "--max", "batch")
    assert done.code == 2
    assert "were settled when it was captured" in done.err


def test_hugging_face_models_have_batch_and_seq(shell: Shell) -> None:
    done = shell.tmmu("fit", "hf:.", "--step", "1MiB", "--max", "width")
    assert done.code == 2
    assert "an hf: model has no 'width'" in done.err


def test_size_that_never_fits_says_how_much_is_missing(shell: Shell, model: Path) -> None:
    done = shell.tmmu("fit", model, *TRAINING, "--step", "100", "--max", "batch")
    assert done.code == 3
    assert "BUDGET_TOO_SMALL: not even 1 fits in 100 B: it takes " in done.err
    done = shell.tmmu("fit", model, *TRAINING, "--budget", "100", "--max", "batch")
    assert done.code == 3
    assert "the reserve of 1.0 GiB is more than the budget" in done.err


@pytest.mark.parametrize(
    ("options", "axis", "sizes"),
    [
        ({}, "batch", (2, 3)),
        ({"settings": ["batch=8"]}, "batch", (8, 9)),
        ({"settings": ["batch=1"]}, "batch", (2, 3)),
        ({}, "seq", (256, 192, 128)),
        ({"settings": ["seq=1000"]}, "seq", (960, 896, 832)),
        ({"settings": ["seq=77"]}, "seq", (77, 76, 75)),
        ({"settings": ["seq=2"]}, "seq", (2, 3, 4)),
    ],
)
def test_first_sizes(options: dict[str, Any], axis: str, sizes: tuple[int, ...], model: Path) -> None:
    request = model_request(parse_model(str(model)), CaptureOptions(**options), PlanningOptions(), TokenOptions())
    assert sizes_of_request(request, axis) == sizes


UNET = """
import torch
from torch import nn
from torch.nn import functional as F

class Block(nn.Module):
    def __init__(self, inside, outside):
        super().__init__()
        self.norm, self.conv = nn.GroupNorm(32, inside), nn.Conv2d(inside, outside, 3, padding=1)
        self.time, self.skip = nn.Linear(256, outside), nn.Conv2d(inside, outside, 1)
        self.q, self.k, self.v = nn.Linear(outside, outside), nn.Linear(768, outside), nn.Linear(768, outside)

    def forward(self, x, t, text):
        h = self.conv(F.silu(self.norm(x))) + self.time(t)[:, :, None, None]
        rows = h.flatten(2).transpose(1, 2)
        split = lambda z: z.unflatten(2, (8, -1)).transpose(1, 2)
        mixed = F.scaled_dot_product_attention(split(self.q(rows)), split(self.k(text)), split(self.v(text)))
        return self.skip(x) + h + mixed.transpose(1, 2).flatten(2).transpose(1, 2).reshape(h.shape)

class UNet(nn.Module):
    def __init__(self, widths=(320, 640, 1280)):
        super().__init__()
        a, b, c = widths
        self.first, self.last = nn.Conv2d(4, a, 3, padding=1), nn.Conv2d(a, 4, 3, padding=1)
        self.down = nn.ModuleList([Block(a, a), Block(a, b), Block(b, c)])
        self.up = nn.ModuleList([Block(c + c, b), Block(b + b, a), Block(a + a, a)])

    def forward(self, x, t, text):
        x, kept = self.first(x), []
        for block in self.down:
            x = block(x, t, text)
            kept.append(x)
            x = F.avg_pool2d(x, 2)
        for block in self.up:
            x = F.interpolate(x, scale_factor=2.0, mode="nearest")
            x = block(torch.cat((x, kept.pop()), 1), t, text)
        return self.last(x)

def model():
    return UNet()

def inputs(batch=4):
    return torch.randn(batch, 4, 64, 64), torch.ones(batch, 256), torch.randn(batch, 77, 768)

def loss(model, x, t, text):
    return F.mse_loss(model(x, t, text), x)
"""
RESNET = {"model_type": "resnet", "architectures": ["ResNetForImageClassification"]}
T5 = {
    "model_type": "t5", "architectures": ["T5ForConditionalGeneration"], "d_model": 768, "d_ff": 3072, "num_layers": 12,
    "num_heads": 12, "vocab_size": 32128, "decoder_start_token_id": 0, "pad_token_id": 0,
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "axis", "size"),
    [("gpt2", "batch", 24), ("gpt2", "seq", 1024), ("resnet", "batch", 124), ("t5", "batch", 11), ("unet", "batch", 9)],
)
def test_every_buffer_of_published_models_is_predicted(shell: Shell, name: str, axis: str, size: int) -> None:
    for folder, config in (("resnet", RESNET), ("t5", T5)):
        Path(folder).mkdir()
        Path(folder, "config.json").write_text(json.dumps(config))
    Path("unet.py").write_text(UNET)
    model = {"gpt2": str(EXAMPLE), "unet": "unet.py"}.get(name, f"hf:{name}")
    capture = CaptureOptions(mode="backward", optimizer="adamw:fused")
    request = model_request(parse_model(model), capture, PlanningOptions(no_cache=True), TokenOptions())
    starts = sizes_of_request(request, axis)
    graphs = {at: compile_request(at_size(request, axis, at)).graph for at in (*starts, size)}
    predicted = SizeModel(tuple((at, graphs[at]) for at in starts)).graph_at(size)
    assert predicted.buffers.bytes == graphs[size].buffers.bytes
    assert same_memory(predicted, graphs[size])
