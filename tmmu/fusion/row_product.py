"""A row times a large matrix that lies by rows, as GPT-2's do: the one kernel whose text is ours.

Inductor's goes down the columns, one vector of each row and the next one a page further on. This one has the sums of
256 bytes of columns in registers, and goes down four quarters of the rows side by side. It wants no scratch, and a sum
is the same for each number of threads. Cost: each element of the matrix is read once.
"""

from dataclasses import dataclass
from string import Template
from typing import Final

from tmmu.fusion.group import FusionGroup, TensorRef
from tmmu.fusion.window_views import Strided

OPERATORS: Final = ("aten.mm.default", "aten.addmm.default")
MIN_ELEMENTS: Final = 1 << 15
"""Of a matrix: a smaller one is in a cache, and is better a member among others."""
BLOCK_BYTES: Final = 256
"""Of a row, whose sums are in registers: eight vectors of AVX2."""
QUARTERS: Final = 4
"""Stretches of rows that are read side by side."""
_TYPES: Final = {"float32": ("float", 4), "float64": ("double", 8)}


@dataclass(frozen=True, slots=True, kw_only=True)
class RowProduct:
    """``dtype[1, rows]`` by ``dtype[rows, columns]``, whose rows are ``step`` elements apart, and a bias.

    ``bases``: of the row, the matrix and the bias.
    """

    rows: int
    columns: int
    step: int
    number: str
    itemsize: int
    bases: tuple[int, ...]

    @property
    def types(self) -> tuple[str, ...]:
        """Of the kernel's arguments: the bases, then the result."""
        return (*[f"const {self.number}*"] * len(self.bases), f"{self.number}*")

    def text(self, threads: int) -> str:
        """C++ of the kernel."""
        names = ("row", "matrix", "bias")[: len(self.bases)]
        has_bias = len(names) == 3
        return Template(_TEXT).substitute(
            ARGUMENTS=", ".join(f"const {self.number}* {name}" for name in names),
            NUMBER=self.number,
            PARALLEL=f"#pragma omp parallel for num_threads({threads}) schedule(static)" if threads > 1 else "",
            BEGIN="Numbers::loadu(bias + column)" if has_bias else "Numbers(0)",
            BEGIN_PART="Numbers::loadu(bias + column, count)" if has_bias else "Numbers(0)",
            ROWS=self.rows,
            COLUMNS=self.columns,
            STEP=self.step,
            BLOCK=BLOCK_BYTES // self.itemsize,
            QUARTERS=QUARTERS,
            QUARTER=self.rows // QUARTERS,
        )


_TEXT: Final = """#include <torch/csrc/inductor/cpp_prefix.h>
#include <ATen/cpu/vec/vec.h>
extern "C" void kernel($ARGUMENTS, $NUMBER* result) {
    using Numbers = at::vec::Vectorized<$NUMBER>;
    constexpr int64_t width = Numbers::size(), vectors = $BLOCK / width;
    $PARALLEL
    for (int64_t first = 0; first < $COLUMNS; first += $BLOCK) {
        if (first + $BLOCK <= $COLUMNS) {
            Numbers sums[vectors];
            for (int64_t j = 0; j < vectors; j++) {
                const int64_t column = first + j * width;
                sums[j] = $BEGIN;
            }
            const auto add_row = [&](int64_t place) {
                const Numbers factor(row[place]);
                const $NUMBER* from = matrix + place * ${STEP}LL + first;
                #pragma GCC unroll 16
                for (int64_t j = 0; j < vectors; j++)
                    sums[j] = at::vec::fmadd(factor, Numbers::loadu(from + j * width), sums[j]);
            };
            for (int64_t place = 0; place < $QUARTER; place++)
                for (int64_t part = 0; part < $QUARTERS; part++) add_row(place + part * $QUARTER);
            for (int64_t place = $QUARTERS * $QUARTER; place < $ROWS; place++) add_row(place);
            for (int64_t j = 0; j < vectors; j++) sums[j].store(result + first + j * width);
        } else {
            for (int64_t column = first; column < $COLUMNS; column += width) {
                const int64_t count = std::min<int64_t>(width, $COLUMNS - column);
                auto sum = $BEGIN_PART;
                for (int64_t place = 0; place < $ROWS; place++) {
                    const $NUMBER* from = matrix + place * ${STEP}LL + column;
                    const auto numbers = count == width ? Numbers::loadu(from) : Numbers::loadu(from, count);
                    sum = at::vec::fmadd(Numbers(row[place]), numbers, sum);
                }
                sum.store(result + column, count);
            }
        }
    }
}
"""


def is_row_product(operator: object, row: Strided, matrix: Strided, bias: Strided | None) -> bool:
    """Whether a call of these windows has a kernel of ours."""
    if str(operator) not in OPERATORS or matrix.dtype not in _TYPES or len(matrix.shape) != 2:
        return False
    rows, columns = matrix.shape
    lies_by_rows = matrix.stride[1] == 1 and matrix.stride[0] >= columns
    is_large = rows >= QUARTERS and rows * columns >= MIN_ELEMENTS
    is_plain = row.shape == (1, rows) and row.stride[1] == 1 and (bias is None or _is_plain_bias(bias, columns))
    return lies_by_rows and is_large and is_plain


def _is_plain_bias(bias: Strided, columns: int) -> bool:
    return bias.shape[-1:] == (columns,) and bias.stride[-1] == 1 and all(n == 1 for n in bias.shape[:-1])


def row_product_of(group: FusionGroup) -> RowProduct | None:
    """The product that a group is and nothing else; ``None`` for all other groups."""
    if len(group.members) != 1 or len(group.results) != 1 or group.changed:
        return None
    (member,) = group.members
    refs = [argument for argument in member.args if isinstance(argument, TensorRef)]
    if str(member.operator) not in OPERATORS or member.kwargs or len(refs) != len(member.args):
        return None
    *bias, row, matrix = refs
    windows = [group.bases[ref.base].window for ref in refs]
    is_whole = all(ref.window == window for ref, window in zip(refs, windows, strict=True))
    if not is_whole or not is_row_product(member.operator, row.window, matrix.window, bias[0].window if bias else None):
        return None
    rows, columns = matrix.window.shape
    return RowProduct(
        rows=rows,
        columns=columns,
        step=matrix.window.stride[0],
        number=_TYPES[matrix.window.dtype][0],
        itemsize=_TYPES[matrix.window.dtype][1],
        bases=(row.base, matrix.base, *(ref.base for ref in bias)),
    )
