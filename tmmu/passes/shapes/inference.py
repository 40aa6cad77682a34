"""What an operator would return on a CPU, from the forms of its arguments: shapes, strides, dtypes, and which storage.

Fake kernels answer, corrected as a trace corrects them where real kernels lay results out otherwise. No tensor has
bytes. Both ends of a remote device ask here: the client to go on recording, the server before it allocates anything.
"""

import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import torch

from tmmu.errors import UnsupportedOp
from tmmu.passes.capture.record.corrections.results import (
    correct_result,
    first_unmodelled,
    require_real_kernel,
    result_of_real_kernel,
)
from tmmu.passes.capture.record.graph_builder import flatten
from tmmu.passes.operators.schema import signature
from tmmu.torch_private import (
    DisableTorchDispatch,
    DisableTorchFunction,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
    OpOverload,
    UncompiledDispatchMode,
    UnsupportedOperatorException,
    cpp_address,
    disable_current_modes,
    in_kernel_invocation_manager,
)

_FAKE_LOG: Final = logging.getLogger("torch._subclasses.fake_tensor")


@dataclass(frozen=True, slots=True)
class TensorGeometry:
    """A tensor without bytes: ``offset`` in elements. Tensors with one number as ``storage`` share their storage.

    ``storage_bytes``: how long that is.
    """

    storage: int
    storage_bytes: int
    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype


class ShapesDecidedByValues(Exception):
    """The shapes of the results depend on values."""


class ShapeInference:
    """Forms of results. Not safe between threads. Costs a fake kernel a call: around a tenth of a millisecond."""

    def __init__(self) -> None:
        self._mode = FakeTensorMode()

    def results(
        self, operator: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> tuple[TensorGeometry | None, ...]:
        """A form per leaf of what ``operator(*args, **kwargs)`` returns, ``None`` for what is no tensor.

        Tensors among the arguments are ``TensorGeometry``, lists are walked. A result on the storage of an argument has
        that one's number, others have numbers below 0, by storage. What the operator refuses is raised as it is;
        ``ShapesDecidedByValues``; ``UNSUPPORTED_OP`` where torch has no fake kernel, for an argument that the call
        would resize, and for what is no dense tensor.
        """
        fakes: list[tuple[TensorGeometry, FakeTensor]] = []
        storages: dict[int, Any] = {}
        with disable_current_modes(), DisableTorchFunction(), torch.no_grad(), _without_log():
            fake_args = tuple(self._fake(arg, fakes, storages) for arg in args)
            fake_kwargs = {name: self._fake(value, fakes, storages) for name, value in kwargs.items()}
            result = self._run(operator, fake_args, fake_kwargs)
        numbers = {cpp_address(storage): number for number, storage in storages.items()}
        for form, fake in fakes:
            if form_of(fake, numbers) != form:
                raise UnsupportedOp(f"{operator} changes the size of an argument", fix="let it make its result")
        return tuple(form_of(leaf, numbers) if isinstance(leaf, torch.Tensor) else None for leaf in flatten(result))

    def _run(self, operator: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        try:
            with self._mode, _RealKernels():  # type: ignore[no-untyped-call]
                result = operator(*args, **kwargs)
        except DynamicOutputShapeException as error:
            raise ShapesDecidedByValues(str(operator)) from error
        except (UnsupportedOperatorException, NotImplementedError) as error:
            raise UnsupportedOp(f"{operator} has no shapes without values", fix="run it on the cpu") from error
        if first_unmodelled(result if isinstance(result, (tuple, list)) else (result,)) is not None:
            raise UnsupportedOp(f"{operator} makes a tensor that is not dense", fix="run it on the cpu")
        return result

    def _fake(self, value: Any, fakes: list[tuple[TensorGeometry, FakeTensor]], storages: dict[int, Any]) -> Any:
        if isinstance(value, (tuple, list)):
            return [self._fake(item, fakes, storages) for item in value]
        if not isinstance(value, TensorGeometry):
            return value
        with DisableTorchDispatch():
            if value.storage not in storages:
                whole = torch.empty(value.storage_bytes, dtype=torch.uint8, device="meta")
                storages[value.storage] = whole.untyped_storage()
            meta = torch.empty(0, dtype=value.dtype, device="meta")
            with in_kernel_invocation_manager(self._mode):
                meta.set_(storages[value.storage], value.offset, value.shape, value.stride)
            fake = FakeTensor(self._mode, meta, torch.device("cpu"))
        fakes.append((value, fake))
        return fake


class _RealKernels(UncompiledDispatchMode):  # type: ignore[no-untyped-call]
    """Each call that a composite is taken apart into returns what a real kernel would."""

    def __torch_dispatch__(
        self, func: OpOverload, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        del types
        kwargs = kwargs or {}
        require_real_kernel(func, args, kwargs)
        result = result_of_real_kernel(func, args, kwargs)
        if result is None:
            result = func(*args, **kwargs)
        return result if signature(func).mutates else correct_result(func, args, kwargs, result, "cpu")


@contextmanager
def _without_log() -> Iterator[None]:
    """Fake kernels log and warn of what they refuse, of which the error says all."""
    before, _FAKE_LOG.disabled = _FAKE_LOG.disabled, True
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about a run that does not take place
            yield
    finally:
        _FAKE_LOG.disabled = before


def form_of(tensor: torch.Tensor, numbers: dict[int, int]) -> TensorGeometry:
    """The form of a tensor; a storage that has no number yet gets the next one below 0."""
    if tensor.is_conj() or tensor.is_neg():
        raise UnsupportedOp("a view that is conjugated or negated without changing memory", fix="use conj_physical()")
    storage = tensor.untyped_storage()
    address = cpp_address(storage)
    if address not in numbers:
        numbers[address] = min(min(numbers.values(), default=0), 0) - 1
    return TensorGeometry(
        storage=numbers[address],
        storage_bytes=storage.nbytes(),
        offset=int(tensor.storage_offset()),
        shape=tuple(tensor.shape),
        stride=tuple(tensor.stride()),
        dtype=tensor.dtype,
    )
