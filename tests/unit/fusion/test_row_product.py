"""A row times a matrix that lies by rows: which products have the kernel of ours, and what that computes."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from tests.compiler import needs_compiler
from tests.unit.fusion.programs import find_regions, program_of
from tmmu import torch_private
from tmmu.fusion.call_form import KernelForm
from tmmu.fusion.fused_operators import fused_operator
from tmmu.fusion.group import FusionGroup, run_members
from tmmu.fusion.kernel_library import load_kernels
from tmmu.fusion.kernel_source import generate_kernel
from tmmu.fusion.row_product import row_product_of
from tmmu.runtime.kernels.kernel_calls import run_operator
from tmmu.runtime.steps.fused_trial import is_near

BY_ROWS = {"rows": 256, "columns": 160}


class Product(nn.Module):
    """A row by a slice of a matrix, with or without a bias."""

    def __init__(self, rows: int, columns: int, step: int = 0, *, bias: bool = False, by_columns: bool = False) -> None:
        super().__init__()
        shape = (columns, rows) if by_columns else (rows, max(step, columns))
        self.matrix = nn.Parameter(torch.randn(shape))
        self.bias = nn.Parameter(torch.randn(columns)) if bias else None
        self.columns, self.by_columns = columns, by_columns

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        matrix = self.matrix.t() if self.by_columns else self.matrix[:, : self.columns]
        y = torch.mm(x, matrix) if self.bias is None else torch.addmm(self.bias, x, matrix)
        return torch.tanh(y) + 1


def groups_of(make: Callable[[], nn.Module], dtype: torch.dtype = torch.float32, rows: int = 256) -> list[FusionGroup]:
    program = program_of(lambda: make().to(dtype), {"x": torch.randn(1, rows, dtype=dtype)})
    return [region.group for region in find_regions(program)]


def test_it_is_a_group_of_its_own_and_wants_no_scratch() -> None:
    product, rest = groups_of(lambda: Product(**BY_ROWS))
    assert [len(group.members) for group in (product, rest)] == [1, 2]
    forms = {generate_kernel(product, for_plan=planned).form for planned in (True, False)}
    assert forms == {KernelForm(pointers=(("read", 0), ("read", 1), ("result", 0)), scratch=())}


@pytest.mark.parametrize(
    "make",
    [
        lambda: Product(256, 160, by_columns=True),
        lambda: Product(256, 100),
        lambda: Product(256, 160).to(torch.bfloat16),
    ],
)
def test_other_products_are_members_among_others(make: Callable[[], Product]) -> None:
    groups = groups_of(make, make().matrix.dtype)
    assert [row_product_of(group) for group in groups] == [None]
    assert len(groups[0].members) == 3


@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize(("threads", "has_vectors"), [(1, True), (3, True), (1, False)])
def test_it_computes_what_the_product_does(
    threads: int, has_vectors: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    if not has_vectors:
        none = torch_private.cpu_vec_isa.invalid_vec_isa
        for owner in (torch_private.cpu_vec_isa, torch_private.inductor_codecache):
            monkeypatch.setattr(owner, "pick_vec_isa", lambda: none)
    shapes = [(256, 160, 0), (259, 150, 0), (40, 1000, 1010), (4, 8195, 0), (2000, 17, 0)]
    groups = [
        groups_of(lambda: Product(rows, columns, step, bias=bias), dtype, rows)[0]  # noqa: B023 - called at once
        for rows, columns, step in shapes
        for bias in (False, True)
        for dtype in (torch.float32, torch.float64)
    ]
    assert all(row_product_of(group) for group in groups)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        forms = {group.name: generate_kernel(group, for_plan=True).form for group in groups}
        kernels, _ = load_kernels(groups, forms, tmp_path)
    finally:
        torch.set_num_threads(before)
    for group in groups:
        bases = [group.bases[base].window for base in group.reads]
        reads = [
            torch.empty_strided(base.shape, base.stride, dtype=getattr(torch, base.dtype)).normal_() for base in bases
        ]
        (expected,) = run_members(group, reads, [])
        result, canary = torch.full((2, expected.numel()), 7.0, dtype=expected.dtype)
        kernel = kernels[str(fused_operator(group))]
        arguments = {"read": reads, "result": [result]}
        run_operator()(kernel.address, [arguments[kind][place] for kind, place in kernel.pointers])
        assert is_near(result.view(1, -1), expected)
        assert canary.eq(7).all()
