"""What the key ``fit`` of a plan looks like, whatever graph it is about; and the key of a plan file."""

import re
from collections.abc import Iterator, Sequence
from typing import Final

from tmmu.ir.encoding.columns import byte_string, refuse, rows, table, texts, uints
from tmmu.ir.fault import U64_MAX, Fault
from tmmu.ir.fit import FUSED_VERSION, FitCost, FitRecord, FusedRecord
from tmmu.ir.plan import Plan
from tmmu.ir.rewrite import KINDS, SUBLIST, WITH_PART, Part, Rewrite

KEYS: Final = ("version", "base_hash", "origin", "kind", "part", "cost", "budget_bytes", "levers", "near")
RULE: Final = "fit-form"
APART_MAX: Final = 64
"""Groups that are cut for a peak."""
DIGEST: Final = re.compile(r"[0-9a-f]{20}")
"""Of a group."""
PART_MAX: Final = 3 * 64
"""Numbers of a part: three for each axis that is cut."""


def fit_form(plan: Plan) -> Iterator[Fault]:
    """What a rewritten graph came from is said in equal columns, of known kinds, parts and numbers."""
    fit = plan.fit
    if fit is None:
        return
    rewrite, cost = fit.rewrite, fit.cost
    if type(rewrite.base_hash) is not bytes or len(rewrite.base_hash) != 32:
        yield _fault(f"the base's hash is {rewrite.base_hash!r:.80}, not 32 bytes")
    columns = (("kind", rewrite.kind), ("part", rewrite.part))
    for name, column in columns:
        if len(column) != len(rewrite):
            yield _fault(f"{name} has {len(column)} rows, and origin {len(rewrite)}")
    numbers = {"flops": cost.flops, "bytes": cost.bytes, "time_ppm": cost.time_ppm, "budget_bytes": fit.budget_bytes}
    for name, number in numbers.items():
        if not _is_u64(number) and not (name == "budget_bytes" and number is None):
            yield _fault(f"{name} is {number!r:.80}, no unsigned 64-bit number")
    if not all(map(_is_u64, rewrite.origin)):
        yield _fault("an op stands for what is no unsigned 64-bit number")
    for name, names in (("levers", fit.levers), ("near", fit.near)):
        if not all(type(each) is str and each for each in names) or len(set(names)) != len(names):
            yield _fault(f"{name} are no names, each once")
    yield from _part_faults(rewrite)
    yield from () if fit.fused is None else _fused_faults(fit.fused)


def _fused_faults(fused: FusedRecord) -> Iterator[Fault]:
    if type(fused.rewritten_hash) is not bytes or len(fused.rewritten_hash) != 32:
        yield _fault(f"the rewritten graph's hash is {fused.rewritten_hash!r:.80}, not 32 bytes")
    are_digests = all(type(each) is str and DIGEST.fullmatch(each) for each in fused.apart)
    if not are_digests or len(set(fused.apart)) != len(fused.apart) or len(fused.apart) > APART_MAX:
        yield _fault(f"apart are no digests of groups, each once and {APART_MAX} at most")


def _part_faults(rewrite: Rewrite) -> Iterator[Fault]:
    for op, (kind, part) in enumerate(zip(rewrite.kind, rewrite.part, strict=False)):
        if kind not in KINDS:
            yield _fault(f"op {op} is of kind {kind!r:.20}, none of {', '.join(KINDS)}", op)
        elif kind not in WITH_PART and part != ():
            yield _fault(f"op {op} is of kind {kind}, and has part {part!r:.40}", op)
        elif len(part) > PART_MAX or not all(map(_is_u64, part)):
            yield _fault(f"op {op} has part {part!r:.40}, not at most {PART_MAX} numbers", op)
        elif kind == SUBLIST and not (len(part) == 2 and part[0] < part[1]):
            yield _fault(f"op {op} has part {part!r:.40}, no range of entries", op)


def _is_u64(number: object) -> bool:
    return type(number) is int and 0 <= number <= U64_MAX


def _fault(message: str, op: int | None = None) -> Fault:
    return Fault(rule=RULE, what=message, op=op)


def parse_fit(value: object) -> FitRecord:
    """The record of the key ``fit``: as ``fit_form`` demands once the plan is whole; ``PlanCorrupt`` for what is none.

    Whether its base has the ops that it names, only the base can say.
    """
    is_fused = isinstance(value, dict) and value.get("version") == FUSED_VERSION
    top = table(value, "fit", (*KEYS, "fused") if is_fused else KEYS)
    _require_version(top["version"])
    costs = table(top["cost"], "fit.cost", FitCost.__slots__)
    numbers: dict[str, int] = {name: _number(costs[name], f"fit.cost.{name}") for name in FitCost.__slots__}
    budget = top["budget_bytes"]
    return FitRecord(
        rewrite=_rewrite(top["base_hash"], top["origin"], top["kind"], top["part"]),
        cost=FitCost(**numbers),
        budget_bytes=None if budget is None else _number(budget, "fit.budget_bytes"),
        levers=texts(top["levers"], "fit.levers"),
        near=texts(top["near"], "fit.near"),
        fused=_fused_record(top["fused"]) if is_fused else None,
    )


def _fused_record(value: object) -> FusedRecord:
    columns = table(value, "fit.fused", FusedRecord.__slots__)
    return FusedRecord(
        rewritten_hash=byte_string(columns["rewritten_hash"], "fit.fused.rewritten_hash", 32),
        apart=texts(columns["apart"], "fit.fused.apart"),
    )


def _require_version(version: object) -> None:
    if type(version) is not int or version < 1:
        refuse("fit.version", f"is {version!r:.80}, not a version")
    if version > FUSED_VERSION:
        refuse("fit.version", f"is {version}, newer than this program's {FUSED_VERSION}")


def _rewrite(base_hash: object, origin: object, kind: object, part: object) -> Rewrite:
    codes: tuple[int, ...] = uints(kind, "fit.kind")
    unknown = max(codes, default=0)
    if unknown >= len(KINDS):
        refuse("fit.kind", f"names kind {unknown}, of {len(KINDS)}")
    kinds = tuple(KINDS[code] for code in codes)
    return Rewrite(
        base_hash=byte_string(base_hash, "fit.base_hash", 32),
        origin=uints(origin, "fit.origin"),
        kind=kinds,
        part=_parts(kinds, part),
    )


def _parts(kinds: Sequence[str], value: object) -> tuple[Part, ...]:
    """A row for each op: those of the file are of kinds that have a part, in their order."""
    parts: tuple[Part, ...] = rows(value, "fit.part")
    count = sum(kind in WITH_PART for kind in kinds)
    if len(parts) != count:
        refuse("fit.part", f"has {len(parts)} rows for {count} ops with a part")
    if max(map(len, parts), default=0) > PART_MAX:
        refuse("fit.part", f"has a row of more than {PART_MAX} numbers")
    remaining = iter(parts)
    return tuple(next(remaining) if kind in WITH_PART else () for kind in kinds)


def _number(value: object, key: str) -> int:
    numbers: tuple[int, ...] = uints([value], key)
    return numbers[0]
