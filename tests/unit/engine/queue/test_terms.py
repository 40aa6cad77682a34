"""Terms: which class a deadline has, and what are none."""

from typing import Any

import pytest

from tmmu.engine.queue.terms import QueueTerms, queue_terms
from tmmu.errors import InvalidConfig

NOTHING: dict[str, Any] = {"qos": None, "client": "", "weight": 1, "priority": 0, "deadline": None}


@pytest.mark.parametrize(
    ("deadline", "qos"),
    [
        (None, "interactive"),
        (0.3, "realtime"),
        (1, "realtime"),
        (1.5, "interactive"),
        (60, "interactive"),
        (61, "batch"),
    ],
)
def test_class_follows_from_the_deadline_unless_it_is_named(deadline: float | None, qos: str) -> None:
    terms = queue_terms(**NOTHING | {"deadline": deadline})
    assert (terms.qos, terms.deadline) == (qos, deadline)
    assert queue_terms(**NOTHING | {"deadline": deadline, "qos": "batch"}).qos == "batch"


def test_nothing_named_are_the_default_terms() -> None:
    assert queue_terms(**NOTHING) == QueueTerms()


@pytest.mark.parametrize(
    "wrong",
    [
        {"qos": "urgent"},
        {"qos": 3},
        {"client": 7},
        {"client": "x" * 257},
        {"weight": 0},
        {"weight": True},
        {"weight": 1025},
        {"priority": -1},
        {"priority": 10},
        {"deadline": 0},
        {"deadline": float("nan")},
        {"deadline": "1"},
    ],
)
def test_what_are_no_terms_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidConfig) as refusal:
        queue_terms(**NOTHING | wrong)
    assert refusal.value.fix
