"""Which attention kernel a GPU would run, and what the graph then holds."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from tmmu.errors import CaptureFailed
from tmmu.ir.graph import Graph
from tmmu.passes.capture.fake.attention import AttentionCall, cudnn_applies, efficient_applies, flash_applies
from tmmu.passes.capture.request import CaptureRequest, no_progress
from tmmu.passes.capture.trace import capture, fake_environment, trace
from tmmu.passes.capture.workload import Workload
from tmmu.passes.pipeline import lower_program

BF16, F32, F64 = torch.bfloat16, torch.float32, torch.float64


def qkv(
    heads: int = 4, kv_heads: int = 4, length: int = 8, keys: int = 8, size: int = 64, dtype: torch.dtype = BF16
) -> list[torch.Tensor]:
    return [torch.empty(2, h, n, size, dtype=dtype) for h, n in ((heads, length), (kv_heads, keys), (kv_heads, keys))]


def call_of(
    mask: torch.Tensor | None = None, *, causal: bool = False, grouped: bool = False, **options: Any
) -> AttentionCall:
    return AttentionCall(*qkv(**options), mask, 0.0, causal, None, grouped)


@pytest.mark.parametrize(
    ("options", "causal", "grouped", "flash"),
    [
        ({}, False, False, True),
        ({}, True, False, True),
        ({"dtype": F32}, False, False, False),
        ({"size": 320}, False, False, False),
        ({"size": 65}, False, False, True),
        ({"keys": 16}, True, False, False),
        ({"keys": 16}, False, False, True),
        ({"kv_heads": 2}, False, True, True),
        ({"kv_heads": 2}, False, False, False),
    ],
)
def test_flash_attention_takes_half_precision_without_a_mask(
    options: dict[str, Any], causal: bool, grouped: bool, flash: bool
) -> None:
    assert flash_applies(call_of(causal=causal, grouped=grouped, **options)) is flash


def test_flash_attention_takes_no_mask() -> None:
    assert not flash_applies(call_of(torch.ones(8, 8, dtype=torch.bool)))


@pytest.mark.parametrize(
    ("options", "grouped", "efficient"),
    [
        ({}, False, True),
        ({"dtype": F32}, False, True),
        ({"dtype": F64}, False, False),
        ({"size": 65}, False, False),
        ({"kv_heads": 2}, True, False),
    ],
)
def test_memory_efficient_attention_takes_masks_and_single_precision(
    options: dict[str, Any], grouped: bool, efficient: bool
) -> None:
    mask = torch.ones(8, 8, dtype=torch.bool)
    assert efficient_applies(call_of(mask, grouped=grouped, **options)) is efficient


@pytest.mark.parametrize(
    ("options", "causal", "applies"),
    [
        ({}, False, True),
        ({"dtype": F32}, False, False),
        ({"size": 136}, False, False),
        ({"size": 60}, False, False),
        ({"keys": 1}, False, False),
        ({"kv_heads": 2, "grouped": True}, False, True),
        ({}, True, False),
    ],
)
def test_cudnn_attention_takes_half_precision_and_small_heads(
    options: dict[str, Any], causal: bool, applies: bool
) -> None:
    mask = torch.zeros(8, 8, dtype=BF16)
    assert cudnn_applies(call_of(mask, causal=causal, **options)) is applies


def attention_graph(
    device: str, *, dtype: torch.dtype, mask: bool = False, training: bool = False, dropout: float = 0.0
) -> Graph:
    def run(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        allowed = torch.ones(256, 256, dtype=torch.bool).tril() if mask else None
        return torch.nn.functional.scaled_dot_product_attention(
            q, k, v, attn_mask=allowed, is_causal=not mask, dropout_p=dropout
        )

    with fake_environment(device):
        inputs = tuple(torch.empty(1, 4, 256, 64, dtype=dtype, requires_grad=training) for _ in range(3))
        workload = Workload(name="attend", folder="", run=run, args=inputs, loss=lambda f, *a: f(*a).float().sum())
        request = CaptureRequest(model="attend", device=device, mode="backward" if training else "inference")
        return lower_program(trace(workload, request, no_progress)).graph


def largest(graph: Graph) -> int:
    return max(
        b for b, r in zip(graph.buffers.bytes, graph.buffers.role, strict=True) if r in ("activation", "gradient")
    )


SCORES = 4 * 256 * 256
FLASH, EFFICIENT, CUDNN, MATH = (
    SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.CUDNN_ATTENTION, SDPBackend.MATH,
)  # fmt: skip


@pytest.mark.parametrize(
    ("backends", "by_priority", "kernel"),
    [
        ([FLASH], False, "flash_attention"),
        ([EFFICIENT], False, "efficient_attention"),
        ([CUDNN], False, "cudnn_attention"),
        ([MATH], False, "bmm"),
        ([EFFICIENT, FLASH], False, "flash_attention"),
        ([EFFICIENT, FLASH], True, "efficient_attention"),
        ([CUDNN, MATH, FLASH], True, "cudnn_attention"),
    ],
)
def test_the_backends_that_the_model_allows_decide_the_kernel(
    backends: list[SDPBackend], by_priority: bool, kernel: str
) -> None:
    with sdpa_kernel(backends, set_priority=by_priority):
        graph = attention_graph("cuda", dtype=BF16)
    assert any(kernel in target for target in graph.ops.target)
    assert (largest(graph) >= SCORES * 2) is (backends == [MATH])


@pytest.mark.parametrize("switch", ["flash", "mem_efficient", "math"])
def test_switches_of_the_cuda_backend_decide_the_kernel(switch: str) -> None:
    enable = getattr(torch.backends.cuda, f"enable_{switch}_sdp")
    enable(False)
    try:
        targets = attention_graph("cuda", dtype=BF16).ops.target
    finally:
        enable(True)
    taken = "efficient_attention" if switch == "flash" else "flash_attention"
    assert any(taken in target for target in targets)


def test_switches_decide_the_kernel_on_the_cpu_too() -> None:
    with sdpa_kernel(MATH):
        assert largest(attention_graph("cpu", dtype=F32)) >= 4 * SCORES


@pytest.mark.parametrize("backend", [FLASH, CUDNN])
def test_a_choice_that_no_kernel_serves_is_one_line(tmp_path: Path, backend: SDPBackend) -> None:
    path = tmp_path / "m.py"
    path.write_text(
        "import torch\n"
        "from torch.nn.attention import SDPBackend, sdpa_kernel\n"
        "def attend(q):\n"
        f"    with sdpa_kernel(SDPBackend.{backend.name}):\n"
        "        return torch.nn.functional.scaled_dot_product_attention(q, q, q)\n"
        "model = lambda: attend\n"
        "inputs = lambda: torch.zeros(1, 2, 8, 64)\n"
    )
    with pytest.raises(CaptureFailed, match=rf"m\.py:5: .*no attention kernel for float32.*allowed: {backend.name}"):
        capture(CaptureRequest(model=str(path), device="cuda"))


def test_half_precision_on_cuda_runs_flash_and_keeps_a_row_of_log_sum_exps() -> None:
    graph = attention_graph("cuda", dtype=BF16, training=True)
    assert "aten._scaled_dot_product_flash_attention.default" in graph.ops.target
    assert "aten._scaled_dot_product_flash_attention_backward.default" in graph.ops.target
    assert largest(graph) < 2 * SCORES
    assert (1, 4, 256) in [graph.values.shape[v] for vs in graph.ops.saves for v in vs]


def test_single_precision_and_masks_on_cuda_run_memory_efficient_attention() -> None:
    for graph in (attention_graph("cuda", dtype=F32, training=True), attention_graph("cuda", dtype=BF16, mask=True)):
        assert "aten._scaled_dot_product_efficient_attention.default" in graph.ops.target
        assert largest(graph) < 2 * SCORES


def test_double_precision_on_cuda_holds_the_scores() -> None:
    assert largest(attention_graph("cuda", dtype=F64)) >= 8 * SCORES


def test_attention_on_the_cpu_is_torchs_own_choice() -> None:
    graph = attention_graph("cpu", dtype=F32)
    assert "aten._scaled_dot_product_flash_attention_for_cpu.default" in graph.ops.target
    assert largest(attention_graph("cpu", dtype=F32, dropout=0.1)) >= 4 * SCORES


def test_dropout_on_cuda_keeps_a_boolean_mask_and_on_the_cpu_a_scaled_one() -> None:
    def graph_of(device: str) -> Graph:
        with fake_environment(device):
            x = torch.empty(64, 64, requires_grad=True)
            work = Workload(
                name="d",
                folder="",
                run=lambda x: torch.nn.functional.dropout(x, 0.5),
                args=(x,),
                loss=lambda f, x: f(x).sum(),
            )
            return lower_program(
                trace(work, CaptureRequest(model="d", device=device, mode="backward"), no_progress)
            ).graph

    cuda, cpu = graph_of("cuda"), graph_of("cpu")
    assert "aten.native_dropout.default" in cuda.ops.target
    assert "aten.bernoulli_.float" in cpu.ops.target
    assert 64 * 64 in cuda.buffers.bytes
    assert 64 * 64 not in cpu.buffers.bytes


def test_rules_for_cuda_leave_torch_as_it_was() -> None:
    x = torch.ones(4, 4, requires_grad=True)
    before = dict(torch.ops.aten.dropout.default.py_kernels)
    with fake_environment("cuda"):
        torch.empty(2, 2).softmax(-1)
    assert torch.ops.aten.dropout.default.py_kernels == before
    assert torch.nn.functional.dropout(x, 0.0).equal(x)


def test_fused_attention_modules_reach_the_rule_too(tmp_path: Path) -> None:
    path = tmp_path / "m.py"
    path.write_text(
        "import torch\n"
        "model = lambda: torch.nn.TransformerEncoderLayer(64, 4, batch_first=True, dtype=torch.bfloat16)\n"
        "inputs = lambda: torch.zeros(2, 512, 64, dtype=torch.bfloat16)\n"
    )
    graph = lower_program(capture(CaptureRequest(model=str(path), device="cuda"))).graph
    assert "aten._scaled_dot_product_flash_attention.default" in graph.ops.target
