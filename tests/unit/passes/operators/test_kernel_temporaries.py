"""Kernels' own temporaries: the arithmetic of each formula, and an answer for every listed operator of the corpus."""

from pathlib import Path

import pytest
import torch

from tmmu.codec.read import read_graph
from tmmu.ir.graph import Buffers, Graph, Notes, OpNotes, Ops, Values
from tmmu.ir.ids import BufferId, ValueId
from tmmu.passes.operators.kernel_temporaries import CUBLAS_WORKSPACE, TABLE, base_name, kernel_temporaries

GOLDEN = sorted((Path(__file__).parents[4] / "golden").glob("*.ir.cbor"))
Operand = tuple[str, tuple[int, ...], tuple[int, ...] | None]


def row_major(shape: tuple[int, ...]) -> tuple[int, ...]:
    steps, step = [], 1
    for size in reversed(shape):
        steps.append(step)
        step *= size
    return tuple(reversed(steps))


def one_op(target: str, reads: list[Operand], writes: list[Operand]) -> Graph:
    operands = [*reads, *writes]
    count, ids = len(operands), [ValueId(i) for i in range(len(operands))]
    return Graph(
        target="cuda",
        buffers=Buffers(bytes=(1 << 40,) * count, role=("input",) * len(reads) + ("activation",) * len(writes)),
        values=Values(
            buffer=tuple(map(BufferId, range(count))),
            offset=(0,) * count,
            shape=tuple(shape for _, shape, _ in operands),
            stride=tuple(stride or row_major(shape) for _, shape, stride in operands),
            dtype=tuple(dtype for dtype, _, _ in operands),
        ),
        ops=Ops(
            target=(target,), reads=(tuple(ids[: len(reads)]),), writes=(tuple(ids[len(reads) :]),), overwrites=((),),
            saves=((),), recompute=(False,), stage=("forward",),
        ),
        inputs=(),
        outputs=(),
        notes=Notes(
            name="m", buffers=("",) * count,
            ops=OpNotes(phase=("unknown",), modality=("unknown",), flops=(0,), module=("",), source=("m.py:3",)),
        ),
    )  # fmt: skip


def dense(dtype: str, *shape: int) -> Operand:
    return dtype, shape, None


def attention(
    dtype: str, batch: int, heads: int, length: int, keys: int, size: int, key_heads: int = 0
) -> list[Operand]:
    key = dense(dtype, batch, key_heads or heads, keys, size)
    return [dense(dtype, batch, heads, length, size), key, key]


CUBLAS = CUBLAS_WORKSPACE
HALF_KEYS = attention("float16", 2, 8, 1, 4096, 64)
BACKWARD = "aten._scaled_dot_product_flash_attention_backward.default"
FLASH = "aten._scaled_dot_product_flash_attention.default"
CASES: dict[str, tuple[str, list[Operand], list[Operand], int | None]] = {
    "product": ("aten.mm.default", [dense("float32", 4, 8), dense("float32", 8, 4)], [], CUBLAS),
    "turned": ("aten.mm.default", [("float32", (4, 8), (1, 4)), dense("float32", 8, 4)], [], CUBLAS),
    "strided": ("aten.mm.default", [("float32", (4, 8), (32, 2)), dense("float32", 8, 4)], [], CUBLAS + 4 * 8 * 4),
    "expanded rows": ("aten.bmm.default", [("float16", (2, 4, 8), (0, 0, 1))], [], CUBLAS + 2 * 4 * 8 * 2),
    "scaled": ("aten._scaled_mm.default", [dense("float8_e4m3fn", 16, 16)], [], CUBLAS),
    "few rows": (FLASH, HALF_KEYS, [], 4 * 16 * 2 * 8 * 1 * (64 + 1)),
    "few keys": (FLASH, attention("float16", 2, 8, 1, 256, 64), [], 0),
    "many rows": (FLASH, attention("float16", 8, 16, 1024, 1024, 64), [], 0),
    "at most 128 splits": (FLASH, attention("float16", 1, 1, 1, 1 << 16, 96), [], 4 * 128 * 1 * (96 + 1)),
    "wide heads": (FLASH, attention("float16", 1, 1, 1, 256, 200), [], 4 * 4 * (256 + 1)),
    "one tensor": (FLASH, [dense("float16", 1, 1, 64, 64)], [], 0),
    "gradient": (
        BACKWARD, [dense("float16", 2, 4, 100, 64), *attention("float16", 2, 4, 100, 80, 64)], [],
        4 * 2 * 4 * 128 * (64 + 1),
    ),
    "grouped gradient": (
        BACKWARD, [dense("float16", 2, 4, 100, 64), *attention("float16", 2, 4, 100, 80, 64, key_heads=2)], [],
        4 * 2 * 4 * 128 * (64 + 1) + 2 * 2 * 80 * 4 * 64 * 2,
    ),
    "efficient, half": (
        "aten._scaled_dot_product_efficient_attention.default", [], [dense("bfloat16", 2, 4, 10, 64)], 4 * 2 * 4 * 640,
    ),
    "efficient, single": (
        "aten._scaled_dot_product_efficient_attention.default", [], [dense("float32", 2, 4, 10, 64)], 0,
    ),
    "few indices": (
        "aten.embedding_dense_backward.default", [dense("float32", 3072, 8), dense("int64", 3072)], [], 0,
    ),
    "many indices": (
        "aten.embedding_dense_backward.default", [dense("float32", 3073, 8), dense("int64", 3073)], [], None,
    ),
    "numbers as indices": ("aten.index.Tensor", [dense("float32", 8), dense("int64", 3)], [], 0),
    "a mask as index": ("aten.index.Tensor", [dense("float32", 8), dense("bool", 8)], [], None),
    "groups": ("aten.native_group_norm.default", [dense("float32", 2, 6, 5, 5)], [], 2 * 4 * 2 * 6),
    "cuDNN": ("aten.convolution.default", [dense("float32", 1, 3, 8, 8)], [], None),
    "no row": ("aten.add.Tensor", [dense("float32", 8)], [], 0),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_bound_of_one_call_is_its_formula(name: str) -> None:
    target, reads, writes, expected = CASES[name]
    found = kernel_temporaries(one_op(target, reads, writes))
    assert found.unknown == ((target,) if expected is None else ())
    assert found.bytes == (expected or 0)
    is_listed = base_name(target) in TABLE and expected is not None
    assert (found.operator, found.source) == ((target, "m.py:3") if is_listed else ("", ""))


def test_bounds_that_deterministic_algorithms_exceed_are_unknown_under_them() -> None:
    _, reads, writes, _ = CASES["gradient"]
    found = kernel_temporaries(one_op(BACKWARD, reads, writes), deterministic=True)
    assert (found.bytes, found.unknown) == (0, (BACKWARD,))


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.name)
def test_each_listed_operator_of_the_corpus_has_a_bound_or_is_named(path: Path) -> None:
    graph = read_graph(path)
    found = kernel_temporaries(graph)
    sizes = {op: TABLE[base_name(t)].bound(graph, op) for op, t in enumerate(graph.ops.target) if base_name(t) in TABLE}
    assert found.unknown == tuple(sorted({graph.ops.target[op] for op, size in sizes.items() if size is None}))
    known = [size for size in sizes.values() if size is not None]
    assert found.bytes == found.kept + max(known, default=0)
    assert (found.op is None) == (not known)
    if found.op is not None:
        assert sizes[found.op] == max(known)


def test_rows_name_operators_of_torch_and_whence_their_figures_are() -> None:
    absent = [name for name in TABLE if not hasattr(torch.ops.aten, name)]
    assert set(absent) <= {"_scaled_mm_v2"}  # newer than the oldest torch
    assert all(row.formula and row.origin for row in TABLE.values())
