"""Runs torch's operator database through tmmu, beside eager, and prints what came of every sample.

    python -m benchmarks.opdb [--only NAME] [--dtype float32] [--samples 2] [--shard 3/8] [--resume FILE] [--jobs 1]

Routes of a sample: ``plan`` (captured, planned, judged, bound and run twice), ``backward`` (the same with gradients,
where autograd supports the dtype), ``compile`` (``torch.compile(backend="tmmu")``, gradients included). Compared are
shape, strides, dtype and every byte of results, gradients and changed arguments.

Outcomes: ``equal``; ``refused`` with a code of docs/spec/errors.md; ``by torch`` (a compiled graph that runs without a
plan, equal); ``no graph`` (Dynamo makes none, equal); ``eager differs`` from itself and ``eager raises``, where nothing
is compared. ``other bits``, ``exception``, ``crash`` and ``hang`` are faults, excused only where ``aot_eager`` has the
very same, or eager itself: for ``backward`` while a dispatch mode watches it, since some formulas of gradients look;
for ``compile`` where ``copy_`` writes what an operator changes in place. Faults without an excuse are listed, and the
program exits with 1.

``--resume FILE`` appends a JSON line for each pair of operator and dtype that is done, and leaves out those that the
file has for as many samples. The database needs the package ``expecttest``.
"""

import argparse
import json
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from benchmarks.operators.pool import Pair, Rows, all_pairs, run_pairs

FAULTS: Final = ("other bits", "exception", "crash", "hang")
OUTCOMES: Final = ("equal", "by torch", "no graph", "refused", "eager differs", "eager raises", "excused", *FAULTS)
ROUTES: Final = ("plan", "backward", "compile", "eager", "train", "samples", "")
Table = Mapping[Pair, Rows]


def main() -> int:
    options = _options()
    pairs = [pair for pair in all_pairs() if _is_asked(pair, options)]
    index, count = options.shard
    pairs = pairs[index - 1 :: count]
    table = run(pairs, samples=options.samples, seconds=options.seconds, jobs=options.jobs, resume=options.resume)
    print("\n".join(summary(table, reasons=options.reasons)))
    return 1 if list(unexcused(table)) else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="this operator, with all its variants (NAME, or NAME:VARIANT)")
    parser.add_argument("--dtype", default="", help="this dtype alone")
    parser.add_argument("--samples", type=int, default=4, metavar="N", help="samples of an operator and dtype (4)")
    parser.add_argument("--shard", type=shard, default=(1, 1), metavar="I/N", help="each Nth pair, from the Ith")
    parser.add_argument("--resume", type=Path, metavar="FILE", help="keep what is done in FILE, and go on from there")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="processes (1)")
    parser.add_argument("--seconds", type=float, default=120, metavar="S", help="longest time for one pair (120)")
    parser.add_argument("--reasons", action="store_true", help="also list refusals, by reason")
    return parser.parse_args()


def shard(text: str) -> tuple[int, int]:
    """``3/8`` as (3, 8)."""
    index, _, count = text.partition("/")
    if not (index.isdigit() and count.isdigit() and 1 <= int(index) <= int(count)):
        raise argparse.ArgumentTypeError(f"{text!r} is not I/N with 1 <= I <= N")
    return int(index), int(count)


def _is_asked(pair: Pair, options: argparse.Namespace) -> bool:
    name, dtype = pair
    return options.only in ("", name, name.partition(":")[0]) and options.dtype in ("", dtype)


def run(
    pairs: Sequence[Pair], *, samples: int, seconds: float = 120, jobs: int = 1, resume: Path | None = None
) -> dict[Pair, Rows]:
    """The rows of these pairs, those that ``resume`` has included."""
    done = {pair: rows for pair, rows in _kept(resume, samples).items() if pair in set(pairs)}

    def report(pair: Pair, rows: Rows) -> None:
        done[pair] = rows
        if resume is not None:
            record = {"operator": pair[0], "dtype": pair[1], "samples": samples, "rows": rows}
            with resume.open("a", encoding="utf-8") as file:
                file.write(json.dumps(record) + "\n")

    missing = [pair for pair in pairs if pair not in done]
    run_pairs(missing, samples=samples, seconds=seconds, jobs=jobs, report=report)
    return {pair: done[pair] for pair in pairs}


def _kept(resume: Path | None, samples: int) -> dict[Pair, Rows]:
    """What the file has for as many samples. A last line that was cut off is left out, and ended."""
    if resume is None or not resume.is_file():
        return {}
    kept: dict[Pair, Rows] = {}
    text = resume.read_text(encoding="utf-8")
    if text and not text.endswith("\n"):
        text = text[: text.rfind("\n") + 1]
        resume.write_text(text, encoding="utf-8")
    for record in map(json.loads, text.splitlines()):
        if record["samples"] == samples:
            kept[record["operator"], record["dtype"]] = record["rows"]
    return kept


def unexcused(table: Table) -> Iterator[tuple[Pair, Mapping[str, str]]]:
    """The rows that are faults of tmmu."""
    for pair, rows in table.items():
        for row in rows:
            if row["outcome"] in FAULTS and not row["excuse"]:
                yield pair, row


def summary(table: Table, *, reasons: bool = False) -> Iterator[str]:
    """Counts of each outcome by route, then a line for each fault; on demand what was refused, most frequent first."""
    counts: Counter[tuple[str, str]] = Counter()
    for rows in table.values():
        counts.update((row["route"], "excused" if row["excuse"] else row["outcome"]) for row in rows)
    routes = [route for route in ROUTES if any(counts[route, outcome] for outcome in OUTCOMES)]
    operators = len({name for name, _ in table})
    yield f"{operators} operators, {len(table)} pairs with a dtype, {counts.total()} runs"
    yield f"{'outcome':14}" + "".join(f"{route or 'process':>10}" for route in routes)
    for outcome in OUTCOMES:
        if any(counts[route, outcome] for route in routes):
            yield f"{outcome:14}" + "".join(f"{counts[route, outcome]:10}" for route in routes)
    for (name, dtype), row in unexcused(table):
        yield f"{name} {dtype} sample {row['sample']} {row['route']}: {row['outcome']}: {row['reason'][:240]}"
    if reasons:
        yield from _reasons(table)


def _reasons(table: Table) -> Iterator[str]:
    found: defaultdict[tuple[str, str, str], list[str]] = defaultdict(list)
    for (name, _), rows in table.items():
        for row in rows:
            if row["reason"] and not (row["outcome"] in FAULTS and not row["excuse"]):
                found[row["route"], row["excuse"] or row["outcome"], row["reason"][:160]].append(name)
    for (route, outcome, reason), names in sorted(found.items(), key=lambda item: (-len(item[1]), item[0])):
        shown = ", ".join(sorted(set(names))[:4])
        yield f"{len(names):5} {route} {outcome}: {reason} [{shown}]"


if __name__ == "__main__":
    sys.exit(main())
