"""A result made from the cache has the form, and shares the storages, of one that a fake kernel made."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from tmmu.passes.capture.record import call_cache
from tmmu.passes.capture.record.call_cache import CallCache
from tmmu.torch_private import FakeTensorMode, OpOverload, cpp_address

aten = torch.ops.aten
Arguments = Callable[[], tuple[Any, ...]]


def matrix() -> torch.Tensor:
    return torch.empty(4, 6)


def batch() -> torch.Tensor:
    return torch.empty(4, 3, 5)


def statistics() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.empty(3), torch.empty(3)


def described(result: Any, args: tuple[Any, ...]) -> list[tuple[Any, ...]]:
    """The kind of a result; of each tensor of it, its form and which arguments share its storage."""
    tensors = [result] if isinstance(result, torch.Tensor) else list(result or ())
    storages = [cpp_address(arg.untyped_storage()) for arg in args if isinstance(arg, torch.Tensor)]
    return [(type(result),)] + [
        (type(t), t.shape, t.stride(), t.storage_offset(), t.dtype, t.untyped_storage().nbytes(),
         [storage == cpp_address(t.untyped_storage()) for storage in storages],
         [t is arg for arg in args])
        for t in tensors
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("op", "arguments", "cached"),
    [
        (aten.mm.default, lambda: (matrix(), matrix().t()), True),
        (aten.t.default, lambda: (matrix(),), True),
        (aten.slice.Tensor, lambda: (matrix()[1:], 1, 2, 5), True),
        (aten.max.dim, lambda: (matrix(), 1), True),
        (aten.add.Tensor, lambda: (matrix(), 1), True),
        (aten.split.Tensor, lambda: (matrix(), 3), True),
        (aten.mul_.Tensor, lambda: (matrix(), 2.0), True),
        (aten.resize_.default, lambda: (matrix(), [9, 9]), False),
        (aten.native_batch_norm.default, lambda: (*(batch(), None, None, *statistics()), True, 0.1, 1e-5), True),
        (aten._foreach_sqrt.default, lambda: ([matrix(), matrix().t()],), True),
        (aten._foreach_add_.Scalar, lambda: ([matrix(), matrix()], 1), True),
        (aten.add.Tensor, lambda: (matrix(), torch.view_as_complex(torch.empty(4, 6, 2)).conj()), False),
        (aten.zeros.default, lambda: ([2, 3],), True),
        (aten.scalar_tensor.default, lambda: (3.0,), True),
    ],
)
def test_cached_results_are_those_of_the_kernel(
    op: OpOverload, arguments: Arguments, cached: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    rebuilt, rebuild, cache = list[Any](), call_cache._rebuild, CallCache()
    monkeypatch.setattr(call_cache, "_rebuild", lambda *form: rebuilt.append(form) or rebuild(*form))
    with FakeTensorMode(allow_non_fake_inputs=True):
        first, second = arguments(), arguments()
        expected = described(cache.run(op, first, {}), first)
        assert described(cache.run(op, second, {}), second) == expected
    assert bool(rebuilt) is cached


def test_arguments_of_other_types_or_strides_are_other_calls() -> None:
    cache = CallCache()
    with FakeTensorMode():
        sums = [cache.run(aten.add.Tensor, (torch.empty(2, dtype=torch.int64), number), {}) for number in (1, 1.0)]
        turned = [cache.run(aten.relu.default, (x,), {}) for x in (matrix(), torch.empty(6, 4).t())]
    assert [result.dtype for result in sums] == [torch.int64, torch.float32]
    assert [result.stride() for result in turned] == [(6, 1), (1, 4)]


def test_a_write_that_resizes_happens_each_time() -> None:
    cache = CallCache()
    with FakeTensorMode():
        x = matrix()
        outs = [torch.empty(0), torch.empty(0), torch.empty(4, 6), torch.empty(4, 6)]
        results = [cache.run(aten.add.out, (x, x), {"out": out}) for out in outs]
    assert all(result is out for result, out in zip(results, outs, strict=True))
    assert [(tuple(out.shape), out.untyped_storage().nbytes()) for out in outs] == [((4, 6), 96)] * 4


def test_a_storage_of_other_bytes_is_another_call() -> None:
    library = torch.library.Library("tmmu_call_cache", "DEF")
    library.define("refill_(Tensor(a!) x) -> ()")
    library.impl("refill_", lambda x: x.untyped_storage().resize_(96) and None, "Meta")
    cache = CallCache()
    with FakeTensorMode():
        full, cut = matrix(), matrix()
        cut.untyped_storage().resize_(0)
        for tensor in (full, cut):
            cache.run(torch.ops.tmmu_call_cache.refill_.default, (tensor,), {})
    assert cut.untyped_storage().nbytes() == 96


def test_lists_of_two_lengths_are_refused_by_torch() -> None:
    with FakeTensorMode(), pytest.raises(RuntimeError, match="same"):
        CallCache().run(aten._foreach_add.List, ([matrix()], [matrix(), matrix()]), {})


def test_a_result_is_cached_as_it_was_corrected() -> None:
    calls = list[str]()

    def correct(func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> Any:
        calls.append(func.name())
        return result.new_empty(7)

    cache = CallCache(correct)
    with FakeTensorMode():
        results = [cache.run(aten.relu.default, (matrix(),), {}) for _ in range(3)]
    assert [tuple(result.shape) for result in results] == [(7,)] * 3
    assert calls == ["aten::relu"]
