"""Products of one row are cut by columns for all threads, with the bits of the whole; others are left alone."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from tests.runtime.harness import same_bits
from tmmu.ir.program import Call, ValueRef
from tmmu.runtime.kernels.code import Code, runnable_of
from tmmu.runtime.kernels.products import BYTES_PER_THREAD, COLUMN_MULTIPLE, row_product, row_product_added
from tmmu.runtime.steps.build import compile_step

aten = torch.ops.aten
pytestmark = pytest.mark.skipif(not torch.backends.mkl.is_available(), reason="other libraries cut by themselves")


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


def matrix(rows: int, columns: int, *, turned: bool, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    generator = torch.Generator().manual_seed(rows + columns)
    whole = torch.randn((columns, rows) if turned else (rows, columns), generator=generator, dtype=dtype)
    return whole.t() if turned else whole


def row(length: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(1, length, generator=torch.Generator().manual_seed(7), dtype=dtype)


def product_code(x: torch.Tensor, weight: torch.Tensor) -> Code | None:
    return row_product({"self": x, "mat2": weight}, torch.empty(x.shape[0], weight.shape[1], dtype=x.dtype))


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize(
    ("rows", "columns", "calls"), [(256, 768, 1), (300, 1000, 2), (1023, 1003, 2), (768, 50257, 2), (512, 385, 2)]
)
def test_cut_products_have_the_bits_of_the_whole(rows: int, columns: int, calls: int, turned: bool) -> None:
    x, weight, added = row(rows), matrix(rows, columns, turned=turned), row(columns)[0]
    for operator, code_of, arguments in (
        (aten.mm.default, row_product, {"self": x, "mat2": weight}),
        (aten.addmm.default, row_product_added, {"self": added, "mat1": x, "mat2": weight}),
        (aten.addmm.default, row_product_added, {"self": added, "mat1": x, "mat2": weight, "beta": 2, "alpha": 0.5}),
    ):
        scale: dict[str, Any] = {name: arguments[name] for name in ("beta", "alpha") if name in arguments}
        whole = operator(*(value for name, value in arguments.items() if name not in scale), **scale)
        view = torch.full_like(whole, float("nan"))
        code = code_of(arguments, view)
        assert code is not None
        assert len(code) == calls
        runnable_of(code)()
        assert same_bits(whole, view)


def test_product_parts_are_worth_a_kernel_and_a_thread() -> None:
    cut_count = 0
    for columns in range(64, 1100, 37):
        code = product_code(row(512), matrix(512, columns, turned=True))
        if code is not None:
            cut_count += 1
            count, _, width = code[0].args[1].shape
            remainder = columns - count * width
            assert width % COLUMN_MULTIPLE == 0
            assert remainder == 0 or remainder >= COLUMN_MULTIPLE
            assert 2 <= count <= min(3, 512 * columns * 4 // BYTES_PER_THREAD)
            assert width + remainder < columns
        else:
            assert columns < 3 * COLUMN_MULTIPLE
    assert cut_count > 20


def test_unsupported_products_are_left_to_the_library() -> None:
    wide = matrix(256, 1024, turned=False)
    assert product_code(row(256), wide) is not None
    assert product_code(row(256).expand(2, 256), wide) is None
    assert product_code(row(256).bfloat16(), wide.bfloat16()) is None
    assert product_code(row(512)[:, ::2], wide) is None
    assert product_code(row(256), matrix(256, 2048, turned=False)[:, ::2]) is None
    assert product_code(row(16), matrix(16, 64, turned=False)) is None
    assert product_code(row(256, torch.float64), wide.double()) is not None
    torch.set_num_threads(1)
    assert product_code(row(256), wide) is None


@pytest.mark.parametrize("operator", [aten.mm.default, aten.addmm.default])
def test_steps_of_one_row_are_cut_unless_there_is_one_thread(operator: Any) -> None:
    row_, weight, added, out = row(256), matrix(256, 768, turned=True), row(768)[0], torch.empty(1, 768)
    values = [out, row_, weight] if operator is aten.mm.default else [out, added, row_, weight]
    args = tuple(ValueRef(value) for value in range(1, len(values)))
    call = Call(operator=operator, args=args, kwargs=(), results=(0,))
    operators = [str(instr.operator) for instr in compile_step(call, values.__getitem__).code]
    assert operators == [f"aten.{'bmm' if operator is aten.mm.default else 'baddbmm'}.out"]
    torch.set_num_threads(1)
    assert [str(instr.operator) for instr in compile_step(call, values.__getitem__).code] == [
        str(operator).replace("default", "out")
    ]
