"""Which class and deadline a request has, and who says so."""

import pytest

from tmmu.errors import InvalidRequest
from tmmu.server.admission.request_terms import RequestTerms, read_terms
from tmmu.server.admission.rights import DEFAULT_RIGHTS, ClientRights


def terms(
    tier: str | None = None, *, rights: ClientRights = DEFAULT_RIGHTS, qos: bool = True, **headers: str
) -> RequestTerms:
    named = {f"x-tmmu-{name}": value for name, value in headers.items()}
    return read_terms(named, tier, client="key-1", rights=rights, came=100.0, has_classes=qos)


@pytest.mark.parametrize(
    ("headers", "tier", "expected"),
    [
        ({}, None, ("interactive", "default", None)),
        ({}, "auto", ("interactive", "default", None)),
        ({}, "default", ("interactive", "default", None)),
        ({}, "flex", ("batch", "flex", None)),
        ({}, "priority", ("realtime", "priority", None)),
        ({"deadline": "0.5"}, None, ("realtime", "priority", 100.5)),
        ({"deadline": "90"}, "auto", ("batch", "flex", 190.0)),
        ({"deadline": "0.5"}, "flex", ("batch", "flex", 100.5)),
        ({"class": "realtime", "deadline": "90"}, "flex", ("realtime", "priority", 190.0)),
    ],
)
def test_header_goes_before_tier_before_deadline(
    headers: dict[str, str], tier: str | None, expected: tuple[str, str, float | None]
) -> None:
    read = terms(tier, **headers)
    assert (read.queue.qos, read.tier, read.due) == expected


def test_no_class_is_above_that_of_the_key() -> None:
    rights = ClientRights(weight=5, highest="interactive")
    assert terms("priority", rights=rights).tier == "default"
    assert terms("flex", rights=rights).queue.qos == "batch"
    assert (terms(rights=rights).queue.weight, terms(rights=rights).queue.client) == (5, "key-1")


def test_server_without_classes_has_one() -> None:
    assert {terms(tier, qos=False).queue.qos for tier in ("priority", "flex", None)} == {"interactive"}


@pytest.mark.parametrize(
    "headers", [{"class": "urgent"}, {"class": ""}, {"deadline": "soon"}, {"deadline": "0"}, {"deadline": "-1"},
                {"deadline": "nan"}, {"deadline": "inf"}, {"deadline": "1" * 40}, {"deadline": "1e12"}]
)  # fmt: skip
def test_other_words_are_refused(headers: dict[str, str]) -> None:
    with pytest.raises(InvalidRequest, match="x-tmmu"):
        terms(**headers)
