"""The hint of a failure fits its cause: a row for each, with words that must be in the hint and words that must not."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from tmmu.errors import TmmuError
from tmmu.passes.capture.activities import Activity
from tmmu.passes.capture.failures import causes
from tmmu.passes.capture.request import CaptureRequest
from tmmu.passes.capture.trace import capture

HEAD = "import threading\nimport torch\nfrom torch import nn\n"
INPUTS = "def inputs():\n    return (torch.zeros(2, 4),)\n"
LINEAR = "model = nn.Linear(4, 4)\n" + INPUTS
SCALAR = LINEAR + "def loss(model, x):\n    return model(x).sum()\n"


def module(body: str, *, init: str = "self.linear = nn.Linear(4, 4)") -> str:
    """A file whose model has this body of ``forward``, and these statements in its constructor."""
    return (
        f"class Net(nn.Module):\n    def __init__(self):\n        super().__init__()\n        {init}\n"
        f"    def forward(self, x):\n        {body}\nmodel = Net\n{INPUTS}"
    )


SUBCLASS = """
from torch.utils._pytree import tree_map
class Wrapped(torch.Tensor):
    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype, device=inner.device)
    def __init__(self, inner):
        self.inner = inner
    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        if func is torch.ops.aten.mul.Tensor:
            raise NotImplementedError("no product")
        return func(*tree_map(lambda t: t.inner if isinstance(t, Wrapped) else t, args), **(kwargs or {}))
"""
SCRIPTED = "class Part(nn.Module):\n    def forward(self, x):\n        return x @ torch.ones(3, 3)\n" + module(
    "return self.part(x)", init="self.part = torch.jit.script(Part())"
)
MESH = """
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Shard, distribute_tensor
if not dist.is_initialized():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
"""
RING = """
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.experimental import context_parallel
dist.init_process_group("nccl")
mesh = init_device_mesh("cpu", (2,))
class Net(nn.Module):
    def forward(self, x):
        with context_parallel(mesh, buffers=[x], buffer_seq_dims=[2]):
            return nn.functional.scaled_dot_product_attention(x, x, x, is_causal=True)
model = Net
inputs = torch.zeros(1, 2, 16, 8)
"""


def operator(name: str, fake: str) -> str:
    """A file whose model calls an operator of its own, with this fake kernel."""
    return (
        f"@torch.library.custom_op('causes::{name}', mutates_args=())\n"
        f"def {name}(x: torch.Tensor) -> torch.Tensor:\n    return x.clone()\n{fake}\n"
    ) + module(f"return {name}(x * torch.rand(4))")


@dataclass(frozen=True, slots=True)
class Row:
    """A file, the options of its capture, and the error: its code, what its hint says, and what it must not say."""

    name: str
    text: str
    says: tuple[str, ...]
    silent: tuple[str, ...] = ()
    code: str = "CAPTURE_FAILED"
    options: tuple[tuple[str, str | int], ...] = ()


TRAINING = (("mode", "backward"),)
ROWS = (
    Row("file_raises", "raise ValueError('no')\n", ("the file must run by itself",), ("forward", "inputs")),
    Row("file_calls_wrongly", "nn.Linear()\n", ("the file must run by itself",), ("forward", "inputs")),
    Row("file_exits", "raise SystemExit(3)\n", ("under if __name__",), ("forward", "inputs")),
    Row("library_missing", "import no_such_library\n", ("install",), ("forward", "inputs")),
    Row("name_missing", "from torch import no_such_name\n", ("install the version",), ("forward", "inputs")),
    Row("weights_missing", LINEAR + "torch.load('no.pt')\n", ("weights need not be loaded",), ("forward", "inputs")),
    Row("memory_missing", "raise MemoryError\n", ("make it with torch",), ("forward", "inputs")),
    Row("no_model", INPUTS, ("define model",), ("forward",)),
    Row("no_module", "model = 3\n" + INPUTS, ("define model as an nn.Module",), ("forward",)),
    Row("makes_no_module", "def model():\n    return {}\n" + INPUTS, ("define model as an nn.Module",), ("forward",)),
    Row("constructor_raises", module("return x", init="raise ValueError('odd')"), ("makes the model", "see the line"),
        ("forward", "inputs")),
    Row("constructor_calls_wrongly", module("return x", init="nn.Linear('a', 3)"), ("makes the model",),
        ("forward", "inputs")),
    Row("constructor_wants_arguments", "class model(nn.Module):\n    def __init__(self, width):\n        pass\n"
        + INPUTS, ("--set width=",), ("forward",), "INVALID_CONFIG"),
    Row("constructor_looks_at_weights", module("return x", init="bool(torch.rand(1) > 0)"), ("makes the model",),
        ("forward", "torch.where", "inputs")),
    Row("inputs_missing", "model = nn.Linear(4, 4)\n", ("--input input=dtype[shape]",), ("forward",)),
    Row("inputs_raise", "model = nn.Linear(4, 4)\ndef inputs():\n    raise ValueError('no data')\n",
        ("makes the inputs",), ("forward", "the model")),
    Row("inputs_look_at_random_numbers", "model = nn.Linear(4, 4)\ndef inputs():\n    torch.rand(1).item()\n",
        ("makes the inputs",), ("forward", "torch.where", "the model")),
    Row("inputs_of_a_loader", "model = nn.Linear(4, 4)\nfrom torch.utils.data import DataLoader\n"
        "inputs = DataLoader([], batch_size=2)\n",
        ("write one batch as the loader makes it",), ("Python numbers",)),
    Row("optimizer_of_the_file_raises", "model = nn.Linear(4, 1)\n" + INPUTS
        + "def optimizer(params):\n    raise ValueError('no')\n",
        ("optimizer(params) must make its optimizer",), ("--optimizer",),
        options=(("mode", "backward"), ("loss", "sum"))),
    Row("optimizer_of_the_file_looks_at_weights", "model = nn.Linear(4, 1)\n" + INPUTS
        + "def optimizer(params):\n    return torch.optim.SGD(params, lr=params[0].sum().item())\n",
        ("name another with --optimizer",), (), options=(("mode", "backward"), ("loss", "sum"))),
    Row("file_looks_at_random_numbers", "if torch.rand(1) > 0:\n    pass\n", ("the file looks at a value",),
        ("forward", "torch.where", "inputs")),
    Row("inputs_are_no_tensors", "model = nn.Linear(4, 4)\ndef inputs():\n    return 3\n", ("return a tuple",)),
    Row("too_few_inputs", module("return x").replace("self, x)", "self, x, y)"), ("signature of forward",), ("--set",)),
    Row("forward_missing", "class model(nn.Module):\n    pass\n" + INPUTS, ("define forward",), ("inputs",)),
    Row("forward_raises", module("raise ValueError('no')"), ("run on these inputs", "see the line"),
        ("makes the model", "signature", "kernel")),
    Row("forward_adds_none", module("return x + None"), ("run on these inputs",), ("signature",)),
    Row("forward_returns_nothing", module("x + 1"), ("return at least one tensor",)),
    Row("shapes_disagree", "model = nn.Linear(5, 4)\n" + INPUTS,
        ("run on these inputs", "if eager runs it", "aten.addmm"), ("makes the model", "signature")),
    Row("dtypes_disagree", "model = nn.Linear(4, 4).double()\n" + INPUTS, ("convert the inputs or the model",)),
    Row("branch_on_data", module("return x if (x * torch.rand(4)).sum() > 0 else -x"), ("torch.where",), ("thread",)),
    Row("where_of_one_argument", module("return torch.where(torch.rand(4) > 0)[0]"), ("all three arguments",),
        ("use torch.where",)),
    Row("mask_as_index", module("y = torch.rand(4); return y[y > 0]"), ("multiply by the mask",)),
    Row("repeats_of_data", module("return x.flatten().repeat_interleave(torch.randint(3, (8,)))"),
        ("output_size",), ("where",)),
    Row("unique_data", module("return torch.rand(4).unique()"), ("fixed size",), ("where", "mask")),
    Row("gpu_missing", module("return x", init="raise RuntimeError('No CUDA GPUs are available')"), ("run it where",),
        ("makes the model", "inputs")),
    Row("numpy", module("return torch.from_numpy(x.numpy())"), ("compute it with torch",), ("inputs",)),
    Row("scripted", module("return x + 1") + "model = torch.jit.trace(Net(), torch.zeros(4))\n", ("before torch.jit",),
        ("inputs",)),
    Row("scripted_part", SCRIPTED, ("before torch.jit",), ("inputs",)),
    Row("nested", module("return torch.nested.nested_tensor([x, x[:1]]) * 2"), ("jagged", "mask"),
        ("inputs", "fake kernel")),
    Row("thread", module("out = []; t = threading.Thread(target=lambda: out.append(x + 1)); t.start(); t.join(); "
        "return out[0] * 2"), ("one thread",), ("subclass", "dispatch")),
    Row("weight_of_a_subclass", SUBCLASS + module("return x", init="nn.Parameter(Wrapped(torch.zeros(4)))"),
        ("become Wrapped",), ("thread", "forward", "inputs")),
    Row("operator_of_a_subclass", SUBCLASS + module("return Wrapped(x) * 2"), ("become Wrapped",),
        ("thread", "inputs", "fake kernel")),
    Row("ring_on_a_cpu", RING, ("on a GPU alone: plan for --device cuda",), options=(("world", 2),)),
    Row("ring_in_double_precision", RING + "inputs = inputs.double()\n", ("has fused kernels alone: take half",),
        options=(("world", 2), ("device", "cuda"))),
    Row("ring_that_sees_all", RING.replace("=True)", "=False)"), ("call attention with is_causal=True",),
        options=(("world", 2), ("device", "cuda"))),
    Row("mesh_of_data", MESH + module("DeviceMesh('cpu', torch.rand(1).long()); return x"), ("ranks of a mesh",),
        ("thread", "torch.where", "inputs")),
    Row("no_fake_kernel", operator("lacks", ""), ("register a fake kernel of causes.lacks",), ("inputs",)),
    Row("fake_kernel_raises", operator("fails", "@fails.register_fake\ndef _(x):\n    raise ValueError('no')"),
        ("correct its fake kernel", "causes.fails"), ("inputs", "signature")),
    Row("fake_kernel_calls_wrongly", operator("errs", "@errs.register_fake\ndef _(x):\n    return x.new_empty('a')"),
        ("correct its fake kernel", "causes.errs"), ("inputs", "signature")),
    Row("fake_kernel_looks_at_data",
        operator("looks", "@looks.register_fake\ndef _(x):\n    return x.new_empty(int(x.sum().item()))"),
        ("correct its fake kernel", "causes.looks"), ("inputs", "torch.where")),
    Row("quantized", module("return torch.quantize_per_tensor(x, 0.1, 0, torch.quint8)"), ("before it is quantized",),
        ("inputs",), "UNSUPPORTED_OP"),
    Row("tensor_without_fake", "from torch._subclasses.fake_tensor import UnsupportedFakeTensorException\n"
        + module("raise UnsupportedFakeTensorException('quantized')"), ("only dense tensors",), ("inputs",)),
    Row("no_attention_kernel", "from torch.nn.attention import SDPBackend, sdpa_kernel\n" + module(
        "with sdpa_kernel(SDPBackend.FLASH_ATTENTION): return nn.functional.scaled_dot_product_attention(x, x, x)"),
        ("another backend",), ("inputs",), options=(("device", "cuda"),)),
    Row("sparse", module("return x.to_sparse()"), ("make it dense",), ("inputs",), "UNSUPPORTED_OP"),
    Row("loss_missing", LINEAR, ("define loss",), ("inputs",), options=TRAINING),
    Row("loss_raises", LINEAR + "def loss(model, x):\n    return model(x) + None\n", ("the loss must run",),
        ("signature", "makes the model"), options=TRAINING),
    Row("loss_wants_arguments", LINEAR + "def loss(model, x, y):\n    return y\n", ("loss(model, *inputs)",),
        ("signature",), options=TRAINING),
    Row("forward_raises_in_loss", module("raise ValueError('no')") + "def loss(model, x):\n    return model(x).sum()\n",
        ("the model must run",), ("loss",), options=TRAINING),
    Row("loss_is_frozen", SCALAR + "model.requires_grad_(False)\n", ("unfreeze",), options=TRAINING),
    Row("backward_raises", "class Double(torch.autograd.Function):\n    @staticmethod\n    def forward(ctx, x):\n"
        "        return x * 2\n    @staticmethod\n    def backward(ctx, grad):\n        raise ValueError('no')\n"
        + module("return Double.apply(self.linear(x)).sum()"),
        ("gradients in eager",), ("inputs", "forward"), options=TRAINING),
    Row("saved_tensor_is_changed", module("y = self.linear(x).exp(); y.add_(1); return y.exp().mul_(2).sum()"),
        ("set_detect_anomaly",), ("inputs", "forward"), options=TRAINING),
    Row("optimizer_without_training", SCALAR, ("add --mode backward",), ("leave it out",), "INVALID_CONFIG",
        (("optimizer", "sgd"),)),
    Row("optimizer_refuses_value", SCALAR, ("correct its arguments",), ("forward", "inputs"), "INVALID_CONFIG",
        options=(*TRAINING, ("optimizer", "sgd:lr=-1"))),
    Row("optimizer_refuses_type", SCALAR, ("correct its arguments",), ("forward", "inputs"), "INVALID_CONFIG",
        options=(*TRAINING, ("optimizer", "sgd:lr=[1]"))),
    Row("optimizer_refuses_device", SCALAR, ("arguments of --optimizer",), ("forward", "inputs"),
        options=(*TRAINING, ("optimizer", "adam:capturable=true"))),
    Row("optimizer_wants_sparse_gradients", SCALAR, ("sparse gradients are not modelled",), ("forward", "inputs"),
        options=(*TRAINING, ("optimizer", "sparseadam"))),
    Row("optimizer_looks_at_weights", "model = nn.Linear(4, 1)\n" + INPUTS + "class Choosing(torch.optim.SGD):\n"
        "    def step(self):\n        if self.param_groups[0]['params'][0].sum() > 0:\n            super().step()\n"
        "optimizer = Choosing\n", ("name another with --optimizer",), ("torch.where", "inputs"),
        options=(("mode", "backward"), ("loss", "sum"))),
)  # fmt: skip


@pytest.fixture(autouse=True)
def _no_process_group() -> Iterator[None]:
    yield
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_hint_fits_the_cause(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, row: Row) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.py").write_text(HEAD + row.text)
    with pytest.raises(TmmuError) as refusal:
        capture(CaptureRequest(model="net.py", **{"device": "cpu", **dict(row.options)}))  # type: ignore[arg-type]
    error = refusal.value
    assert error.code == row.code, error
    assert [text for text in row.says if text not in error.fix] == [], error
    assert [text for text in row.silent if text in error.fix] == [], error


WHATS = {
    "group": (module("raise ExceptionGroup('many', [ExceptionGroup('in', [KeyError('k')]), ValueError('v')])"),
        "net.py:9: ExceptionGroup: many (2 sub-exceptions): KeyError: 'k'"),
    "message_raises": ("class Odd(Exception):\n    def __str__(self):\n        raise BaseException('worse')\n"
        + module("raise Odd"), "net.py:12: Odd: its message cannot be printed"),
    "native_frames": (module("raise ValueError('too large (Exception raised from f at a.cpp:3 (most recent call...')"),
        "net.py:9: ValueError: too large"),
    "scripted_part": (SCRIPTED, "net.py:12: RuntimeError: TorchScript, net.py:6: "),
    "zero_byte": ("x = 1\0\n", "net.py: source code string cannot contain null bytes"),
    "text_of_a_call": (module("return eval('x +')"), "net.py:9: invalid syntax"),
    "coroutine": (module("return x").replace("def forward", "async def forward"),
        "the model returns no tensor but coroutine"),
    "generator": (module("yield x"), "the model returns no tensor but generator"),
}  # fmt: skip


@pytest.mark.filterwarnings("error")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("name", WHATS)
def test_what_happened_is_one_line_that_names_the_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    text, what = WHATS[name]
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.py").write_text(HEAD + text)
    with pytest.raises(TmmuError) as refusal:
        capture(CaptureRequest(model="net.py", device="cpu"))
    assert refusal.value.code == "CAPTURE_FAILED"
    assert refusal.value.what.startswith(what)


def test_every_hint_has_a_row() -> None:
    hints = [advice for _, advice in causes._CAUSES if isinstance(advice, str)]
    hints += [*causes._ACTIVITIES.values(), *causes._SIGNATURES.values(), *causes._VALUES.values()]
    silent = [hint for hint in hints if not any(text in hint for row in ROWS for text in row.says)]
    assert silent == [causes._ACTIVITIES[Activity.CONFIGURATION], causes._VALUES[Activity.CONFIGURATION]]
