"""Which attention kernel a GPU would run, and what the graph then holds."""

from pathlib import Path

import pytest
import torch

from tmmu.ir.graph import Graph
from tmmu.passes.capture.fake.attention import efficient_applies, flash_applies
from tmmu.passes.capture.request import CaptureRequest, no_progress
from tmmu.passes.capture.trace import fake_environment, trace
from tmmu.passes.capture.workload import Workload
from tmmu.passes.pipeline import lower_program

BF16, F32, F64 = torch.bfloat16, torch.float32, torch.float64


def qkv(
    heads: int = 4, kv_heads: int = 4, length: int = 8, keys: int = 8, size: int = 64, dtype: torch.dtype = BF16
) -> list[torch.Tensor]:
    return [torch.empty(2, h, n, size, dtype=dtype) for h, n in ((heads, length), (kv_heads, keys), (kv_heads, keys))]


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
    options: dict[str, int], causal: bool, grouped: bool, flash: bool
) -> None:
    assert flash_applies(*qkv(**options), None, is_causal=causal, enable_gqa=grouped) is flash  # type: ignore[arg-type]


def test_flash_attention_takes_no_mask() -> None:
    assert not flash_applies(*qkv(), torch.ones(8, 8, dtype=torch.bool), is_causal=False, enable_gqa=False)


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
    options: dict[str, int], grouped: bool, efficient: bool
) -> None:
    mask = torch.ones(8, 8, dtype=torch.bool)
    assert efficient_applies(*qkv(**options), mask, enable_gqa=grouped) is efficient  # type: ignore[arg-type]


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
    from tmmu.passes.capture.trace import capture  # noqa: PLC0415

    graph = lower_program(capture(CaptureRequest(model=str(path), device="cuda"))).graph
    assert "aten._scaled_dot_product_flash_attention.default" in graph.ops.target
