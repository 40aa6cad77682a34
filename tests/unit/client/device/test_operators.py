"""Operators of torch's own database: local bits, or a coded refusal; composites that a device takes apart otherwise."""

import warnings

import pytest
import torch

from tests.unit.client.device.conftest import Remote
from tmmu.client.device.device_operators import CPU_KERNELS
from tmmu.errors import TmmuError


def map_tensors(value, change):
    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, (tuple, list)):
        return type(value)(map_tensors(item, change) for item in value) if type(value) in (tuple, list) else value
    return {name: map_tensors(item, change) for name, item in value.items()} if isinstance(value, dict) else value


def leaves(value) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    return [leaf for item in value for leaf in leaves(item)] if isinstance(value, (tuple, list)) else []


def outcome(op, sample, device: str):
    """What the operator returns for a sample, or the error that it raises."""
    there = (lambda tensor: tensor.to("remote")) if device == "remote" else (lambda tensor: tensor.clone())
    args = map_tensors((sample.input, *sample.args), there)
    kwargs = map_tensors(sample.kwargs, there)
    torch.manual_seed(0)
    try:
        return op(*args, **kwargs)
    except Exception as error:  # noqa: BLE001 - whatever it raises
        return error


EVERY = pytest.mark.parametrize("every", [10, pytest.param(1, marks=pytest.mark.long)])
"""One of how many operators of the database is tried."""


def compare(remote: Remote, samples: int, every: int) -> tuple[int, list[str]]:
    from torch.testing._internal.common_methods_invocations import op_db  # noqa: PLC0415 - takes seconds

    equal, wrong = 0, []
    for op in op_db[::every]:
        if torch.float32 not in op.dtypes:
            continue
        for number, sample in enumerate(op.sample_inputs("cpu", torch.float32)):
            if number == samples:
                break
            expected = outcome(op, sample, "cpu")
            result = outcome(op, sample, "remote")
            if isinstance(result, TmmuError) or (isinstance(expected, Exception) and isinstance(result, Exception)):
                continue
            ours, theirs = leaves(result), leaves(expected)
            try:
                same = len(ours) == len(theirs) and all(
                    (a.shape, a.dtype) == (b.shape, b.dtype)
                    and torch.equal(a.cpu().nan_to_num(), b.nan_to_num())
                    and (b.numel() == 0 or a.stride() == b.stride())
                    for a, b in zip(ours, theirs, strict=True)
                )
            except TmmuError:
                continue
            except Exception as error:  # noqa: BLE001 - whatever it raises
                same, result = False, error
            if not same:
                wrong.append(
                    f"{op.name}:{op.variant_test_name}[{number}] {str(result)[:200]} not {str(expected)[:100]}"
                )
            equal += same
    return equal, wrong


UNEQUAL = frozenset({"empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided"}) | {
    "tensor_split"
}
"""Operators whose results nobody has written; one that wants places on the cpu, whatever the device of its tensor."""


@pytest.mark.slow
@EVERY
def test_operators_of_the_database_have_local_bits_or_are_refused(remote: Remote, every: int) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        equal, wrong = compare(remote, 4, every)
    assert [line for line in wrong if line.partition(":")[0] not in UNEQUAL] == []
    assert equal > 1000 // every


def gradients(remote: Remote, op, sample, device: str):
    """Gradients of all inputs by the squares of all results, or the error of it."""
    inputs: list[torch.Tensor] = []

    def leaf(tensor: torch.Tensor) -> torch.Tensor:
        tensor = tensor.detach().to(device) if device == "remote" else tensor.detach().clone()
        if tensor.is_floating_point():
            inputs.append(tensor.requires_grad_())
        return tensor

    args, kwargs = map_tensors((sample.input, *sample.args), leaf), map_tensors(sample.kwargs, leaf)

    def step() -> None:
        results = [result for result in leaves(op(*args, **kwargs)) if result.requires_grad and not result.is_complex()]
        if results:
            sum((result * result).sum() for result in results).backward()

    torch.manual_seed(0)
    try:
        with torch.enable_grad():
            (remote.device.step(step) if device == "remote" else step)()
        return [None if tensor.grad is None else tensor.grad.cpu().nan_to_num() for tensor in inputs]
    except Exception as error:  # noqa: BLE001 - whatever it raises
        return error


@pytest.mark.slow
@EVERY
def test_gradients_of_the_database_have_local_bits_or_are_refused(remote: Remote, every: int) -> None:
    from torch.testing._internal.common_methods_invocations import op_db  # noqa: PLC0415 - takes seconds

    equal, wrong = 0, []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for op in op_db[::every]:
            if torch.float32 not in op.dtypes or op.name in UNEQUAL:
                continue
            for _, sample in zip(range(2), op.sample_inputs("cpu", torch.float32), strict=False):
                expected, result = gradients(remote, op, sample, "cpu"), gradients(remote, op, sample, "remote")
                if isinstance(expected, Exception) or isinstance(result, TmmuError):
                    continue
                same = not isinstance(result, Exception) and all(
                    (a is None) == (b is None) and (a is None or torch.equal(a, b))
                    for a, b in zip(result, expected, strict=True)
                )
                equal += same
                wrong += [] if same else [f"{op.name}:{op.variant_test_name} {result!s:.200}"]
    assert wrong == []
    assert equal > 800 // every


def test_composites_with_a_kernel_of_the_cpus_are_all_known() -> None:
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    names = set()
    for name in torch._C._dispatch_get_all_op_names():
        if name.startswith("aten::"):
            try:
                if has(name, "CompositeImplicitAutograd") and has(name, "CPU"):
                    names.add(name)
            except RuntimeError:  # scripts have operators that the dispatcher has not
                continue
    assert {operator.name() for operator in CPU_KERNELS} == names
