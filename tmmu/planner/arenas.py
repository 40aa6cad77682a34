"""Arenas: the four of every plan, the arena of each role, and the settings that a caller may override."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final

from tmmu.errors import AlignmentViolation, InvalidConfig, InvalidIrShapes
from tmmu.ir.plan import JOINT, LAYOUTS, ArenaSpec, slabs_of

U64_MAX: Final = 2**64 - 1
ARENAS: Final = ("parameters", "state", "activations", "gradients")
NEVER_REUSED: Final = frozenset({"parameters", "state"})
ARENA_OF_ROLE: Final = {
    "parameter": "parameters",
    "constant": "parameters",
    "state": "state",
    "activation": "activations",
    "scratch": "activations",
    "gradient": "gradients",
    "input": None,
    "host": None,
}
SEGMENT_OF_ARENA: Final = {"parameters": "text", "state": "data", "activations": "stack", "gradients": "stack"}
UNITS: Final = {
    "": 1,
    "b": 1,
    "kib": 2**10,
    "mib": 2**20,
    "gib": 2**30,
    "tib": 2**40,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
}
BINARY_UNITS: Final = ("KiB", "MiB", "GiB", "TiB", "PiB", "EiB")
_SIZE: Final = re.compile(r"([0-9]+)(?:\.([0-9]+))?(?:e\+?([0-9]{1,2}))?\s*([a-z]*)", re.IGNORECASE | re.ASCII)
_LONGEST_SIZE: Final = 80
"""Characters of the text of a size."""
_EXAMPLE: Final = "write it as activations=capacity:8GiB,alignment:256,layout:slots"


def default_arenas(alignment: int = 256) -> tuple[ArenaSpec, ...]:
    """The four arenas without limits: text and data sequential, the stack packed as one."""
    return tuple(
        ArenaSpec(
            name=name,
            segment=SEGMENT_OF_ARENA[name],
            layout="sequential" if name in NEVER_REUSED else JOINT,
            alignment=alignment,
        )
        for name in ARENAS
    )


def arena_of_role(role: str) -> str | None:
    """The arena that places buffers of ``role``; None for inputs. ``InvalidIrShapes`` if unknown."""
    if role not in ARENA_OF_ROLE:
        raise InvalidIrShapes(f"unknown role {role!r}", fix=f"use one of {', '.join(ARENA_OF_ROLE)}", role=role)
    return ARENA_OF_ROLE[role]


def parse_size(text: str) -> int:
    """Bytes: ``8GiB``, ``1.5 GB``, ``4096``, ``16e9``, rounded down; ``InvalidConfig`` for any other text and past 64
    bits.
    """
    match = _SIZE.fullmatch(text.strip()) if len(text) <= _LONGEST_SIZE else None
    if not match or match[4].lower() not in UNITS:
        raise InvalidConfig(
            f"{text!r:.{_LONGEST_SIZE}} is not a size",
            fix="write bytes, as 4096 or 16e9, or a number with KiB, MiB, GiB, TiB, KB, MB, GB or TB, as 1.5GiB",
            text=text[:_LONGEST_SIZE],
        )
    unit, decimals = UNITS[match[4].lower()], match[2] or ""
    scale, parts = int("1" + "0" * int(match[3] or 0)), int("1" + "0" * len(decimals))
    size, rest = divmod(int(match[1] + decimals) * scale * unit, parts)
    if rest and unit == 1:
        raise InvalidConfig(f"{text!r} is no whole number of bytes", fix="drop what follows the point", text=text)
    if size > U64_MAX:
        raise InvalidConfig(
            f"{text!r} does not fit 64 bits", fix="choose a smaller size: less than 2^64 bytes", text=text
        )
    return size


def readable_size(count: int) -> str:
    """Bytes in binary units with one decimal: ``1.5 GiB``."""
    if abs(count) < 1024:
        return f"{count} B"
    scaled = float(count)
    for unit in BINARY_UNITS:
        scaled /= 1024
        if abs(scaled) < 1023.95 or unit == BINARY_UNITS[-1]:
            return f"{scaled:.1f} {unit}"
    raise AssertionError("the last unit takes all")


def parse_arenas(texts: Iterable[str], base: Sequence[ArenaSpec] | None = None) -> tuple[ArenaSpec, ...]:
    """``base`` (the default arenas) with each text, such as ``state=capacity:2GiB``, merged in; checked."""
    specs = {spec.name: spec for spec in (default_arenas() if base is None else base)}
    for text in texts:
        name, equals, settings = text.partition("=")
        if not equals or not settings or name not in specs:
            raise InvalidConfig(f"{text!r} names no arena of {', '.join(specs)}", fix=_EXAMPLE, text=text)
        specs[name] = _merge(specs[name], settings)
    return check_arenas(tuple(specs.values()))


def _merge(spec: ArenaSpec, settings: str) -> ArenaSpec:
    for setting in settings.split(","):
        key, colon, value = setting.partition(":")
        if colon and key == "layout":
            spec = replace(spec, layout=value)
        elif colon and key == "capacity":
            spec = replace(spec, capacity=parse_size(value))
        elif colon and key == "alignment":
            spec = replace(spec, alignment=parse_size(value))
        elif colon and key == "page":
            spec = replace(spec, page=parse_size(value))
        else:
            raise InvalidConfig(f"{setting!r} is no setting of an arena", fix=_EXAMPLE, arena=spec.name, text=setting)
    return spec


def check_arenas(specs: Sequence[ArenaSpec]) -> tuple[ArenaSpec, ...]:
    """The four arenas in the plan's order; ``InvalidConfig`` or ``AlignmentViolation`` for a bad setting."""
    by_name = {spec.name: spec for spec in specs}
    if len(specs) != len(ARENAS) or set(by_name) != set(ARENAS):
        names = ", ".join(spec.name for spec in specs)
        raise InvalidConfig(f"the arenas are {names}", fix=f"give each of {', '.join(ARENAS)} once", arenas=names)
    for name in ARENAS:
        _check_spec(by_name[name])
    ordered = tuple(by_name[name] for name in ARENAS)
    _check_joint(ordered)
    return ordered


def _check_joint(specs: Sequence[ArenaSpec]) -> None:
    """Arenas packed into one slab share one alignment: the joint problem has a single one."""
    for slab in slabs_of([spec.segment for spec in specs], [spec.layout for spec in specs]):
        first, *others = (specs[arena] for arena in slab)
        for member in others:
            if member.alignment != first.alignment:
                raise InvalidConfig(
                    f"{first.name} and {member.name} are packed together, with alignments {first.alignment} "
                    f"and {member.alignment}",
                    fix=f"give both one alignment, or lay one out alone: {member.name}=layout:packed",
                    arenas=[first.name, member.name],
                    alignments=[first.alignment, member.alignment],
                )


def _check_spec(spec: ArenaSpec) -> None:
    for setting, number in (("alignment", spec.alignment), ("page", spec.page)):
        if number < (setting == "alignment") or number > U64_MAX or number & (number - 1):
            raise AlignmentViolation(
                f"{setting} {number} of arena {spec.name} is not a power of two",
                fix="use 64, 128, 256, 512 or another power of two",
                arena=spec.name,
                **{setting: number},
            )
    if spec.segment != SEGMENT_OF_ARENA[spec.name]:
        raise InvalidConfig(
            f"arena {spec.name} is in segment {spec.segment!r}",
            fix=f"put it in {SEGMENT_OF_ARENA[spec.name]}",
            arena=spec.name,
            segment=spec.segment,
        )
    if not 0 <= spec.capacity <= U64_MAX:
        raise InvalidConfig(f"capacity {spec.capacity} of {spec.name} is no 64-bit size", arena=spec.name)
    allowed = ("sequential",) if spec.name in NEVER_REUSED else LAYOUTS
    if spec.layout not in allowed:
        raise InvalidConfig(
            f"arena {spec.name} cannot have layout {spec.layout!r}",
            fix=f"use {' or '.join(allowed)}",
            arena=spec.name,
            layout=spec.layout,
        )
