"""Forms of results without values: as real kernels lay them out."""

import pytest
import torch

from tmmu.errors import UnsupportedOp
from tmmu.passes.capture.record.graph_builder import flatten
from tmmu.passes.shapes.inference import ShapeInference, ShapesDecidedByValues, TensorGeometry, form_of

aten = torch.ops.aten


def form(number: int, tensor: torch.Tensor) -> TensorGeometry:
    size = tensor.untyped_storage().nbytes()
    return TensorGeometry(number, size, tensor.storage_offset(), tuple(tensor.shape), tensor.stride(), tensor.dtype)


CALLS = {
    "elementwise": (aten.add.Tensor, (torch.ones(2, 3), torch.ones(3))),
    "of a transposed": (aten.mul.Tensor, (torch.ones(4, 3).t(), torch.ones(3, 4))),
    "a product": (aten.mm.default, (torch.ones(2, 3), torch.ones(5, 3).t())),
    "several results": (aten.native_layer_norm.default, (torch.ones(2, 4), [4], None, None, 1e-5)),
    "channels last": (
        aten.convolution.default,
        (
            torch.ones(1, 4, 6, 6).to(memory_format=torch.channels_last),
            torch.ones(8, 4, 3, 3),
            *(None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1),
        ),
    ),
    "attention": (aten.scaled_dot_product_attention.default, tuple(torch.ones(1, 2, n, 8) for n in (1, 5, 5))),
    "a factory": (aten.arange.start, (1, 7)),
    "an index": (aten.index.Tensor, (torch.ones(4, 3), [torch.tensor([1, 2])])),
}


@pytest.mark.parametrize("name", CALLS)
def test_forms_are_those_of_real_kernels(name: str) -> None:
    operator, args = CALLS[name]
    tensors = [leaf for leaf in flatten(args) if isinstance(leaf, torch.Tensor)]
    numbers = {id(tensor): number for number, tensor in enumerate(tensors)}

    def formed(value: object) -> object:
        if isinstance(value, (tuple, list)):
            return [formed(item) for item in value]
        return form(numbers[id(value)], value) if isinstance(value, torch.Tensor) else value

    forms = ShapeInference().results(operator, [formed(arg) for arg in args], {})
    results = [leaf for leaf in flatten(operator(*args)) if isinstance(leaf, torch.Tensor)]
    for inferred, result in zip([form for form in forms if form is not None], results, strict=True):
        assert (inferred.shape, inferred.stride, inferred.dtype) == (result.shape, result.stride(), result.dtype)
        assert inferred.storage < 0
        assert inferred.storage_bytes == result.untyped_storage().nbytes()


def test_views_and_writes_lie_on_the_storage_of_their_argument() -> None:
    inference, tensor = ShapeInference(), torch.arange(12.0).view(3, 4)
    (row,) = inference.results(aten.select.int, (form(7, tensor), 0, 1), {})
    assert row == TensorGeometry(7, 48, 4, (4,), (1,), torch.float32)
    (same,) = inference.results(aten.add_.Tensor, (form(7, tensor), 1), {})
    assert same == form(7, tensor)
    first, second = inference.results(aten.sort.default, (form(3, tensor),), {})
    assert first is not None
    assert second is not None
    assert first.storage != second.storage


def test_what_no_fake_kernel_can_say_is_told_apart() -> None:
    inference, tensor = ShapeInference(), torch.ones(4)
    with pytest.raises(ShapesDecidedByValues):
        inference.results(aten.nonzero.default, (form(0, tensor),), {})
    with pytest.raises(UnsupportedOp, match="size of an argument"):
        inference.results(aten.resize_.default, (form(0, tensor), [9]), {})
    with pytest.raises(UnsupportedOp, match="not dense"):
        inference.results(aten._to_sparse.default, (form(0, tensor),), {})
    with pytest.raises(UnsupportedOp, match="conjugated"):
        form_of(torch.ones(2, dtype=torch.complex64).conj(), {})
    with pytest.raises(RuntimeError, match="broadcast"):
        inference.results(aten.add.Tensor, (form(0, tensor), form(1, torch.ones(3))), {})


def test_forms_are_found_whatever_mode_is_on(recwarn: pytest.WarningsRecorder) -> None:
    inference, tensor = ShapeInference(), torch.ones(4)
    with torch.device("meta"), torch.inference_mode():
        (result,) = inference.results(aten.relu.default, (form(0, tensor),), {})
    assert result is not None
    assert result.shape == (4,)
    assert not recwarn.list
