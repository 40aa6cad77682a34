"""JSON of strangers: looked at before it is decoded, so that no file makes more objects than its bytes can mean."""

import json
import re
from collections.abc import Callable, Sequence
from typing import Any, Final

from tmmu.errors import PlanCorrupt

OBJECT_FACTOR: Final = 14
OBJECT_BASE: Final = 40 << 20
"""Objects may take ``OBJECT_FACTOR`` times the bytes of the text and ``OBJECT_BASE`` more."""
DEPTH_MAX: Final = 64
_COSTS: Final = ((b"{", 400), (b"[", 96), (b",", 48), (b":", 140))
"""At least the bytes of the objects that a mark of JSON makes, its part of the table they stand in included."""
_MARK: Final = re.compile(rb'"(?:[^"\\]|\\.)*+"?|[][{}]', re.DOTALL)
"""A string, or a bracket outside of strings."""

Members = Callable[[Sequence[tuple[str, object]]], object]


def decode_json(text: bytes, *, members: Members | None = None) -> Any:
    """The value of a text; ``PlanCorrupt`` if it is no JSON, too deep, or has too many items for its bytes.

    ``members`` makes an object of its pairs. Marks inside of strings count too, so what is refused may be
    a text of marks. Linear; memory at most 16 times the text and 64 MiB.
    """
    cost = sum(text.count(mark) * bytes_of for mark, bytes_of in _COSTS)
    if cost > OBJECT_FACTOR * len(text) + OBJECT_BASE:
        raise PlanCorrupt(f"too many items for {len(text)} bytes of JSON", fix="fetch the file again")
    try:
        _require_shallow(text)
        return json.loads(text, object_pairs_hook=members)
    except (ValueError, RecursionError) as error:
        raise PlanCorrupt(f"no JSON of one spelling: {error}", fix="fetch the file again") from error


def _require_shallow(text: bytes) -> None:
    """No more than ``DEPTH_MAX`` containers are open at once, marks in strings left out."""
    depth = 0
    for match in _MARK.finditer(text):
        mark = match[0]
        if mark in (b"[", b"{"):
            depth += 1
            if depth > DEPTH_MAX:
                raise ValueError(f"deeper than {DEPTH_MAX}")
        elif mark in (b"]", b"}"):
            depth -= 1
