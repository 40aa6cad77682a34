"""Measures of names and sizes in a tree of Python files, with limits that CI holds the package to.

    python -m tools.names tmmu [--list]

Vague bindings are variables and parameters whose name says nothing of what they hold; a participle is a function
called by one word that is no verb (``placed``, ``walking``); a homonym is a public class name with two owners.
``--list`` prints every offender as ``file:line``. Exits 1 where a limit is passed.
"""

import argparse
import ast
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypeAlias

VAGUE: Final = frozenset(
    "one other found given kept made asked at said held known seen wanted where what how home homes rest mine here "
    "there near around inside outside".split()
)
PARTICIPLE: Final = re.compile(r"(ed|ing)$")
Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass
class Measures:
    """What was counted; ``offenders`` are lines to look at, by kind."""

    lines: int = 0
    comments: int = 0
    bindings: int = 0
    functions: int = 0
    lengths: list[int] = field(default_factory=list)
    classes: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    files: Counter[str] = field(default_factory=Counter)
    offenders: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))

    @property
    def homonyms(self) -> dict[str, list[str]]:
        """Public class names with more than one owner."""
        return {name: owners for name, owners in sorted(self.classes.items()) if len(owners) > 1}

    def shares(self) -> dict[str, float]:
        """In per cent: vague bindings, participles among functions, functions below 25 lines."""
        return {
            "vague": 100 * len(self.offenders["vague"]) / max(self.bindings, 1),
            "participles": 100 * len(self.offenders["participle"]) / max(self.functions, 1),
            "short": 100 * sum(length < 25 for length in self.lengths) / max(len(self.lengths), 1),
        }


def measure(root: Path) -> Measures:
    """The measures of all Python files below ``root``."""
    total = Measures()
    for path in sorted(root.rglob("*.py")):
        text = path.read_text()
        total.lines += text.count("\n")
        total.comments += sum(line.lstrip().startswith("#") for line in text.split("\n"))
        total.files[str(path.parent.relative_to(root))] += path.name != "__init__.py"
        for node in ast.walk(ast.parse(text)):
            _count(total, node, str(path))
    return total


def _count(total: Measures, node: ast.AST, path: str) -> None:
    for name in _bound(node):
        total.bindings += 1
        if name in VAGUE:
            total.offenders["vague"].append(f"{path}:{node.lineno}: {name}")  # type: ignore[attr-defined]
    if isinstance(node, Function):
        _count_function(total, node, path)
    if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
        total.classes[node.name].append(f"{path}:{node.lineno}")


def _bound(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        yield node.id
    elif isinstance(node, ast.arg):
        yield node.arg


def _count_function(total: Measures, node: Function, path: str) -> None:
    length = (node.end_lineno or node.lineno) - node.lineno + 1
    total.lengths.append(length)
    if length >= 25:
        total.offenders["long"].append(f"{path}:{node.lineno}: {node.name}, {length} lines")
    if node.name.startswith("__"):
        return
    total.functions += 1
    words = node.name.lstrip("_").split("_")
    if len(words) == 1 and (PARTICIPLE.search(words[0]) or words[0] in VAGUE):
        total.offenders["participle"].append(f"{path}:{node.lineno}: {node.name}")


def breaches(total: Measures) -> list[str]:
    """The limits that are passed, in words."""
    shares = total.shares()
    crowded = {folder: count for folder, count in total.files.items() if count > 16}
    limits = (
        (shares["vague"] <= 1.0, f"vague bindings {shares['vague']:.2f} %, not at most 1"),
        (shares["participles"] <= 2.0, f"participles as function names {shares['participles']:.2f} %, not at most 2"),
        (shares["short"] >= 95, f"functions below 25 lines {shares['short']:.1f} %, not at least 95"),
        (max(total.lengths, default=0) <= 60, f"a function of {max(total.lengths, default=0)} lines, not at most 60"),
        (not total.homonyms, f"classes of one name: {', '.join(total.homonyms)}"),
        (not crowded, f"folders of more than 16 files: {crowded}"),
    )
    return [words for holds, words in limits if not holds]


def main() -> int:
    """Print the measures; 1 where a limit is passed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("root", type=Path)
    parser.add_argument("--list", action="store_true", help="print every offender")
    options = parser.parse_args()
    total = measure(options.root)
    shares = total.shares()
    if options.list:
        for kind, places in total.offenders.items():
            print(*(f"{place} ({kind})" for place in places), sep="\n")
        for name, owners in total.homonyms.items():
            print(f"{name}: {' '.join(owners)}")
    print(
        f"lines {total.lines}, vague {shares['vague']:.2f} %, participles {shares['participles']:.2f} %, "
        f"below 25 lines {shares['short']:.1f} %, longest {max(total.lengths, default=0)}, "
        f"homonym classes {len(total.homonyms)}, comments {total.comments}"
    )
    failed = breaches(total)
    print(*failed, sep="\n", end="\n" if failed else "")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
