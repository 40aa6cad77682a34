"""What a plan is looked up by: named parts, each hashed by itself, so that two keys can say in what they differ."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from blake3 import blake3

from tmmu.ir import cbor

TEXT_LIMIT: Final = 160
"""Characters that a part says of itself: enough to recognize it, too few to fill a screen."""


@dataclass(frozen=True, slots=True)
class Part:
    """One thing that decides a plan: ``digest`` is BLAKE3 of name and content, ``text`` what a person is told."""

    name: str
    digest: bytes
    text: str = ""


@dataclass(frozen=True)
class Key:
    """All that decides a plan: parts sorted by name, each name once. ``text`` of a part decides nothing."""

    parts: tuple[Part, ...]

    @cached_property
    def digest(self) -> bytes:
        """32 bytes: BLAKE3 of the digests of the parts, in order; each covers its name."""
        return blake3(b"".join([part.digest for part in self.parts])).digest()

    def without(self, names: Iterable[str]) -> "Key":
        """The same key without the parts of these names."""
        gone = frozenset(names)
        return Key(tuple(part for part in self.parts if part.name not in gone))

    def replaced(self, *parts: Part) -> "Key":
        """The same key with these parts in place of those of the same names, or beside the others."""
        return key_of((*self.parts, *parts))

    def differences(self, other: "Key") -> tuple[str, ...]:
        """Names of the parts in which the two keys differ, sorted."""
        mine = {part.name: part.digest for part in self.parts}
        theirs = {part.name: part.digest for part in other.parts}
        return tuple(name for name in sorted(mine | theirs) if mine.get(name) != theirs.get(name))


@dataclass(frozen=True, slots=True)
class NoKey:
    """Nothing may be looked up, because something that decides the plan cannot be named; ``why`` says what."""

    why: str


def part_of(name: str, content: object, text: str | None = None) -> Part:
    """The part of this content: integers, booleans, null, text, bytes, and lists, tuples and maps of them."""
    plain = content.hex() if isinstance(content, bytes) else str(content)
    shown = plain if text is None else text
    return Part(name, blake3(cbor.encode([name, content])).digest(), shown[:TEXT_LIMIT])


def key_of(parts: Iterable[Part]) -> Key:
    """The key of these parts; of two with one name the later one counts."""
    named = {part.name: part for part in parts}
    return Key(tuple(named[name] for name in sorted(named)))
