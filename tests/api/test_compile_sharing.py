"""``tmmu.compile`` where tensors are shared, expanded or exchanged: eager's bits, or a refusal; never other bits."""

from collections.abc import Callable

import pytest
import torch
from torch import nn

import tmmu
from tests.api.test_compile import eager, require_equal
from tmmu.errors import InvalidConfig, InvalidToken, TmmuError, UnsupportedOp

X = torch.randn(4, 8)
KEPT = torch.zeros(4, 8)


class Tied(nn.Module):
    """Two layers of one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)
        self.second.weight = self.first.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x))  # type: ignore[no-any-return]


class Adding(nn.Module):
    """Adds to its input in place, then its weight."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 8), requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        return x + self.weight


class Caching(nn.Module):
    """Keeps a sum, as a buffer or a plain tensor, in a new tensor each time."""

    def __init__(self, *, is_buffer: bool) -> None:
        super().__init__()
        if is_buffer:
            self.register_buffer("cache", torch.zeros(4, 8))
        else:
            self.cache = torch.zeros(4, 8)
        self.last: torch.Tensor | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.cache = self.cache + x
        return self.cache


class Noting(nn.Module):
    """Exchanges a tensor that it does not read."""

    def __init__(self) -> None:
        super().__init__()
        self.last = torch.zeros(4, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.last = x * 2
        return self.last + 1


class KeepingGlobal(nn.Module):
    """Writes a tensor of its file."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return KEPT.add_(x) * 1


def test_weights_that_are_no_longer_tied_are_refused() -> None:
    model = Tied().eval()
    compiled = tmmu.compile(model, X)
    with torch.no_grad():
        model.first.weight.mul_(2)
    require_equal(compiled(X), eager(model, X))
    model.first.weight = model.second.weight = nn.Parameter(torch.randn(8, 8))
    require_equal(compiled(X), eager(model, X))
    model.second.weight = nn.Parameter(torch.randn(8, 8))
    with pytest.raises(InvalidConfig, match=r"second\.weight shares its memory with others"):
        compiled(X)


def test_input_in_a_weight_is_refused_where_the_model_writes() -> None:
    model = Adding().eval()
    compiled = tmmu.compile(model, X.clone())
    kept = model.weight.clone()
    with pytest.raises(InvalidConfig, match="shares its memory with weight"):
        compiled(model.weight.detach())
    assert torch.equal(model.weight, kept)
    require_equal(compiled(X.clone()), eager(model, X.clone()))


@pytest.mark.parametrize("is_buffer", [True, False])
def test_tensor_that_a_call_reads_and_exchanges_is_refused(is_buffer: bool) -> None:
    with pytest.raises(UnsupportedOp, match="another tensor in the place of cache"):
        tmmu.compile(Caching(is_buffer=is_buffer).eval(), X)
    model = Noting().eval()
    require_equal(tmmu.compile(model, X)(X), eager(model, X))


def test_global_that_a_model_writes_is_written() -> None:
    model = KeepingGlobal().eval()
    compiled = tmmu.compile(model, X)
    KEPT.zero_()
    compiled(X)
    assert torch.equal(compiled(X), X + X)
    assert torch.equal(KEPT, X + X)


EXPANDED = {
    "rows": torch.randn(1, 8).expand(4, 8),
    "columns": torch.randn(4, 1).expand(4, 8),
    "all": torch.randn(1, 1).expand(4, 8),
}


@pytest.mark.parametrize("name", EXPANDED)
def test_expanded_inputs_have_eagers_bits(name: str) -> None:
    model, x = nn.Linear(8, 3).eval(), EXPANDED[name]
    compiled = tmmu.compile(model, x)
    require_equal(compiled(x), eager(model, x))
    with pytest.raises(InvalidConfig, match="strides"):
        compiled(x.contiguous())


REFUSED: dict[str, tuple[Callable[[nn.Module], object], type[TmmuError], str]] = {
    "weights without bytes": (lambda m: (tmmu.compile(m, X), m.to("meta"))[0](X), InvalidConfig, "weight is on meta"),
    "a sparse input": (lambda m: tmmu.compile(m, X)(X.to_sparse()), InvalidConfig, "no dense tensor"),
    "a seed that is text": (lambda m: tmmu.compile(m, X, seed="1"), InvalidToken, "seed '1' is not"),  # type: ignore[arg-type]
    "a script": (lambda m: tmmu.compile(torch.jit.script(m), X), InvalidConfig, "is a script"),
}


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_what_cannot_run_is_refused_with_a_code(name: str) -> None:
    call, error, text = REFUSED[name]
    with pytest.raises(error, match=text):
        call(nn.Linear(8, 8).eval())
