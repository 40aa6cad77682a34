"""Operators of others than torch: a call on real tensors shows whether they do what their schema says.

A schema may hide that an argument is written, or that a result lies in an argument: then a plan would drop the call as
a view, or give the bytes to others too early, and no judge could see it. So the first call of each form is made once
more on small real tensors on the CPU, and arguments are compared before and after. Where that is not possible (no CPU
kernel, too large, it raises) the schema is believed, unless it leaves open what the call is for.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import torch

from tmmu.errors import UnsupportedOp
from tmmu.passes.capture.record.graph_builder import flatten
from tmmu.passes.operators.collectives import NAMESPACES, is_known
from tmmu.passes.operators.schema import signature, written_arguments
from tmmu.torch_private import OpOverload, cpp_address, default_generator, disable_current_modes

_TORCHS_OWN: Final = frozenset(
    [
        "aten",
        "prim",
        "prims",
        "quantized",
        "symm_mem",
        "_quantized",
        "static_runtime",
        "c10d",
        "onednn",
        "_c10d_functional",
        "mkldnn",
        "c10d_functional",
        "profiler",
        "sparse",
        "inductor",
        "fsdp",
        "_c10d_functional_autograd",
        "onnx",
        "quantization",
        "_dtensor",
        "mkldnn_prepacked",
        "mkl",
        "debugprims",
        "inductor_prims",
        "rngprims",
        "_native",
        "export",
        "debug_mode_ops",
        "prepacked",
        "quantized_decomposed",
        "higher_order",
        "tmmu",
    ]
)
"""Namespaces of operators whose rows and rules are in tables."""

_MAX_BYTES: Final = 1 << 20
"""Of all arguments of a trial: what no one notices, and larger than any case of a kernel."""


def is_custom(func: OpOverload) -> bool:
    """Whether the operator is of others than torch."""
    return func.namespace not in _TORCHS_OWN


def require_known_collective(func: OpOverload) -> None:
    """``UNSUPPORTED_OP`` for an operator between ranks of which nobody knows what it writes: no trial would show it."""
    if (
        func.namespace in NAMESPACES
        and not signature(func).mutates
        and not is_known(signature(func).name.rpartition(".")[0])
    ):
        raise UnsupportedOp(
            f"{func} is of a torch that has more operators between ranks than are known: its schema marks no write",
            fix="use the operators of torch 2.13, or report it",
        )


class CustomOperators:
    """State: the forms of calls that were tried. Each costs one call on real tensors."""

    def __init__(self) -> None:
        self._tried: set[str] = set()

    def require_honest(
        self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any, source: str
    ) -> None:
        """``UNSUPPORTED_OP`` for an operator that writes or returns an argument and does not say so.

        ``result`` is what its fake kernel returned for these arguments.
        """
        leaves = [leaf for leaf in flatten([*args, *kwargs.values()]) if isinstance(leaf, torch.Tensor)]
        form = f"{func} {[(t.shape, t.stride(), t.dtype) for t in leaves]}"
        if not leaves or form in self._tried:
            return
        self._tried.add(form)
        fault = _try_call(func, args, kwargs, result)
        if fault is None and _is_open(func, leaves, result):
            fault = "makes nothing and writes nothing by its schema, and could not be tried on small CPU tensors"
        if fault:
            raise UnsupportedOp(
                f"{source + ': ' if source else ''}{func} {fault}",
                fix="say in its schema what it writes (mutates_args, or Tensor(a!)), and clone what it returns",
                **({"where": source} if source else {}),
            )


def _is_open(func: OpOverload, leaves: list[torch.Tensor], result: Any) -> bool:
    """Whether the schema leaves open what a call is for: it writes nothing, and no result has memory of its own."""
    own = {cpp_address(leaf.untyped_storage()) for leaf in leaves}
    results = [leaf for leaf in flatten([result]) if isinstance(leaf, torch.Tensor)]
    return not signature(func).mutates and all(cpp_address(leaf.untyped_storage()) in own for leaf in results)


@dataclass(frozen=True, slots=True)
class _RealArgument:
    """An argument of a trial, and a copy of what it was before."""

    tensor: torch.Tensor
    before: torch.Tensor


def _try_call(func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> str | None:
    """What the call does against its schema, empty for nothing; ``None`` where it could not be made."""
    fakes = [leaf for leaf in flatten([*args, *kwargs.values()]) if isinstance(leaf, torch.Tensor)]
    if sum(leaf.numel() * leaf.element_size() for leaf in fakes) > _MAX_BYTES:
        return None
    with disable_current_modes(), torch.no_grad(), _random_state_kept():
        try:
            reals = [_real_argument(fake, seed) for seed, fake in enumerate(fakes)]
            remaining = iter(reals)
            real_args = tuple(_with_tensors(argument, remaining) for argument in args)
            real_kwargs = {name: _with_tensors(argument, remaining) for name, argument in kwargs.items()}
            declared = {id(leaf) for leaf in flatten(written_arguments(func, real_args, real_kwargs))}
            real_result = func(*real_args, **real_kwargs)
        except Exception:  # noqa: BLE001 - a kernel of others on made-up values may raise anything
            return None
        if any(_was_written(real) and id(real.tensor) not in declared for real in reals):
            return "writes an argument that its schema does not mark as written"
    if _aliases(real_result, [real.tensor for real in reals]) != _aliases(result, fakes):
        return "returns an argument, or a view of one, where its fake kernel does not"
    return ""


@contextmanager
def _random_state_kept() -> Iterator[None]:
    """Block that leaves the CPU's generator as it was; torch's own one is recorded during a capture."""
    before = default_generator.get_state()
    try:
        yield
    finally:
        default_generator.set_state(before)


def _with_tensors(argument: Any, reals: Iterator[_RealArgument]) -> Any:
    """The argument, the next real tensor in place of each tensor."""
    if isinstance(argument, (list, tuple)):
        return type(argument)(_with_tensors(item, reals) for item in argument)
    return next(reals).tensor if isinstance(argument, torch.Tensor) else argument


def _real_argument(fake: torch.Tensor, seed: int) -> _RealArgument:
    """A tensor of this form: other numbers in (0, 1] for each seed, or zeros, which are indices into anything."""
    tensor = torch.empty_strided(fake.shape, fake.stride(), dtype=fake.dtype)
    if fake.is_floating_point() or fake.is_complex():
        tensor.copy_(1 - torch.rand(fake.shape, generator=torch.Generator().manual_seed(seed)))
    else:
        tensor.zero_()
    return _RealArgument(tensor, tensor.clone())


def _was_written(real: _RealArgument) -> bool:
    now, before = (t.contiguous().view(-1).view(torch.uint8) for t in (real.tensor, real.before))
    return not now.equal(before)


def _aliases(result: Any, arguments: list[torch.Tensor]) -> list[int]:
    """Per tensor of the result, the first argument on whose storage it lies; -1 for none."""
    storages = [cpp_address(argument.untyped_storage()) for argument in arguments]
    leaves = [cpp_address(leaf.untyped_storage()) for leaf in flatten([result]) if isinstance(leaf, torch.Tensor)]
    return [storages.index(leaf) if leaf in storages else -1 for leaf in leaves]
