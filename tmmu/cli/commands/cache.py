"""``tmmu cache``: what is kept, why a plan is not found, whether all of it is sound, and room for more."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from time import localtime, strftime, time_ns
from typing import Final

from tmmu.cache import store
from tmmu.cache.entry import Refused, open_entry
from tmmu.cache.miss import MissReason
from tmmu.cache.plans import LIMIT
from tmmu.cache.store import Stored
from tmmu.cli.boundary import conclude, print_json
from tmmu.cli.commands.plan import (
    CaptureOptions,
    PlanOptions,
    capture_options,
    capture_request,
    file_key,
    graph_key,
    plan_request,
    quiet,
    refuse_what_does_not_apply,
)
from tmmu.cli.load import load_graph
from tmmu.cli.options import Target, named, parse_target, refuse
from tmmu.cli.output import render
from tmmu.cli.output.progress import progress_bar
from tmmu.driver import PlanRequest, cache_folder, trace_key
from tmmu.errors import InvalidConfig, PlanCorrupt, TmmuError
from tmmu.ir.key import Key
from tmmu.judge.check import judge
from tmmu.planner.arenas import parse_size, readable_size

NEAREST: Final = 3
"""Entries that ``why`` compares with."""
DIGITS: Final = 12
"""Hexadecimal digits of a key that tell entries apart."""
_DIGEST: Final = re.compile(rf"\b([0-9a-f]{{{DIGITS}}})[0-9a-f]{{{64 - DIGITS}}}\b")
LISTED: Final = ("model", "target", "mode", "preset", "inputs")


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One file of the cache. Where it is no entry that can be served, ``fault`` says why and ``parts`` are empty."""

    key: str
    bytes: int
    used_ns: int
    parts: dict[str, str]
    fault: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Near:
    """An entry beside the key that was not found: part by part, what was asked for and what is stored."""

    key: str
    parts: dict[str, tuple[str, str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class WhyJob:
    """One run of ``tmmu cache why``, every option checked."""

    target: Target
    capture: CaptureOptions
    request: PlanRequest
    json: bool


def run_ls(*, as_json: bool) -> int:
    """The entries, most recently used first; 0."""
    folder = _listed_folder()
    rows = [row for stored in reversed(store.entries(folder)) if (row := _row(stored))]
    total = sum(row.bytes for row in rows)
    if as_json:
        print_json({"folder": str(folder), "bytes": total, "entries": [asdict(row) for row in rows]})
        return 0
    render.print_lines(render.console(), _listing(rows))
    render.print_lines(render.console(), [f"{_count(len(rows))}, {readable_size(total)}, in {folder}"])
    return 0


def _listed_folder() -> Path:
    """The folder of the entries, which can be listed, or is not there."""
    folder = cache_folder()
    why = store.why_unlisted(folder)
    if why:
        raise InvalidConfig(f"{folder} cannot be listed: {why}", fix="name another folder in TMMU_CACHE_DIR")
    return folder


def _row(stored: Stored) -> Row | None:
    """What is told of an entry; nothing where it has gone meanwhile."""
    try:
        entry = store.read_named(stored.path)
    except Refused as error:
        if error.miss.reason is MissReason.ABSENT:
            return None
        return Row(key=stored.key, bytes=stored.bytes, used_ns=stored.used, parts={}, fault=str(error.miss))
    parts = {part.name: part.text for part in entry.key.parts}
    return Row(key=stored.key, bytes=stored.bytes, used_ns=stored.used, parts=parts, fault="")


def _listing(rows: Sequence[Row]) -> list[str]:
    if not rows:
        return []
    cells = [(row.key[:DIGITS], _moment(row.used_ns), readable_size(row.bytes), *_listed(row)) for row in rows]
    return render.aligned("<<><<<<<", ("key", "last used", "size", *LISTED), cells)


def _moment(nanoseconds: int) -> str:
    """The time on this machine's clock, to the minute; nothing for one that no calendar has."""
    try:
        return strftime("%Y-%m-%d %H:%M", localtime(nanoseconds // 10**9))
    except (OSError, OverflowError, ValueError):
        return ""


def _short(text: str) -> str:
    """The text with the first digits of each digest alone."""
    return _DIGEST.sub(r"\1…", text)


def _listed(row: Row) -> tuple[str, ...]:
    if row.fault:
        return (row.fault, *[""] * (len(LISTED) - 1))
    parts = row.parts
    shown = parts | {"inputs": parts.get("model.inputs") or parts.get("workload", "")}
    return tuple(_short(shown.get(name, "")) for name in LISTED)


def _count(number: int) -> str:
    return f"{number} {'entry' if number == 1 else 'entries'}"


def why_job(given: PlanOptions) -> WhyJob:
    """The job that the options of ``tmmu plan`` ask for."""
    target = parse_target(given.target)
    refuse_what_does_not_apply(target, given)
    nothing = {"--output": given.output, "--ir": given.ir, "--reserve": given.reserve, "--no-cache": given.no_cache}
    refuse(nothing, "nothing is planned here")
    return WhyJob(target=target, capture=capture_options(given), request=plan_request(given), json=given.as_json)


def run_why(job: WhyJob) -> int:
    """Whether the plan is kept, and if not, in which parts its key differs from the nearest that are; 0 either way."""
    key = _key(job)
    folder = cache_folder()
    try:
        store.read_named(store.path_of(folder, key))
        reason = ""
    except Refused as error:
        reason = str(error.miss)
    near = () if not reason else nearest(key, folder)
    name = key.digest.hex()
    if job.json:
        parts = {part.name: part.text for part in key.parts}
        listed = [asdict(one) for one in near]
        print_json({"key": name, "kept": not reason, "miss": reason, "parts": parts, "nearest": listed})
        return 0
    said = f"not found: {name[:DIGITS]}: {reason}" if reason else f"found: {name[:DIGITS]}"
    render.print_lines(render.console(), [said, *_nearest_lines(near)])
    return 0


def _key(job: WhyJob) -> Key:
    if job.target.kind == "ir":
        return graph_key(load_graph(job.target.path), job.request)
    key = file_key(job.target, job.capture, job.request)
    if key is not None:
        return key
    with quiet(), progress_bar() as progress:
        progress("importing torch", 0)
        return trace_key(capture_request(job.target, job.capture), job.request, progress)


def nearest(key: Key, folder: Path) -> tuple[Near, ...]:
    """The entries that differ from ``key`` in fewest parts; of equals, the most recently used."""
    found: list[tuple[int, int, str, Near]] = []
    for stored in store.entries(folder):
        try:
            entry = store.read_named(stored.path)
        except Refused:
            continue
        parts = _differing(key, entry.key)
        found.append((len(parts), -stored.used, stored.key, Near(key=stored.key, parts=parts)))
    return tuple(near for *_, near in sorted(found, key=lambda row: row[:3])[:NEAREST])


def _differing(key: Key, other: Key) -> dict[str, tuple[str, str]]:
    """What the two say of the parts in which they differ; of a whole whose parts differ, only these."""
    names = key.differences(other)
    narrowed = [name for name in names if not any(one.startswith(f"{name}.") for one in names)]
    here = {part.name: (part.text, part.digest.hex()[:DIGITS]) for part in key.parts}
    there = {part.name: (part.text, part.digest.hex()[:DIGITS]) for part in other.parts}
    none = ("", "")
    return {name: _told(here.get(name, none), there.get(name, none)) for name in narrowed}


def _told(here: tuple[str, str], there: tuple[str, str]) -> tuple[str, str]:
    """The two texts, with the digests where the texts do not tell them apart."""
    if here[0] != there[0]:
        return here[0] or here[1], there[0] or there[1]
    return f"{here[0]} {here[1]}".strip(), f"{there[0]} {there[1]}".strip()


def _nearest_lines(near: Sequence[Near]) -> Iterator[str]:
    for one in near:
        count = len(one.parts)
        yield ""
        yield f"{one.key[:DIGITS]} differs in {count} part{'' if count == 1 else 's'}:"
        yield from render.aligned(
            "<<<", ("part", "asked for", "kept"), [(name, *map(_short, two)) for name, two in one.parts.items()]
        )


def run_verify_cache(*, as_json: bool) -> int:
    """Every entry is read and judged, without a token; 3 if any cannot be served."""
    folder = _listed_folder()
    found = [(stored.key, fault) for stored in store.entries(folder) if (fault := _fault(stored)) is not None]
    faults = {name: fault for name, fault in found if fault}
    error = _refusal(folder, len(found), len(faults)) if faults else None
    if as_json:
        print_json({"folder": str(folder), "entries": len(found), "faults": faults})
    else:
        lines = [f"{name[:DIGITS]}: {fault}" for name, fault in faults.items()]
        render.print_lines(render.console(), lines or [f"sound: {_count(len(found))} in {folder}"])
    return conclude(error)


def _fault(stored: Stored) -> str | None:
    """Why an entry cannot be served, and ``""`` where it can; nothing of one that another process removed meanwhile."""
    try:
        judge(*open_entry(store.read_named(stored.path)))
    except Refused as error:
        return None if error.miss.reason is MissReason.ABSENT else str(error.miss)
    except TmmuError as error:
        return f"{MissReason.UNSOUND.value}: {error.what}"
    return ""


def _refusal(folder: Path, entries: int, faults: int) -> PlanCorrupt:
    what = f"{faults} of {_count(entries)} in {folder} cannot be served"
    return PlanCorrupt(what, fix="tmmu cache prune removes them; a plan that is asked for is made again", faults=faults)


def run_prune(*, everything: bool, limit: str | None, as_json: bool) -> int:
    """What cannot be served is gone, and the rest takes at most ``limit`` bytes; 0, or 2 where something stays."""
    room = LIMIT if limit is None else named("--limit", lambda: parse_size(limit))
    folder = _listed_folder()
    doomed = [stored for stored in store.entries(folder) if everything or _fault(stored)]
    gone = [stored for stored in doomed if not store.remove(stored)]
    gone += store.evict(folder, limit=room)
    before = store.EVER if everything else time_ns() - store.ORPHAN_AGE
    unfinished = store.sweep(folder, before=before)
    doomed += store.surplus(store.entries(folder), limit=room)
    doomed += store.unfinished(folder, before=before)
    stuck = {stored.path.name: why for stored in doomed if (why := store.remove(stored))}
    kept = store.entries(folder)
    error = _stuck(folder, stuck) if stuck else None
    freed = sum(stored.bytes for stored in (*gone, *unfinished))
    if as_json:
        done = {"removed": len(gone), "unfinished": len(unfinished), "kept": len(kept), "stuck": stuck}
        print_json({"folder": str(folder), **done, "freed": freed, "bytes": sum(one.bytes for one in kept)})
    else:
        text = f"removed {_count(len(gone))}, {readable_size(freed)}; kept {_count(len(kept))} in {folder}"
        render.print_lines(render.console(), [text])
    return conclude(error)


def _stuck(folder: Path, stuck: Mapping[str, str]) -> InvalidConfig:
    name, why = next(iter(stuck.items()))
    more = f", and {len(stuck) - 1} more" if len(stuck) > 1 else ""
    what = f"{folder / name} should go and cannot be removed: {why}{more}"
    return InvalidConfig(what, fix="remove it by hand, or as who may")
