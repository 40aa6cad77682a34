"""What kernels of a GPU hold beside their results while they run: an upper bound in bytes by operator, or unknown.

A plan has an operator's arguments and results, not what its kernel allocates inside: workspaces of libraries and
temporaries. One row an operator of which torch's CUDA source says that it holds such memory; an operator without a row
is taken to hold none. Each row gives its formula and whence it is: a file of torch's public source, or ``UNREAD`` where
it is general knowledge that nobody checked against the source. No bound is promised where a library (cuDNN, cuFFT,
cuSOLVER, CUB) decides, or where the size follows from the GPU: these are *unknown*, and named.

A *kept* workspace is allocated by the first call that needs it and stays for the process, so that it counts once;
all else ends with its call, so that the largest counts. All figures hold for one stream and torch's default switches.
docs/spec/kernel-temporaries.md is the table for readers.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Final, TypeAlias

from tmmu.ir.graph import DTYPE_BYTES, Graph

Bound: TypeAlias = Callable[[Graph, int], int | None]
"""Bytes that one op holds beside its results; ``None`` where no bound is known for it."""

CUBLAS_WORKSPACE: Final = 32 << 20
"""Of a GPU of compute capability 9.0 or more; 8.125 MiB before. ``CUBLAS_WORKSPACE_CONFIG`` may say otherwise."""
SORTED_INDICES: Final = 3072
"""Indices up to which the gradient of an embedding is summed without sorting them."""
MAX_SPLITS: Final = 128
MAX_PROCESSORS: Final = 192
"""Streaming multiprocessors, above those of any GPU that torch runs on; more of them only make more splits."""
FLASH_ROWS: Final = 128
UNREAD: Final = "not checked against the source"
_FLOAT: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class TemporaryRow:
    """One operator: its formula as text, where that is from, what a call holds, and what stays after the first one."""

    formula: str
    origin: str
    bound: Bound
    kept: int = 0
    deterministic: bool = True
    """Whether the bound also holds under deterministic algorithms."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelTemporaries:
    """Of a graph: the bound over all ops that have one, the op at which it is reached, and operators without one."""

    bytes: int
    kept: int
    op: int | None
    operator: str
    source: str
    unknown: tuple[str, ...]


def kernel_temporaries(graph: Graph, *, deterministic: bool = False) -> KernelTemporaries:
    """The bound for one run of the graph on a GPU. Linear in the graph.

    ``deterministic``: under ``torch.use_deterministic_algorithms``, where some kernels hold more.
    """
    kept, largest, place = 0, -1, None
    unknown: dict[str, None] = {}
    for op, target in enumerate(graph.ops.target):
        row = TABLE.get(base_name(target))
        if row is None:
            continue
        size = row.bound(graph, op) if row.deterministic or not deterministic else None
        kept = max(kept, row.kept)
        if size is None:
            unknown.setdefault(target)
        elif size > largest:
            largest, place = size, op
    return KernelTemporaries(
        bytes=kept + max(largest, 0),
        kept=kept,
        op=place,
        operator="" if place is None else graph.ops.target[place],
        source="" if place is None else graph.notes.ops.source[place],
        unknown=tuple(sorted(unknown)),
    )


def base_name(target: str) -> str:
    """``addmm`` of ``aten.addmm.default``; the name of an operator that writes in place keeps its mark."""
    namespace, _, name = target.partition(".")
    return name.partition(".")[0] if namespace == "aten" else ""


def _shape(graph: Graph, value: int) -> tuple[int, ...]:
    return graph.values.shape[value]


def _bytes(graph: Graph, value: int) -> int:
    return prod(_shape(graph, value)) * DTYPE_BYTES[graph.values.dtype[value]]


def _round_up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple


def _unknown(graph: Graph, op: int) -> None:
    del graph, op


def _copied_matrices(graph: Graph, op: int) -> int:
    """Operands that cuBLAS cannot read as they lie, which torch copies: no axis of step 1, or rows that overlap."""
    return sum(_bytes(graph, value) for value in graph.ops.reads[op] if _must_be_copied(graph, value))


def _must_be_copied(graph: Graph, value: int) -> bool:
    shape, stride = graph.values.shape[value], graph.values.stride[value]
    if len(shape) < 2:
        return False
    (rows, columns), (row_step, column_step) = shape[-2:], stride[-2:]
    is_row_major = column_step == 1 and row_step >= max(1, columns)
    is_column_major = row_step == 1 and column_step >= max(1, rows)
    return not (is_row_major or is_column_major)


def _embedding_gradient(graph: Graph, op: int) -> int | None:
    """The indices are the integers among what is read; many of them are sorted by CUB."""
    counts = [prod(_shape(graph, v)) for v in graph.ops.reads[op] if graph.values.dtype[v].startswith("int")]
    return 0 if counts and max(counts) <= SORTED_INDICES else None


def _index(graph: Graph, op: int) -> int | None:
    """Places that a mask selects are found by CUB first."""
    dtypes = {graph.values.dtype[value] for value in graph.ops.reads[op][1:]}
    return None if dtypes & {"bool", "uint8"} else 0


def _heads(graph: Graph, value: int) -> tuple[int, int, int, int]:
    batch, heads, length, size = _shape(graph, value)
    return batch, heads, length, size


def _padded_head(size: int) -> int:
    return _round_up(size, 32) if size <= 192 else 256


def _flash_splits(graph: Graph, op: int) -> int | None:
    """``float32[splits, batch, heads, L, E + 1]``; splits are for few rows alone, and fill no more than the GPU."""
    reads = graph.ops.reads[op]  # a tensor that is query and key is read once
    query, key = reads[0], reads[min(1, len(reads) - 1)]
    if len(_shape(graph, query)) != 4 or len(_shape(graph, key)) != 4:
        return None
    batch, heads, length, size = _heads(graph, query)
    block = 256 if size <= 64 else 128 if size <= 128 else 64
    splits = min(MAX_SPLITS, -(-_heads(graph, key)[2] // block))
    # The heuristic does not split where the blocks of rows fill four fifths of twice the processors.
    if splits <= 1 or 10 * batch * heads * -(-length // 64) >= 16 * MAX_PROCESSORS:
        return 0
    return _FLOAT * splits * batch * heads * length * (_padded_head(size) + 1)


def _flash_gradient(graph: Graph, op: int) -> int | None:
    """A row of sums and the query's gradient in float32, rows rounded up; grouped heads are written apart first."""
    heads_first = [v for v in graph.ops.reads[op] if len(_shape(graph, v)) == 4]
    if len(heads_first) < 3:
        return None
    _, query, key = heads_first[:3]
    batch, heads, length, size = _heads(graph, query)
    rows = batch * heads * _round_up(length, FLASH_ROWS)
    sums = _FLOAT * rows * (_padded_head(size) + 1)
    key_heads, key_length = _heads(graph, key)[1:3]
    is_grouped = key_heads != heads
    apart = 2 * batch * key_length * heads * size * DTYPE_BYTES[graph.values.dtype[key]] if is_grouped else 0
    return sums + apart


def _efficient_accumulator(graph: Graph, op: int) -> int:
    """Half precision is summed in float32 where a head does not fit into one block: as many numbers as the output."""
    output = graph.ops.writes[op][0]
    return 0 if graph.values.dtype[output] == "float32" else _FLOAT * prod(_shape(graph, output))


def _group_norm(graph: Graph, op: int) -> int:
    """Two numbers a channel of each sample."""
    return 2 * _FLOAT * prod(_shape(graph, graph.ops.reads[op][0])[:2])


def _rows(names: Sequence[str], row: TemporaryRow) -> dict[str, TemporaryRow]:
    return dict.fromkeys(names, row)


def _unbounded(names: str, origin: str) -> dict[str, TemporaryRow]:
    return _rows(names.split(), TemporaryRow(formula="unknown", origin=origin, bound=_unknown))


TABLE: Final[Mapping[str, TemporaryRow]] = {
    **_rows(
        [
            "mm",
            "addmm",
            "addmm_",
            "bmm",
            "baddbmm",
            "baddbmm_",
            "mv",
            "addmv",
            "addmv_",
            "addbmm",
            "dot",
            "vdot",
            "linear",
            "_addmm_activation",
        ],
        TemporaryRow(
            formula="32 MiB kept + bytes of operands that are neither row- nor column-major",
            origin="aten/src/ATen/cuda/CublasHandlePool.cpp, aten/src/ATen/native/cuda/Blas.cpp",
            bound=_copied_matrices,
            kept=CUBLAS_WORKSPACE,
        ),
    ),
    **_rows(
        ["_int_mm", "_scaled_mm", "_scaled_mm_v2"],
        TemporaryRow(
            formula="32 MiB kept",
            origin="aten/src/ATen/cuda/CublasHandlePool.cpp",
            bound=lambda _graph, _op: 0,
            kept=CUBLAS_WORKSPACE,
        ),
    ),
    "_scaled_dot_product_flash_attention": TemporaryRow(
        formula="4 * splits * B * H * L * (round32(E) + 1), splits <= min(128, S / block), 0 for many rows",
        origin="aten/src/ATen/native/transformers/cuda/flash_attn/flash_api.cpp",
        bound=_flash_splits,
    ),
    "_scaled_dot_product_flash_attention_backward": TemporaryRow(
        formula="4 * B * H * round128(L) * (round32(E) + 1), + 2 * B * S * H * E elements for grouped heads",
        origin="aten/src/ATen/native/transformers/cuda/flash_attn/flash_api.cpp",
        bound=_flash_gradient,
        deterministic=False,
    ),
    "_scaled_dot_product_efficient_attention": TemporaryRow(
        formula="4 * elements of the output in half precision, 0 in single", origin=UNREAD, bound=_efficient_accumulator
    ),
    "embedding_dense_backward": TemporaryRow(
        formula="0 up to 3072 indices, else unknown",
        origin="aten/src/ATen/native/cuda/Embedding.cu",
        bound=_embedding_gradient,
        deterministic=False,
    ),
    **_rows(
        ["index", "_unsafe_index"],
        TemporaryRow(
            formula="0, unknown with a mask among the indices",
            origin="aten/src/ATen/native/TensorAdvancedIndexing.cpp",
            bound=_index,
        ),
    ),
    "native_group_norm": TemporaryRow(formula="8 * N * C", origin=UNREAD, bound=_group_norm),
    **_unbounded(
        "convolution convolution_backward _convolution cudnn_convolution cudnn_convolution_transpose _cudnn_rnn "
        "native_batch_norm native_batch_norm_backward cudnn_batch_norm cudnn_batch_norm_backward "
        "_scaled_dot_product_cudnn_attention _scaled_dot_product_cudnn_attention_backward",
        "cuDNN chooses; with torch.backends.cudnn.benchmark it may try all free memory",
    ),
    **_unbounded(
        "_scaled_dot_product_efficient_attention_backward _grouped_mm _scaled_grouped_mm",
        "CUTLASS kernels ask for a workspace by their own tiles",
    ),
    **_unbounded(
        "sort argsort msort topk kthvalue median nanmedian mode unique_dim _unique2 unique_consecutive nonzero "
        "nonzero_static masked_select masked_scatter masked_scatter_ cumsum cumsum_ cumprod cumprod_ logcumsumexp "
        "cummax cummin _cummax_helper _cummin_helper index_put index_put_ _index_put_impl_ _unsafe_index_put "
        "repeat_interleave multinomial randperm bincount histc searchsorted bucketize "
        "_embedding_bag _embedding_bag_dense_backward embedding_renorm_",
        "CUB and Thrust sort, scan or select in buffers whose size they say at run time",
    ),
    **_unbounded(
        "sum nansum mean prod amax amin aminmax max min any all var std var_mean std_mean argmax argmin norm "
        "linalg_vector_norm logsumexp count_nonzero _foreach_norm nll_loss_forward nll_loss2d_forward "
        "mse_loss smooth_l1_loss huber_loss binary_cross_entropy native_layer_norm_backward _fused_rms_norm_backward "
        "native_group_norm_backward",
        "aten/src/ATen/native/cuda/Reduce.cuh: partial results of blocks, as many as fill the GPU",
    ),
    **_unbounded("_fft_r2c _fft_c2r _fft_c2c", "cuFFT's plans have work areas"),
    **_unbounded(
        "linalg_cholesky_ex cholesky_inverse cholesky_solve linalg_lu_factor_ex linalg_lu linalg_lu_solve linalg_qr "
        "geqrf ormqr linalg_householder_product _linalg_eigh linalg_eig _linalg_eigvals _linalg_svd linalg_inv_ex "
        "_linalg_det _linalg_slogdet _linalg_solve_ex linalg_ldl_factor_ex linalg_ldl_solve linalg_lstsq "
        "linalg_solve_triangular triangular_solve linalg_pinv linalg_matrix_exp",
        "cuSOLVER and MAGMA ask for workspaces",
    ),
    **_unbounded("_ctc_loss _ctc_loss_backward grid_sampler_2d_backward grid_sampler_3d_backward", UNREAD),
}
"""By the operator's name without namespace and overload."""
