"""Replay tokens: 64 bytes or more, a function of the seed."""

import pytest

from tmmu.errors import InvalidToken
from tmmu.planner.token import check_token, parse_token, token_from_seed


def test_token_of_a_seed_never_changes() -> None:
    assert len(token_from_seed(0)) == 64
    assert token_from_seed(0).hex() == SEED_0
    assert len({token_from_seed(seed) for seed in (0, 1, 255, 256, 2**64 - 1)}) == 5


@pytest.mark.parametrize("seed", [-1, 2**64])
def test_seed_beyond_64_bits_is_refused(seed: int) -> None:
    with pytest.raises(InvalidToken):
        token_from_seed(seed)


def test_token_shorter_than_64_bytes_is_refused() -> None:
    assert check_token(bytes(64)) == bytes(64)
    assert check_token(bytes(65)) == bytes(65)
    with pytest.raises(InvalidToken):
        check_token(bytes(63))


def test_token_is_parsed_from_hexadecimal_text() -> None:
    assert parse_token("0aF0" * 32) == bytes([10, 240] * 32)
    for text in ("", "zz" * 64, "0" * 127, "00" * 63):
        with pytest.raises(InvalidToken):
            parse_token(text)


SEED_0 = (
    "be74e88d874e590e447a7062e4e503eb738238b0bb1b6557eb7edd9a9767235a"
    "faf74c27493907586402f8666524215e39674ad3f525f8a6cc01244742b03dbe"
)
