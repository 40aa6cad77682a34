"""Every operator between ranks that this torch has marks what it writes, or has a row that says it."""

from collections.abc import Iterator

import pytest
import torch

from tmmu.errors import UnsupportedOp
from tmmu.passes.capture.record.custom_operators import require_known_collective
from tmmu.passes.operators.collectives import NAMESPACES, READS_ALONE, WRITES
from tmmu.passes.operators.schema import signature, written_arguments

pytest.importorskip("torch.distributed")


def operators() -> Iterator[torch._ops.OpOverload]:
    import torch.distributed._functional_collectives  # noqa: PLC0415 - with what follows, all that register operators
    import torch.distributed._symmetric_memory  # noqa: PLC0415
    import torch.distributed.fsdp  # noqa: PLC0415

    for schema in torch._C._jit_get_all_schemas():
        namespace, _, name = schema.name.partition("::")
        if namespace in NAMESPACES:
            yield getattr(getattr(getattr(torch.ops, namespace), name), schema.overload_name or "default")


def test_each_is_known_and_has_one_row() -> None:
    found = {str(op).rpartition(".")[0] for op in operators()}
    assert len(found) > 80
    for op in operators():
        require_known_collective(op)
    assert found >= {*WRITES, *READS_ALONE}, "a row without an operator"
    assert not READS_ALONE & WRITES.keys()
    marked = {signature(op).name.rpartition(".")[0] for op in operators() if signature(op).positions}
    assert not marked & {*WRITES, *READS_ALONE}, "the schema says it"


def test_the_recorder_knows_what_each_writes() -> None:
    for op in operators():
        positions = WRITES.get(str(op).rpartition(".")[0])
        if positions is not None:
            arguments = tuple(range(100, 100 + len(op._schema.arguments)))
            assert written_arguments(op, arguments, {}) == [arguments[position] for position in positions], op


def test_one_that_is_new_and_marks_nothing_is_refused() -> None:
    library = torch.library.Library("fsdp", "FRAGMENT")
    library.define("gather_later(Tensor a, Tensor b) -> Tensor")
    library.define("gather_here(Tensor(a!) a) -> ()")
    require_known_collective(torch.ops.fsdp.gather_here.default)
    with pytest.raises(UnsupportedOp, match=r"fsdp\.gather_later\.default is of a torch that has more"):
        require_known_collective(torch.ops.fsdp.gather_later.default)
    library._destroy()
