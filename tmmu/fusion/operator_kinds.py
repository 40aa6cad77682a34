"""Which operators can be members of a fused kernel: one row each. What has no row is never fused.

The kind says how an operator reads its arguments, by which regions are cut: a *product* reads each element of its
operands many times, so they lie in memory and are no other member's formula.
"""

from collections.abc import Mapping
from typing import Any, Final

from tmmu.errors import InternalError
from tmmu.passes.operators.table import TABLE

ELEMENTWISE: Final = "elementwise"
"""Each element of a result is a formula of one element of each argument, broadcast; in place too."""
MAKER: Final = "maker"
"""Makes numbers of no tensor's, or of its shape alone; or room for what another member writes."""
MOVE: Final = "move"
"""Each element of a result is one of an argument's."""
REDUCTION: Final = "reduction"
"""Reads rows as a whole: sums, softmax, norms and their gradients."""
PRODUCT: Final = "product"
"""A matrix product of one row."""
ATTENTION: Final = "attention"
"""Attention of few query rows over a cache."""

_MAKERS: Final = """
arange arange.start arange.start_step empty.memory_format empty_like empty_strided full full_like new_empty
new_empty_strided new_full new_ones new_zeros ones ones_like scalar_tensor zeros zeros_like
""".split()

_MOVES: Final = """
_to_copy cat clone copy_ embedding gather index.Tensor index_copy_ index_select
""".split()

_REDUCTIONS: Final = """
_fused_rms_norm _log_softmax _log_softmax_backward_data _softmax _softmax_backward_data all.dim amax amin any.dim mean
mean.dim native_layer_norm native_layer_norm_backward nll_loss_backward nll_loss_forward sum sum.dim_IntList
var_mean.correction
""".split()

_IN_PLACE: Final = """
add_.Scalar add_.Tensor addcdiv_ addcmul_ clamp_ clamp_min_ div_.Scalar div_.Tensor exp_ fill_.Scalar lerp_.Scalar
log_ masked_fill_.Scalar masked_fill_.Tensor mul_.Scalar mul_.Tensor neg_ pow_.Scalar reciprocal_ relu_ rsqrt_
sigmoid_ silu_ sqrt_ sub_.Scalar sub_.Tensor tanh_ zero_
""".split()

_PRODUCTS: Final = """
addmm bmm bmm.out mm mm.out
""".split()

_ATTENTIONS: Final = """
_scaled_dot_product_flash_attention_for_cpu
""".split()

_LEFT_ALONE: Final = """
angle conj_physical digamma erfinv lgamma logit nan_to_num nextafter polygamma round.decimals
""".split()
"""Elementwise operators that keep their kernels: of complex numbers, or such that no fused case of them was tried."""


def _table() -> Mapping[str, str]:
    elementwise = [name for name, facts in TABLE.items() if facts.elementwise and not facts.random]
    rows = dict.fromkeys(elementwise, ELEMENTWISE)
    for name in map(_full, _LEFT_ALONE):
        del rows[name]
    kinds = (
        (_IN_PLACE, ELEMENTWISE), (_MAKERS, MAKER), (_MOVES, MOVE), (_REDUCTIONS, REDUCTION), (_PRODUCTS, PRODUCT),
        (_ATTENTIONS, ATTENTION),
    )  # fmt: skip
    for names, kind in kinds:
        for name in map(_full, names):
            if rows.get(name, ELEMENTWISE) != ELEMENTWISE:
                raise InternalError(f"operator {name} has two kinds")
            rows[name] = kind
    return rows


def _full(name: str) -> str:
    return f"aten.{name}" if "." in name else f"aten.{name}.default"


KINDS: Final = _table()
"""Kind by operator, such as ``aten.add.Tensor``."""


def kind_of(operator: Any) -> str | None:
    """The kind of an operator; ``None`` for one that is never fused."""
    return KINDS.get(str(operator))
