"""Products of one row and a matrix: the library's call beside ours, cut for all threads; time, and bits that differ.

    python -m benchmarks.products [--rounds 30] [--threads 2]

Each shape has as many matrices as make 40 MB, taken in turn, so that a cache holds none of them for long; `read` is the
sum of their numbers, which is how fast all threads read. The last line counts shapes at odd widths, cut for 2 to 16
threads, whose bits are not the library's.
"""

import argparse
from collections.abc import Iterator
from functools import partial
from itertools import product as pairs
from typing import Any, Final

import torch

from benchmarks.run import Step, step_times
from tmmu.runtime.kernels.code import Code, instruction
from tmmu.runtime.kernels.products import row_product, row_product_added
from tmmu.runtime.steps.interpreter import build_function

SHAPES: Final = ((256, 256), (256, 1024), (1024, 256), (768, 768), (768, 3072), (3072, 768), (768, 50257))
TOTAL_BYTES: Final = 40_000_000
aten = torch.ops.aten


def matrices(rows: int, columns: int, *, turned: bool) -> list[torch.Tensor]:
    """Stored by rows, or, ``turned``, by columns, as ``nn.Linear`` stores them."""
    count = max(1, TOTAL_BYTES // (4 * rows * columns))
    shape = (columns, rows) if turned else (rows, columns)
    return [torch.randn(shape).t() if turned else torch.randn(shape) for _ in range(count)]


def steps_of(rows: int, columns: int, *, turned: bool) -> tuple[dict[str, Step], int]:
    """(steps to time by name, bytes that each reads)."""
    row, out = torch.randn(1, rows), torch.empty(1, columns)
    weights = matrices(rows, columns, turned=turned)
    library, ours = [], []
    for weight in weights:
        whole = instruction(aten.mm.out, row, weight, out=out)
        library.append(whole)
        ours += row_product({"self": row, "mat2": weight}, out) or (whole,)
    steps = {"library": _run(tuple(library)), "tmmu": _run(tuple(ours)), "read": partial(_read, weights)}
    return steps, sum(weight.nbytes for weight in weights)


def _run(code: Code) -> Step:
    run = build_function(code)
    if run is None:
        raise SystemExit("torch's interpreter does not take products")
    return run


def _read(weights: list[torch.Tensor]) -> None:
    for weight in weights:
        weight.sum()


def count_differences() -> tuple[int, int]:
    """(cut products whose bits are not the library's, cut products)."""
    differ = cut = 0
    for rows, columns, turned, threads in pairs(
        (64, 300, 768, 1023), (256, 1000, 1003, 5003), (False, True), (2, 3, 7, 16)
    ):
        torch.set_num_threads(threads)
        for code, whole, view in _products(rows, columns, turned=turned):
            if code is not None:
                _run(code)()
                cut += 1
                differ += not torch.equal(whole.view(torch.int32), view.view(torch.int32))
    return differ, cut


def _products(rows: int, columns: int, *, turned: bool) -> Iterator[tuple[Code | None, torch.Tensor, torch.Tensor]]:
    row, added, weight = torch.randn(1, rows), torch.randn(columns), matrices(rows, columns, turned=turned)[0]
    view = torch.empty(1, columns)
    yield row_product({"self": row, "mat2": weight}, view), torch.mm(row, weight), view
    arguments: dict[str, Any] = {"self": added, "mat1": row, "mat2": weight}
    yield row_product_added(arguments, view), torch.addmm(added, row, weight), view


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    print(f"torch {torch.__version__}, {options.threads} threads")
    print(f"{'rows x columns':18}{'stored by':>12}{'library':>14}{'tmmu':>14}{'read':>14}   library/tmmu")
    for (rows, columns), turned in pairs(SHAPES, (False, True)):
        steps, read_bytes = steps_of(rows, columns, turned=turned)
        times = step_times(steps, options.rounds, lambda: None)
        rates = "".join(f"{read_bytes / milliseconds / 1e6:9.1f} GB/s" for milliseconds in times.values())
        order = "columns" if turned else "rows"
        print(f"{f'{rows} x {columns}':18}{order:>12}{rates}{times['library'] / times['tmmu']:12.2f}", flush=True)
    differ, cut = count_differences()
    torch.set_num_threads(options.threads)
    print(f"{differ} of {cut} products that were cut have other bits")


if __name__ == "__main__":
    main()
