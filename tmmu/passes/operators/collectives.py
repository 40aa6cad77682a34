"""What operators between ranks write: schemas of torch hide it, and no trial on real tensors would show it.

A collective writes when other ranks do, and until somebody has waited for it; under a process group without the others
nothing is written at all. So each operator of these namespaces has a row here, or a schema that marks what it writes.
"""

from typing import Final

NAMESPACES: Final = frozenset({"c10d", "_c10d_functional", "c10d_functional", "fsdp", "symm_mem"})
"""Of operators between ranks."""

_FIRST: Final = (0,)

WRITES: Final[dict[str, tuple[int, ...]]] = {
    "fsdp.all_gather_copy_in": (1,),
    "symm_mem.one_shot_all_reduce_copy": _FIRST,
    "symm_mem.nccl_wait_for_signal": _FIRST,
    "symm_mem.nvshmem_wait_for_signal": _FIRST,
    **{
        f"{namespace}.{name}": positions
        for namespace in ("_c10d_functional", "c10d_functional")
        for name, positions in (("wait_tensor", _FIRST), ("irecv", _FIRST), ("isend", _FIRST), ("batch_p2p_ops", (3,)))
    },
    **{
        f"c10d.{name}": _FIRST
        for name in (
            "_allgather_base_",
            "_reduce_scatter_base_",
            "allgather_",
            "allgather_coalesced_",
            "allgather_into_tensor_coalesced_",
            "allreduce_",
            "allreduce_coalesced_",
            "alltoall_",
            "alltoall_base_",
            "broadcast_",
            "gather_",
            "recv_",
            "recv_any_source_",
            "reduce_",
            "reduce_scatter_",
            "reduce_scatter_tensor_coalesced_",
            "scatter_",
        )
    },
}
"""Positions of arguments that operators write and do not say so, or after whose op others must come as after a write:
a call that hands out its argument, to be waited for, is no view of it."""

_MADE_NEW: Final = (
    "all_gather_into_tensor",
    "all_gather_into_tensor_coalesced",
    "all_reduce",
    "all_reduce_coalesced",
    "all_to_all_single",
    "broadcast",
    "reduce_scatter_tensor",
    "reduce_scatter_tensor_coalesced",
)

READS_ALONE: Final = frozenset(
    [
        "_c10d_functional._wrap_tensor_autograd",
        *(f"{namespace}.{name}" for namespace in ("_c10d_functional", "c10d_functional") for name in _MADE_NEW),
        *(f"c10d.{name}" for name in ("barrier", "check_for_nan", "monitored_barrier_", "send")),
        *(
            f"symm_mem.{name}"
            for name in (
                "_async_input_mm",
                "_barrier",
                "_low_contention_all_gather",
                "_low_contention_reduce_scatter",
                "_rendezvous",
                "fused_all_gather_matmul",
                "fused_all_gather_scaled_matmul",
                "fused_matmul_reduce_scatter",
                "fused_scaled_matmul_reduce_scatter",
                "get_remote_tensors",
                "multimem_one_shot_all_reduce",
                "nccl_put_signal",
                "nccl_put_with_signal",
                "nccl_wait_signal",
                "nvshmem_put_with_signal",
                "one_shot_all_reduce",
            )
        ),
    ]
)
"""Operators that write none of their arguments: their results are new, or other ranks' memory is what they write."""


def is_known(name: str) -> bool:
    """Whether it is known of an operator of ``NAMESPACES``, by its name without overload, what it writes."""
    return name in WRITES or name in READS_ALONE
