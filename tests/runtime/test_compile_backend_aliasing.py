"""Results of compiled graphs: as many objects as eager gives, on the same memories, at the same places in them."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from tests.runtime.compiled import all_planned, compile_planned

pytestmark = pytest.mark.usefixtures("fresh_compiler")

Tensor = torch.Tensor
View = Callable[[Tensor], Any]

REAL_VIEWS: dict[str, View] = {
    "itself": lambda y: y,
    "view": lambda y: y.view(4, 6),
    "view_flat": lambda y: y.view(-1),
    "view_as": lambda y: y.view_as(y),
    "slice": lambda y: y[:],
    "rows": lambda y: y[1:3],
    "reshape": lambda y: y.reshape(4, 6),
    "t": lambda y: y.t(),
    "t_twice": lambda y: y.t().t(),
    "transpose": lambda y: y.transpose(0, 1),
    "permute": lambda y: y.permute(0, 1),
    "expand": lambda y: y.expand(2, 4, 6),
    "expand_as": lambda y: y.expand_as(y),
    "unsqueeze": lambda y: y.unsqueeze(0),
    "squeeze": lambda y: y.squeeze(),
    "squeeze_of_unsqueeze": lambda y: y.unsqueeze(0).squeeze(0),
    "select": lambda y: y[2],
    "narrow": lambda y: y.narrow(0, 0, 4),
    "split": lambda y: y.split(2),
    "chunk": lambda y: y.chunk(1),
    "unbind": lambda y: y.unbind(),
    "as_strided": lambda y: y.as_strided((4, 6), (6, 1)),
    "as_strided_inside": lambda y: y.as_strided((2, 2), (6, 1), 3),
    "view_dtype": lambda y: y.view(torch.int32),
    "view_narrow_dtype": lambda y: y.view(torch.int16),
    "view_same_dtype": lambda y: y.view(torch.float32),
    "detach": lambda y: y.detach(),
    "alias": torch.ops.aten.alias,
    "diagonal": lambda y: y.diagonal(),
    "unfold": lambda y: y.unfold(0, 2, 1),
    "contiguous": lambda y: y.contiguous(),
    "real": lambda y: y.real,
    "as_complex": lambda y: torch.view_as_complex(y.view(4, 3, 2)),
}
COMPLEX_VIEWS: dict[str, View] = {
    "real": lambda y: y.real,
    "imag": lambda y: y.imag,
    "as_real": torch.view_as_real,
    "view_dtype": lambda y: y.view(torch.float32),
    "slice": lambda y: y[:],
}
CONJUGATES: dict[str, View] = {"conj": lambda y: y.conj(), "conj_twice": lambda y: y.conj().conj()}


def flat(results: Any) -> list[Tensor]:
    return [leaf for item in results for leaf in (flat(item) if isinstance(item, (tuple, list)) else [item])]


def placement(tensors: Sequence[Tensor]) -> list[tuple[Any, ...]]:
    """Per tensor: the first that is the same object, the first on the same storage, and its window there."""
    storages = [tensor.untyped_storage() for tensor in tensors]
    return [
        (
            next(j for j, other in enumerate(tensors) if other is tensor),
            next(j for j, other in enumerate(storages) if other.data_ptr() == storages[i].data_ptr()),
            storages[i].nbytes(),
            tensor.storage_offset(),
            tuple(tensor.shape),
            tensor.stride(),
            tensor.dtype,
            tensor.requires_grad,
            tensor.is_conj(),
        )
        for i, tensor in enumerate(tensors)
    ]


def of_intermediate(views: Sequence[View]) -> Callable[[Tensor], Any]:
    def run(x: Tensor) -> Any:
        y = x + 1
        return [view(y) for view in views]

    return run


def twice_each(views: Sequence[View]) -> Callable[[Tensor], Any]:
    """Each view alone on a buffer, returned as two objects and once more as the first of them."""

    def run(x: Tensor) -> Any:
        results: list[Any] = []
        for view in views:
            y = x * 2
            first = view(y)
            results += [first, view(y), first]
        return results

    return run


def of_input(views: Sequence[View]) -> Callable[[Tensor], Any]:
    return lambda x: [x, x + 1, [view(x) for view in views]]


def of_input_in_between(views: Sequence[View]) -> Callable[[Tensor], Any]:
    """Views before a graph break, and views of the same tensor after it; Dynamo cannot carry one of them across."""
    views = [view for view in views if view is not REAL_VIEWS["as_complex"]]

    def run(x: Tensor) -> Any:
        y = x + 1
        before = [view(y) for view in views]
        torch._dynamo.graph_break()
        return before, y * 2, [view(y) for view in views], next(b for b in before if isinstance(b, Tensor)).sum()

    return run


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # Dynamo looks at it
@pytest.mark.parametrize("requires_grad", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("program", [of_intermediate, twice_each, of_input, of_input_in_between])
@pytest.mark.parametrize("kind", ["real", "complex", "conjugate"])
def test_results_are_the_objects_and_memories_of_eager(
    kind: str, program: Callable[[Sequence[View]], Callable[[Tensor], Any]], *, requires_grad: bool
) -> None:
    views = {"real": REAL_VIEWS, "complex": COMPLEX_VIEWS, "conjugate": CONJUGATES}[kind]
    dtype = torch.float32 if kind == "real" else torch.complex64
    run = program(list(views.values()))

    def results_of(function: Callable[[Tensor], Any]) -> list[Tensor]:
        x = torch.arange(24.0).reshape(4, 6).to(dtype).requires_grad_(requires_grad)
        return [*flat(function(x)), x]

    expected = results_of(run)
    planned = results_of(compile_planned(run))
    assert placement(planned) == placement(expected)
    for mine, eager in zip(planned, expected, strict=True):
        assert mine.detach().resolve_conj().equal(eager.detach().resolve_conj())
    # An argument seen as another dtype is torch's own.
    assert program not in (of_intermediate, twice_each) or all_planned()


@pytest.mark.parametrize("name", ["view", "view_as", "slice", "detach"])
def test_two_results_on_one_memory_change_apart(name: str) -> None:
    compiled = compile_planned(of_intermediate([REAL_VIEWS["itself"], REAL_VIEWS[name]]))
    y, view = compiled(torch.ones(4, 6))
    assert y is not view
    assert y.data_ptr() == view.data_ptr()
    view.t_()
    assert y.shape == (4, 6)
    assert view.shape == (6, 4)
    view.requires_grad_()
    assert not y.requires_grad
    y.add_(1)
    assert view.detach().eq(3).all()
    view.data = torch.zeros(2)
    assert y.eq(3).all()
    assert y.shape == (4, 6)


def test_two_results_on_one_memory_share_a_version_counter() -> None:
    """A change through one is seen by what autograd saved of the other, as in eager."""
    y, view = compile_planned(of_intermediate([REAL_VIEWS["itself"], REAL_VIEWS["slice"]]))(torch.ones(4, 6))
    weight = torch.ones(4, 6, requires_grad=True)
    loss = (weight * y).sum()
    view.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()  # type: ignore[no-untyped-call]


def test_a_result_can_be_written_with_a_history_through_its_view() -> None:
    y, view = compile_planned(of_intermediate([REAL_VIEWS["itself"], REAL_VIEWS["slice"]]))(torch.ones(4, 6))
    weight = torch.ones(4, 6, requires_grad=True)
    view.mul_(weight)
    y.sum().backward()
    assert weight.grad is not None
    assert weight.grad.eq(2).all()


def test_a_lone_window_keeps_the_bytes_beside_it() -> None:
    """``as_strided`` counts from the start of the storage, which is eager's."""
    run = of_intermediate([REAL_VIEWS["rows"]])
    x = torch.arange(24.0).reshape(4, 6)
    (expected,), (planned,) = run(x), compile_planned(run)(x)
    assert planned.as_strided((2, 3), (3, 1), 0).equal(expected.as_strided((2, 3), (3, 1), 0))
