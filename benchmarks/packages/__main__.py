"""Models of twelve packages, unmodified: bytes planned beside bytes seen in a real run, in a plan that runs.

    make packages    (an environment with the packages, then python -m benchmarks.packages)
    python -m benchmarks.packages [MODEL ...]

Planned is what the plan's stack holds at its fullest op, packed what it takes where results may take over an argument's
bytes, at an alignment of 64; seen is what an interceptor below autograd counts while the model runs on real tensors
(``interceptor.py``). Exits with 1 where planned and seen differ, or where a model is refused that has a plan.
"""

import argparse
import sys

import torch

from benchmarks.packages.rows import MODES, REFUSED, Row, models, row_of


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", choices=[*models(), []], metavar="MODEL", help="these alone")
    options = parser.parse_args()
    print(f"torch {torch.__version__}, cpu\n{'model':24} {'mode':10}{'planned':>13}{'seen':>13}{'packed':>13}")
    rows = []
    for model in options.models or models():
        for mode in MODES:
            rows.append(row_of(model, mode))
            print(line(rows[-1]), flush=True)
    wrong = [row for row in rows if not row.is_right]
    print(f"{sum(row.is_equal for row in rows)} equal, {sum(bool(row.refused) for row in rows)} refused "
          f"({len(REFUSED)} for a reason), {len(wrong)} wrong")  # fmt: skip
    return 1 if wrong else 0


def line(row: Row) -> str:
    if row.refused:
        return f"{row.model:24} {row.mode:10}{row.refused[:120]}"
    return f"{row.model:24} {row.mode:10}{row.planned:13,}{row.seen:13,}{row.packed:13,}"


if __name__ == "__main__":
    sys.exit(main())
