"""``torch.compile`` with a budget: graphs that are rewritten, and those that cannot be."""

import logging
from typing import Any

import pytest
import torch
from torch import nn

import tmmu.backend
from tests.api.test_compile_budget import Long
from tests.compiler import needs_compiler
from tmmu.errors import TmmuError
from tmmu.runtime.steps.fused_trial import is_near


def compiled(model: nn.Module, **options: Any) -> Any:
    return torch.compile(model, backend="tmmu", options=options, fullgraph=True)


def stack_of_last() -> int:
    return max(tmmu.backend.reports()[-1].stack_bytes)


@pytest.fixture(autouse=True)
def fresh() -> None:
    torch._dynamo.reset()


def test_graph_without_gradients_is_rewritten_to_stay_below_the_budget() -> None:
    model = Long().eval()
    x = torch.randn(256, 64)
    with torch.no_grad():
        plain = compiled(model)
        expected = plain(x)
        stack = stack_of_last()
        small = compiled(model, budget=stack * 3 // 4, over_budget="refuse")
        torch._dynamo.reset()
        assert torch.equal(small(x), expected)
        assert torch.equal(small(-x), model(-x))
        assert stack_of_last() <= stack * 3 // 4


@needs_compiler
@pytest.mark.slow
def test_what_fits_is_fused_in_no_more_and_what_trains_before_it_is_measured() -> None:
    model, x = Long().eval(), torch.randn(256, 64)
    with torch.no_grad():
        compiled(model)(x)
        budget = stack_of_last() * 3 // 4
        torch._dynamo.reset()
        assert is_near(compiled(model, budget=budget, over_budget="refuse", fuse=True)(x), model(x))
        assert stack_of_last() <= budget
    torch._dynamo.reset()
    compiled(model, budget="1GiB", over_budget="refuse", fuse=True)(x).sum().backward()
    assert tmmu.backend.reports()[-1].planned >= 2


def test_training_says_that_it_is_not_rewritten(caplog: pytest.LogCaptureFixture) -> None:
    model = Long()
    x = torch.randn(64, 64)
    with caplog.at_level(logging.WARNING, logger="tmmu"):
        compiled(model, budget="1KiB")(x).sum().backward()
    assert "planned as it is" in caplog.text
    assert tmmu.backend.reports()[-1].planned >= 2


def test_training_over_its_budget_is_refused_where_that_was_asked() -> None:
    with pytest.raises(Exception, match="BUDGET_TOO_SMALL"):
        compiled(Long(), budget="1KiB", over_budget="refuse")(torch.randn(64, 64))


@pytest.mark.parametrize(
    "options",
    [{"budget": "much"}, {"budget": -1}, {"budget": 1.5}, {"budget": 1, "over_budget": "hope"}, {"bugdet": 1}],
)
def test_options_that_make_no_sense_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(Exception, match="INVALID_CONFIG") as caught:
        compiled(Long(), **options)(torch.randn(4, 64))
    assert isinstance(caught.value, TmmuError) or "INVALID_CONFIG" in str(caught.value)
