"""``tmmu cache``: lists the entries, explains a miss, judges every entry, removes entries."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from time import localtime, strftime, time_ns
from typing import Annotated, Final

import typer

from tmmu.cache import store
from tmmu.cache.entry import EntryRefused, open_entry
from tmmu.cache.kernel_files import MAX_BYTES, evict_kernels
from tmmu.cache.miss import MissReason
from tmmu.cache.plans import MAX_FOLDER_BYTES
from tmmu.cache.store import EntryFile
from tmmu.cli import options
from tmmu.cli.error_boundary import conclude, print_json
from tmmu.cli.option_groups import OptionGroup, expand_groups
from tmmu.cli.options import CaptureOptions, PlanningOptions, TokenOptions
from tmmu.cli.output import render
from tmmu.cli.output.progress import progress_bar
from tmmu.cli.parsing import parse_model, parse_option, refuse
from tmmu.cli.planning import (
    ModelRequest,
    capture_request,
    file_key,
    graph_key,
    model_request,
    plan_of_graph,
    quiet,
)
from tmmu.codec.load import load_graph
from tmmu.codec.printable import align_columns
from tmmu.driver import cache_folder, kernel_folder, key_of_traced_model
from tmmu.errors import InvalidConfig, PlanCorrupt, TmmuError
from tmmu.ir.key import Key, Part
from tmmu.judge.check import judge
from tmmu.planner.arenas import parse_size, readable_size

MAX_NEAREST: Final = 3
"""Entries that ``why`` compares the key with."""
KEY_DIGITS: Final = 12
"""Hexadecimal digits of a digest that are shown to a person; JSON has all 64."""
_DIGEST: Final = re.compile(rf"\b([0-9a-f]{{{KEY_DIGITS}}})[0-9a-f]{{{64 - KEY_DIGITS}}}\b")
LISTED_PARTS: Final = ("model", "target", "mode", "preset", "inputs")


PLANNING_ONLY: Final = frozenset(("--output", "--ir", "--reserve", "--report", "--no-cache"))
"""Options of ``tmmu plan`` that ``why`` refuses, since nothing is planned."""

app = typer.Typer(
    add_completion=False, help="List the plans in the cache, ask why one is not found, verify them, make room."
)


@app.command()
def ls(*, as_json: options.Json = False) -> options.Run:
    """List what is kept, most recently used first."""
    return lambda: run_ls(as_json=as_json)


@dataclass(frozen=True, slots=True, kw_only=True)
class WhyCommandOptions(OptionGroup):
    """Options of ``tmmu cache why`` alone; the hidden ones are of ``tmmu plan``, and refused."""

    as_json: options.Json = False
    output: Annotated[str | None, typer.Option("--output", "-o", hidden=True)] = None
    ir: Annotated[str | None, typer.Option("--ir", hidden=True)] = None
    reserve: Annotated[str | None, typer.Option("--reserve", hidden=True)] = None
    report: Annotated[str | None, typer.Option("--report", hidden=True)] = None


@app.command()
@expand_groups
def why(
    *,
    model: options.Model,
    capture: CaptureOptions,
    planning: PlanningOptions,
    token: TokenOptions,
    settings: WhyCommandOptions,
) -> options.Run:
    """Say whether the plan of MODEL is kept, else in which parts its key differs from the nearest that are."""

    def step() -> int:
        request = model_request(parse_model(model), capture, planning, token)
        values = dict((*planning.given_options(), *settings.given_options()))
        refuse({flag: values[flag] for flag in PLANNING_ONLY & values.keys()}, "nothing is planned here")
        return run_why(request, as_json=settings.as_json)

    return step


@app.command()
def verify(*, as_json: options.Json = False) -> options.Run:
    """Read every entry and judge its plan."""
    return lambda: run_verify_cache(as_json=as_json)


@app.command()
def prune(
    *,
    everything: Annotated[
        bool, typer.Option("--all", help="Remove every entry. Default: what cannot be served.")
    ] = False,
    limit: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE", help="Remove the least recently used until the rest fits in SIZE. Default: 256MiB."
        ),
    ] = None,
    as_json: options.Json = False,
) -> options.Run:
    """Remove what cannot be served, and what was not used for longest until the rest fits."""
    return lambda: run_prune(everything=everything, limit=limit, as_json=as_json)


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryRow:
    """One entry file for ``ls``, as in its JSON. If it cannot be served, ``fault`` says why and ``parts`` is empty."""

    key: str
    bytes: int
    used_ns: int
    parts: dict[str, str]
    fault: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NearEntry:
    """A stored entry beside a key that was not found: for each part that differs, the text asked for and the stored."""

    key: str
    parts: dict[str, tuple[str, str]]


def run_ls(*, as_json: bool) -> int:
    """Prints the entries, most recently used first; returns 0."""
    folder = _require_listable_folder()
    rows = [row for file in reversed(store.entries(folder)) if (row := _entry_row(file))]
    total = sum(row.bytes for row in rows)
    if as_json:
        print_json({"folder": str(folder), "bytes": total, "entries": [asdict(row) for row in rows]})
        return 0
    render.print_lines(render.console(), _listing_lines(rows))
    render.print_lines(render.console(), [f"{_count_text(len(rows))}, {readable_size(total)}, in {folder}"])
    return 0


def _require_listable_folder() -> Path:
    """The cache folder, which can be listed or does not exist; else ``INVALID_CONFIG``."""
    folder = cache_folder()
    reason = store.listing_error(folder)
    if reason:
        raise InvalidConfig(f"{folder} cannot be listed: {reason}", fix="name another folder in TMMU_CACHE_DIR")
    return folder


def _entry_row(file: EntryFile) -> EntryRow | None:
    """The row of an entry; ``None`` if another process has removed it meanwhile."""
    try:
        entry = store.read_matching_entry(file.path)
    except EntryRefused as error:
        if error.miss.reason is MissReason.ABSENT:
            return None
        return EntryRow(key=file.key, bytes=file.bytes, used_ns=file.used_ns, parts={}, fault=str(error.miss))
    parts = {part.name: part.text for part in entry.key.parts}
    return EntryRow(key=file.key, bytes=file.bytes, used_ns=file.used_ns, parts=parts, fault="")


def _listing_lines(rows: Sequence[EntryRow]) -> list[str]:
    if not rows:
        return []
    cells = [
        (row.key[:KEY_DIGITS], _format_time(row.used_ns), readable_size(row.bytes), *_listed_cells(row)) for row in rows
    ]
    return align_columns("<<><<<<<", ("key", "last used", "size", *LISTED_PARTS), cells)


def _format_time(nanoseconds: int) -> str:
    """Local time to the minute; ``""`` for a time outside the calendar."""
    try:
        return strftime("%Y-%m-%d %H:%M", localtime(nanoseconds // 10**9))
    except (OSError, OverflowError, ValueError):
        return ""


def _shorten_digests(text: str) -> str:
    """The text with each digest cut to its first digits."""
    return _DIGEST.sub(r"\1…", text)


def _listed_cells(row: EntryRow) -> tuple[str, ...]:
    if row.fault:
        return (row.fault, *[""] * (len(LISTED_PARTS) - 1))
    parts = row.parts
    shown = parts | {"inputs": parts.get("model.inputs") or parts.get("workload", "")}
    return tuple(_shorten_digests(shown.get(name, "")) for name in LISTED_PARTS)


def _count_text(number: int) -> str:
    return f"{number} {'entry' if number == 1 else 'entries'}"


def run_why(request: ModelRequest, *, as_json: bool) -> int:
    """Prints whether the plan is stored and, if not, how its key differs from the nearest ones; returns 0 either way.

    The plan is not judged. A Python file is traced, since its key is that of the graph.
    """
    key = _key_of_request(request)
    folder = cache_folder()
    try:
        store.read_matching_entry(store.entry_path(folder, key))
        reason = ""
    except EntryRefused as error:
        reason = str(error.miss)
    nearest = nearest_entries(key, folder) if reason else ()
    digest = key.digest.hex()
    if as_json:
        parts = {part.name: part.text for part in key.parts}
        rows = [asdict(entry) for entry in nearest]
        print_json({"key": digest, "kept": not reason, "miss": reason, "parts": parts, "nearest": rows})
        return 0
    answer = f"not found: {digest[:KEY_DIGITS]}: {reason}" if reason else f"found: {digest[:KEY_DIGITS]}"
    render.print_lines(render.console(), [answer, *_nearest_lines(nearest)])
    return 0


def _key_of_request(request: ModelRequest) -> Key:
    if request.model.kind == "ir":
        graph = load_graph(request.model.path)
        return graph_key(graph, plan_of_graph(request, graph))
    key = file_key(request)
    if key is not None:
        return key
    with quiet(), progress_bar() as progress:
        progress("importing torch", 0)
        return key_of_traced_model(capture_request(request), request.plan, progress)


def nearest_entries(key: Key, folder: Path) -> tuple[NearEntry, ...]:
    """At most ``MAX_NEAREST`` intact entries, fewest differing parts first; of equals, the most recently used."""
    ranked: list[tuple[int, int, str, NearEntry]] = []
    for file in store.entries(folder):
        try:
            entry = store.read_matching_entry(file.path)
        except EntryRefused:
            continue
        parts = _differing_parts(key, entry.key)
        ranked.append((len(parts), -file.used_ns, file.key, NearEntry(key=file.key, parts=parts)))
    return tuple(entry for *_, entry in sorted(ranked, key=lambda row: row[:3])[:MAX_NEAREST])


def _differing_parts(key: Key, stored_key: Key) -> dict[str, tuple[str, str]]:
    """By name, the texts of the parts that differ."""
    parts = {part.name: part for part in key.parts}
    stored_parts = {part.name: part for part in stored_key.parts}
    names = key.differences(stored_key)
    return {name: _distinct_texts(parts.get(name), stored_parts.get(name)) for name in names}


def _distinct_texts(part: Part | None, stored_part: Part | None) -> tuple[str, str]:
    """The two texts, with the first digits of their digests where the texts are equal; ``""`` for no part."""
    (text, digest), (stored_text, stored_digest) = map(_text_and_digest, (part, stored_part))
    if text != stored_text:
        return text or digest, stored_text or stored_digest
    return f"{text} {digest}".strip(), f"{stored_text} {stored_digest}".strip()


def _text_and_digest(part: Part | None) -> tuple[str, str]:
    return (part.text, part.digest.hex()[:KEY_DIGITS]) if part else ("", "")


def _nearest_lines(nearest: Sequence[NearEntry]) -> Iterator[str]:
    for entry in nearest:
        count = len(entry.parts)
        yield ""
        yield f"{entry.key[:KEY_DIGITS]} differs in {count} part{'' if count == 1 else 's'}:"
        yield from align_columns(
            "<<<",
            ("part", "asked for", "kept"),
            [(name, *map(_shorten_digests, texts)) for name, texts in entry.parts.items()],
        )


def run_verify_cache(*, as_json: bool) -> int:
    """Reads and judges every entry, without a token; returns 3 if any cannot be served."""
    folder = _require_listable_folder()
    verdicts = [(file.key, fault) for file in store.entries(folder) if (fault := _entry_fault(file)) is not None]
    faults = {key: fault for key, fault in verdicts if fault}
    error = _unsound_error(folder, len(verdicts), len(faults)) if faults else None
    if as_json:
        print_json({"folder": str(folder), "entries": len(verdicts), "faults": faults})
    else:
        lines = [f"{key[:KEY_DIGITS]}: {fault}" for key, fault in faults.items()]
        render.print_lines(render.console(), lines or [f"sound: {_count_text(len(verdicts))} in {folder}"])
    return conclude(error)


def _entry_fault(file: EntryFile) -> str | None:
    """Why an entry cannot be served, ``""`` if it can; ``None`` if another process has removed it meanwhile."""
    try:
        judge(*open_entry(store.read_matching_entry(file.path)))
    except EntryRefused as error:
        return None if error.miss.reason is MissReason.ABSENT else str(error.miss)
    except TmmuError as error:
        return f"{MissReason.UNSOUND.value}: {error.what}"
    return ""


def _unsound_error(folder: Path, entries: int, faults: int) -> PlanCorrupt:
    message = f"{faults} of {_count_text(entries)} in {folder} cannot be served"
    return PlanCorrupt(
        message, fix="tmmu cache prune removes them; a plan that is asked for is made again", faults=faults
    )


def run_prune(*, everything: bool, limit: str | None, as_json: bool) -> int:
    """Removes what cannot be served, then evicts down to ``limit`` bytes; returns 2 if something cannot be removed."""
    room = MAX_FOLDER_BYTES if limit is None else parse_option("--limit", lambda: parse_size(limit))
    folder = _require_listable_folder()
    doomed = [file for file in store.entries(folder) if everything or _entry_fault(file)]
    removed = [file for file in doomed if not store.remove(file)]
    removed += store.evict(folder, limit=room)
    before = store.END_OF_TIME_NS if everything else time_ns() - store.UNFINISHED_AGE_NS
    unfinished = store.remove_unfinished(folder, before=before)
    kernels = evict_kernels(kernel_folder(), limit=0 if everything else MAX_BYTES, before=before)
    doomed += store.entries_over_limit(store.entries(folder), limit=room)
    doomed += store.unfinished_files(folder, before=before)
    # Whatever should be gone and is still there is tried once more, for the reason.
    stuck = {file.path.name: reason for file in doomed if (reason := store.remove(file))}
    remaining = store.entries(folder)
    error = _removal_error(folder, stuck) if stuck else None
    freed = sum(file.bytes for file in (*removed, *unfinished, *kernels))
    if as_json:
        counts = {
            "removed": len(removed),
            "unfinished": len(unfinished),
            "kept": len(remaining),
            "stuck": stuck,
            "kernels": len(kernels),
        }
        print_json({"folder": str(folder), **counts, "freed": freed, "bytes": sum(file.bytes for file in remaining)})
    else:
        counts_text = f"removed {_count_text(len(removed))}, {readable_size(freed)}; kept {_count_text(len(remaining))}"
        render.print_lines(render.console(), [f"{counts_text} in {folder}"])
    return conclude(error)


def _removal_error(folder: Path, stuck: Mapping[str, str]) -> InvalidConfig:
    name, reason = next(iter(stuck.items()))
    more = f", and {len(stuck) - 1} more" if len(stuck) > 1 else ""
    message = f"{folder / name} should go and cannot be removed: {reason}{more}"
    return InvalidConfig(message, fix="remove it by hand, or as who may")
