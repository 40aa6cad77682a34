"""What the programs of the GPU check have in common: their options, rows in time, and a table or a record of them."""

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from typing import Any, TypeVar

import torch

Case = TypeVar("Case")
Row = TypeVar("Row")


def parse_options(description: str | None, *, has_sizes: bool = True) -> argparse.Namespace | None:
    """``device``, ``json`` and ``small``; ``None``, with a line on stderr, where the device is not there."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    if has_sizes:
        parser.add_argument("--small", action="store_true", help="sizes for a test")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if options.device == "cuda" and not torch.cuda.is_available():
        print(f"no GPU: torch {torch.__version__} sees none; --device cpu runs the same rows there", file=sys.stderr)
        return None
    return options


def rows_in_time(
    cases: Iterable[Case], row_of: Callable[[Case], Row], left_out: Callable[[Case], Row], seconds: float
) -> Iterator[Row]:
    """A row of each case; of those that would begin after so many seconds, what says that they are ``left_out``."""
    begin = time.perf_counter()
    for case in cases:
        yield left_out(case) if time.perf_counter() - begin > seconds else row_of(case)


def print_rows(options: argparse.Namespace, rows: list[Any], lines: Iterable[str]) -> int:
    """Prints the card and the lines, or a record of the rows; 1 if a row has a fault."""
    if options.json:
        print(json.dumps({"card": card(options.device), "rows": [asdict(row) for row in rows]}))
    else:
        print(card(options.device), *lines, sep="\n")
    return int(any(row.fault for row in rows))


def card(device: str) -> str:
    """The card, or the CPU, and the versions."""
    if device == "cuda":
        return f"{torch.cuda.get_device_name()}, torch {torch.__version__}, CUDA {torch.version.cuda}"
    return f"CPU, {torch.get_num_threads()} threads, torch {torch.__version__}"
