"""Tensors that wrap others (int8 weights, jagged rows): planned by what they wrap, with the bits of eager."""

from typing import Any

import pytest
import torch
from torch import nn

from tests.runtime.harness import (
    TOKEN,
    bind_module,
    capture_program,
    plan_of,
    same_bits,
)
from tmmu.backend import reports
from tmmu.errors import UnsupportedOp
from tmmu.runtime.compare.sanitize import run_sanitized
from tmmu.runtime.execute.bind import bind

X = torch.randn(3, 8, generator=torch.Generator().manual_seed(0))
ROWS = {"a": X[:2, :4].clone(), "b": X[:3, :4].clone()}
MODEL = """
import torch
from torch import nn

aten = torch.ops.aten

class Int8(torch.Tensor):
    @staticmethod
    def __new__(cls, codes, scale):
        return torch.Tensor._make_wrapper_subclass(cls, codes.shape, dtype=scale.dtype, device=codes.device)

    def __init__(self, codes, scale):
        self.codes, self.scale = codes, scale

    def __tensor_flatten__(self):
        return ["codes", "scale"], None

    @classmethod
    def __tensor_unflatten__(cls, inner, context, size, stride):
        return cls(inner["codes"], inner["scale"])

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        if func is aten.detach.default:
            return cls(args[0].codes.detach(), args[0].scale.detach())
        plain = lambda t: t.codes.to(t.scale.dtype) * t.scale if isinstance(t, cls) else t
        return func(*map(plain, args), **{key: plain(value) for key, value in (kwargs or {}).items()})

def quantize(weight):
    scale = weight.abs().amax(1, keepdim=True) / 127
    return Int8((weight / scale).round().to(torch.int8), scale)

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(8, 16), nn.Linear(16, 4)
        self.first.weight = nn.Parameter(quantize(self.first.weight.detach()), requires_grad=False)
        self.register_buffer("table", quantize(torch.randn(4, 8)))

    def forward(self, x):
        return self.last(torch.relu(self.first(x))), x @ self.table.t()

model = Net
inputs = (torch.randn(3, 8),)
"""
SPACE: dict[str, Any] = {"__name__": "int8_model"}
exec(MODEL, SPACE)
Int8Net = SPACE["Net"]


def plain_weights(module: nn.Module) -> dict[str, torch.Tensor]:
    named = [*module.named_parameters(), *module.named_buffers()]
    pairs = [
        (f"{name}.{part}" if part else name, getattr(t, part) if part else t.detach())
        for name, t in named
        for part in (("codes", "scale") if hasattr(t, "codes") else ("",))
    ]
    return dict(pairs)


def test_weights_that_wrap_others_are_planned_as_what_they_wrap() -> None:
    real = Int8Net()
    program, constants = capture_program(Int8Net, {"x": X})
    names, sizes = program.graph.notes.buffers, program.graph.buffers.bytes
    held = dict(zip(names, sizes, strict=True))
    assert (held["first.weight.codes"], held["first.weight.scale"]) == (16 * 8, 16 * 4)
    assert (held["table.codes"], held["table.scale"]) == (4 * 8, 4 * 4)
    assert "aten._to_copy.default" in program.graph.ops.target  # composites are taken apart below the wrapper too
    weights = constants | plain_weights(real)
    executor = bind(program, plan_of(program), token=TOKEN, weights=weights)
    with torch.no_grad():
        assert all(map(same_bits, executor(x=X), real(X)))
    run_sanitized(program, executor, weights, {"x": X}, token=TOKEN)


@pytest.mark.usefixtures("fresh_compiler")
def test_compiled_model_of_wrapped_weights_has_the_bits_of_eager() -> None:
    real = Int8Net()
    with torch.no_grad():
        assert all(map(same_bits, torch.compile(real, backend="tmmu")(X), real(X)))
    assert any(report.planned for report in reports())


class Jagged(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(4, 4), nn.LayerNorm(4)

    def forward(self, a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, ...]:
        rows = torch.nested.nested_tensor([a, b], layout=torch.jagged)
        mixed = self.norm(torch.relu(self.linear(rows)) * 2 + rows)
        return mixed.values(), mixed.sum(-1).values(), torch.nested.to_padded_tensor(mixed, 0.0), *mixed.unbind()


class JaggedByOffsets(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 4)

    def forward(self, values: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.linear(torch.nested.nested_tensor_from_jagged(values, offsets))).values()


JAGGED: dict[str, tuple[Any, dict[str, torch.Tensor]]] = {
    "of a list": (Jagged, ROWS),
    "by offsets": (JaggedByOffsets, {"values": X, "offsets": torch.tensor([0, 1, 3])}),
}


@pytest.mark.parametrize("name", JAGGED)
def test_jagged_rows_are_planned_with_the_bits_of_eager(name: str) -> None:
    make, inputs = JAGGED[name]
    real = make()
    executor = bind_module(make, real, inputs)
    with torch.no_grad():
        expected = real(**inputs)
    expected = expected if isinstance(expected, tuple) else (expected,)
    assert all(any(same_bits(out, other) for out in executor(**inputs)) for other in expected)


@pytest.mark.usefixtures("fresh_compiler")
def test_compiled_model_of_jagged_rows_has_the_bits_of_eager() -> None:
    inputs = JAGGED["by offsets"][1]
    real = JaggedByOffsets()
    with torch.no_grad():
        assert same_bits(torch.compile(real, backend="tmmu")(**inputs), real(**inputs))


class Opaque(torch.Tensor):
    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> Any:
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)

    def __init__(self, inner: torch.Tensor) -> None:
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*(arg.inner if isinstance(arg, cls) else arg for arg in args), **(kwargs or {}))


class OfOpaque(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("table", Opaque(torch.randn(8, 8)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.table


def of_missing(wrapper: Any) -> Any:
    del wrapper
    return ["missing"], None


def of_itself(wrapper: Any) -> Any:
    wrapper.mirror = wrapper
    return ["inner", "mirror"], None


def of_nothing(wrapper: Any) -> Any:
    wrapper.inner, wrapper.absent = wrapper.inner, None
    return ["inner", "absent"], None


def of_one_number(wrapper: Any) -> Any:
    del wrapper
    return 5


def of_an_error(wrapper: Any) -> Any:
    raise KeyError(type(wrapper))


@pytest.mark.parametrize("flatten", [None, of_missing, of_itself, of_nothing, of_one_number, of_an_error])
def test_wrapper_that_does_not_say_what_it_wraps_is_refused_by_its_name(
    monkeypatch: pytest.MonkeyPatch, flatten: Any
) -> None:
    if flatten is not None:
        monkeypatch.setattr(Opaque, "__tensor_flatten__", flatten, raising=False)
    with pytest.raises(UnsupportedOp, match="is a Opaque, which does not say what plain tensors it is made of"):
        capture_program(OfOpaque, {"x": X})
