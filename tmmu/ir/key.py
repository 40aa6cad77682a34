"""Cache keys: named parts, each hashed by itself, so that two keys can say in which parts they differ."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from blake3 import blake3

from tmmu.ir.encoding import cbor

TEXT_LIMIT: Final = 160
"""Characters of a part's text: enough to recognize what it says, too few to fill a screen."""


@dataclass(frozen=True, slots=True)
class Part:
    """One input of a plan: ``digest`` is BLAKE3 over name and content, 32 bytes; ``text`` is what a person reads."""

    name: str
    digest: bytes
    text: str = ""


@dataclass(frozen=True)
class Key:
    """Everything that decides a plan, as parts sorted by name, each name once. Their texts are not hashed."""

    parts: tuple[Part, ...]

    @cached_property
    def digest(self) -> bytes:
        """32 bytes: BLAKE3 over the digests of the parts, in order; each of these covers its name."""
        return blake3(b"".join([part.digest for part in self.parts])).digest()

    def without_parts(self, names: Iterable[str]) -> "Key":
        """The key of all parts but those of these names."""
        dropped = frozenset(names)
        return Key(tuple(part for part in self.parts if part.name not in dropped))

    def with_parts(self, *parts: Part) -> "Key":
        """The key with these parts added; one of the same name is replaced."""
        return key_of((*self.parts, *parts))

    def differences(self, reference: "Key") -> tuple[str, ...]:
        """Names, sorted, of the parts that differ or that only one of the two keys has."""
        digests = {part.name: part.digest for part in self.parts}
        reference_digests = {part.name: part.digest for part in reference.parts}
        names = sorted(digests | reference_digests)
        return tuple(name for name in names if digests.get(name) != reference_digests.get(name))


@dataclass(frozen=True, slots=True)
class NoKey:
    """There is no key, so nothing is looked up or stored; ``reason`` says what could not be named."""

    reason: str


def part_of(name: str, content: object, text: str | None = None) -> Part:
    """The part of a content that canonical CBOR can say; ``text`` is the content itself where none is told."""
    if text is None:
        text = content.hex() if isinstance(content, bytes) else str(content)
    return Part(name, blake3(cbor.encode([name, content])).digest(), text[:TEXT_LIMIT])


def key_of(parts: Iterable[Part]) -> Key:
    """The key of these parts; of two with one name, the later."""
    named = {part.name: part for part in parts}
    return Key(tuple(named[name] for name in sorted(named)))
