"""The five classes of operators, which decide what a call on remote tensors does now and what it leaves for later."""

from enum import Enum
from typing import Final

import torch

from tmmu.passes.operators.schema import signature
from tmmu.torch_private import OpOverload, schema_of
from tmmu.wire.graph_operators import SIZED_OPERATORS, is_in, packet_name

_aten: Final = torch.ops.aten


class OperatorClass(Enum):
    """``TRIGGER``: asks for a value, so the recording runs. ``SHAPE_DEPENDENT``: values decide the result's shape, so
    that it runs, and the shape comes back. ``REDUCTION``: what comes out is much smaller than what went in, so that
    tensors are moved to it. ``TUPLE``: several results. ``COMPUTE``: all else.
    """

    TRIGGER = "trigger"
    REDUCTION = "reduction"
    SHAPE_DEPENDENT = "shape-dependent"
    TUPLE = "tuple"
    COMPUTE = "compute"


_TRIGGERS: Final = frozenset({_aten._local_scalar_dense.default, _aten.equal.default})
_REDUCTIONS: Final = frozenset(
    """
all amax amin any argmax argmin count_nonzero dist dot kthvalue linalg_vector_norm logsumexp max mean median min mode
mse_loss nanmedian nansum nll_loss_forward norm prod std sum topk trace var vdot
""".split()
)


def class_of(operator: OpOverload) -> OperatorClass:
    """The class of an operator; of one with several, the first in the order of the enumeration."""
    name = str(operator)
    if operator in _TRIGGERS:
        return OperatorClass.TRIGGER
    if packet_name(name) in _REDUCTIONS and not signature(operator).mutates:
        return OperatorClass.REDUCTION
    if is_in(name, SIZED_OPERATORS) and operator is not _aten.index.Tensor:
        return OperatorClass.SHAPE_DEPENDENT
    if len(schema_of(operator).returns) > 1:
        return OperatorClass.TUPLE
    return OperatorClass.COMPUTE
