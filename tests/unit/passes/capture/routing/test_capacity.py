"""The routing that a capacity stands for: counts, distinct choices, and tokens that are spread."""

from fractions import Fraction

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tmmu.errors import InvalidConfig
from tmmu.ir.program import factor_text
from tmmu.passes.capture.routing.capacity import Filling, Gate, choices_of_tokens, last_full, tokens_by_expert
from tmmu.passes.capture.routing.factor import parse_factor


@st.composite
def gates(draw: st.DrawFn) -> tuple[Gate, int, Filling]:
    """A gate, a capacity that its factor gives, and which experts are full."""
    experts = draw(st.integers(1, 9))
    gate = Gate(tokens=draw(st.integers(1, 40)), choices=draw(st.integers(1, experts)), experts=experts)
    factor = Fraction(draw(st.integers(100, 900)), 100)
    first = draw(st.integers(0, experts - 1))
    return gate, gate.capacity(factor), Filling(first=first, reaches_all=draw(st.booleans()))


@given(gates())
def test_each_token_has_different_experts_and_no_expert_more_than_its_capacity(case: tuple[Gate, int, Filling]) -> None:
    gate, capacity, filling = case
    choices = choices_of_tokens(gate, capacity, filling)
    counts = torch.bincount(choices.flatten(), minlength=gate.experts)
    assert choices.shape == (gate.tokens, gate.choices)
    assert all(len(set(row)) == gate.choices for row in choices.tolist())
    assert tuple(counts.tolist()) == tokens_by_expert(gate, capacity, filling)
    assert int(counts.max()) <= capacity


@given(gates(), st.integers(1, 9))
def test_experts_from_the_first_on_get_the_most_that_the_capacity_allows(
    case: tuple[Gate, int, Filling], local: int
) -> None:
    gate, capacity, filling = case
    mine = [(filling.first + place) % gate.experts for place in range(min(local, gate.experts))]
    total = gate.tokens * gate.choices
    others = gate.experts - len(mine) if filling.reaches_all and total >= gate.experts else 0
    most = min(len(mine) * capacity, total - others)
    assert sum(tokens_by_expert(gate, capacity, filling)[expert] for expert in mine) == most


def test_halves_of_the_tokens_are_routed_alike() -> None:
    gate = Gate(tokens=64, choices=2, experts=8)
    choices = choices_of_tokens(gate, 20, Filling(first=4, reaches_all=False))
    quarters = [torch.bincount(part.flatten(), minlength=8).tolist() for part in choices.chunk(4)]
    assert quarters == [[5, 5, 2, 0, 5, 5, 5, 5]] * 4


def test_last_experts_are_full_and_each_gets_a_token_where_there_are_enough() -> None:
    gate = Gate(tokens=64, choices=2, experts=8)
    counts = [tokens_by_expert(gate, 20, last_full(gate, 20, reaches_all=all_)) for all_ in (True, False)]
    assert counts == [(7, 1, 20, 20, 20, 20, 20, 20), (8, 0, 20, 20, 20, 20, 20, 20)]


def test_capacity_is_rounded_up_and_no_more_than_there_are_tokens() -> None:
    gate = Gate(tokens=10, choices=2, experts=8)
    assert [gate.capacity(Fraction(factor)) for factor in (1, 2, 100)] == [3, 5, 10]


@pytest.mark.parametrize(("given", "text"), [("1", "1"), ("1.250", "1.25"), (2, "2"), (1.1, "1.1"), ("10", "10")])
def test_factor_is_the_number_that_was_written(given: object, text: str) -> None:
    assert factor_text(parse_factor(given, "--capacity-factor")) == text


@pytest.mark.parametrize("given", ["", "nan", "-1", "0.999999", "1e300", "1.0000001", True, None, float("inf")])
def test_what_is_no_factor_is_refused(given: object) -> None:
    with pytest.raises(InvalidConfig, match="--capacity-factor"):
        parse_factor(given, "--capacity-factor")
