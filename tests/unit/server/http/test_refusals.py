"""Statuses are those of the page."""

import json

import pytest

from tests.docs.commands import ROOT
from tmmu import errors
from tmmu.errors import TmmuError
from tmmu.server.http.refusals import STATUSES, error_response, status_of


def page() -> dict[str, int]:
    """The status of each code that the page lists."""
    section = (ROOT / "docs/spec/serve.md").read_text().split("\n## Refusals\n")[1].split("\n## ")[0]
    rows = [line.split("|")[1:3] for line in section.splitlines() if line.startswith("| ") and line[2].isdigit()]
    return {code: int(status.split(",")[0]) for status, codes in rows for code in codes.split("`")[1::2]}


ERRORS = [each for each in vars(errors).values() if isinstance(each, type) and issubclass(each, TmmuError)]


@pytest.mark.parametrize("kind", [each for each in ERRORS if "code" in vars(each)], ids=lambda kind: kind.__name__)
def test_statuses_are_those_of_the_page(kind: type[TmmuError]) -> None:
    error = kind("what it is", fix="what to do")
    response = error_response(error)
    assert response.status_code == page().get(error.code, 500) == status_of(error)[0]
    assert ("retry-after" in response.headers) == (response.status_code in (429, 503))
    assert ("x-should-retry" in response.headers) == (response.status_code == 504)
    body = json.loads(bytes(response.body))["error"]
    assert body == {"message": "what it is (what to do)", "type": body["type"], "param": None, "code": error.code}


def test_page_lists_every_cause_that_a_client_can_mend_or_wait_for() -> None:
    assert set(page()) == {kind.code for kind in STATUSES} | {"INTERNAL"}


def test_request_that_never_has_its_quota_is_not_to_be_sent_again() -> None:
    later = error_response(errors.QuotaExceeded("much", retry_seconds=7))
    never = error_response(errors.QuotaExceeded("too much", retry_seconds=0))
    assert later.headers["retry-after"] == "7"
    assert ("retry-after" in never.headers, never.headers["x-should-retry"]) == (False, "false")
