"""Replay tokens: 64 bytes or more, from which every virtual address of a plan is hashed."""

from typing import Final

from blake3 import blake3

from tmmu.errors import InvalidToken

MIN_BYTES: Final = 64
SEED_CONTEXT: Final = "tmmu 2026 replay token v1"
_FIX: Final = "give at least 64 bytes as hexadecimal text, or a seed"


def token_from_seed(seed: int) -> bytes:
    """64 bytes that depend on the seed alone; ``InvalidToken`` unless it fits 64 unsigned bits."""
    if type(seed) is not int or not 0 <= seed < 2**64:
        raise InvalidToken(
            f"seed {seed!r:.80} is not an unsigned 64-bit number", fix="choose one below 2**64", seed=str(seed)
        )
    return blake3(seed.to_bytes(8, "little"), derive_key_context=SEED_CONTEXT).digest(length=MIN_BYTES)


def check_token(token: bytes) -> bytes:
    """The same token; ``InvalidToken`` when it is shorter than 64 bytes."""
    if len(token) < MIN_BYTES:
        raise InvalidToken(f"the token has {len(token)} bytes, not {MIN_BYTES} or more", fix=_FIX, bytes=len(token))
    return token


def parse_token(text: str) -> bytes:
    """The token that hexadecimal ``text`` spells; ``InvalidToken`` when it spells none."""
    try:
        token = bytes.fromhex(text)
    except ValueError as error:
        raise InvalidToken("the token is not hexadecimal", fix=_FIX) from error
    return check_token(token)
