"""Rights of keys: written behind them, whole numbers and classes."""

import pytest

from tmmu.errors import InvalidConfig
from tmmu.server.admission.rights import DEFAULT_RIGHTS, ClientRights, parse_rights


def test_rights_are_what_the_words_say() -> None:
    assert parse_rights({}) == DEFAULT_RIGHTS
    rights = parse_rights({"weight": "3", "quota": "60000", "class": "batch"})
    assert rights == ClientRights(weight=3, quota=60000, highest="batch")


@pytest.mark.parametrize(
    "words", [{"weight": "0"}, {"weight": "+1"}, {"weight": "1025"}, {"quota": ""}, {"quota": "9" * 400},
              {"quota": "\u0663"}, {"class": "urgent"}, {"colour": "red"}]
)  # fmt: skip
def test_what_are_no_rights_is_refused(words: dict[str, str]) -> None:
    with pytest.raises(InvalidConfig):
        parse_rights(words)
