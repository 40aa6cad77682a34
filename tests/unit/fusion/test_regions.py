"""Which ops become one: by windows and operators alone."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from tests.unit.fusion.programs import Cache, Net, cache_inputs, find_regions, net_inputs, program_of
from tmmu.fusion.group import CHANGED, MADE, FusionGroup
from tmmu.fusion.operator_kinds import ATTENTION, KINDS, PRODUCT, kind_of
from tmmu.fusion.regions import Region, RegionFinder
from tmmu.ir.program import Program


def names(program: Program, regions: tuple[Region, ...]) -> list[list[str]]:
    return [[program.graph.ops.target[op].split(".")[1] for op in range(r.first, r.last)] for r in regions]


class Lambda(nn.Module):
    def __init__(self, function: object) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> object:
        return self.function(x)  # type: ignore[operator]


def regions_of(function: object, x: torch.Tensor) -> tuple[Program, tuple[Region, ...]]:
    program = program_of(lambda: Lambda(function), {"x": x})
    return program, find_regions(program)


def test_products_of_many_rows_end_a_region() -> None:
    program = program_of(Net, net_inputs())
    assert names(program, find_regions(program)) == [["gelu"], ["add", "native_layer_norm", "mul", "_softmax"]]


def test_a_product_of_one_row_begins_a_region_and_never_reads_a_formula() -> None:
    program = program_of(Net, net_inputs(rows=1))
    assert names(program, find_regions(program)) == [
        ["addmm", "gelu"],
        ["addmm", "add", "native_layer_norm", "mul", "_softmax"],
    ]


def test_what_is_changed_in_place_is_a_base_of_its_own() -> None:
    program = program_of(Cache, cache_inputs())
    regions = find_regions(program)
    first = regions[0]
    assert [program.graph.buffers.role[program.graph.values.buffer[v]] for v in first.changed] == ["state", "state"]
    assert len(first.group.of_kind(CHANGED)) == 2
    assert sum(len(group) for group in names(program, regions)) == len(program.graph.ops)


def test_equal_layers_are_equal_groups() -> None:
    program = program_of(lambda: nn.Sequential(*(Net() for _ in range(3))), {"input": torch.randn(4, 16)})
    digests = [region.group.digest for region in find_regions(program)]
    assert len(digests) == 6
    assert len(set(digests)) == 2


def test_a_group_says_nothing_of_where_it_stands() -> None:
    here = find_regions(program_of(Net, net_inputs()))[0].group
    there = find_regions(program_of(lambda: nn.Sequential(nn.Linear(16, 16), Net()), {"input": torch.randn(4, 16)}))
    assert here.text in {region.group.text for region in there}


@pytest.mark.parametrize(
    "change",
    [
        lambda group: replace(group, bases=(replace(group.bases[0], kind=MADE), *group.bases[1:])),
        lambda group: replace(group, members=group.members[:-1]),
        lambda group: replace(group, members=(replace(group.members[0], args=()), *group.members[1:])),
    ],
)
def test_another_group_has_another_digest(change: object) -> None:
    group = find_regions(program_of(Net, net_inputs()))[1].group
    changed: FusionGroup = change(group)  # type: ignore[operator]
    assert changed.digest != group.digest


def test_windows_are_in_the_digest() -> None:
    wide, narrow = (find_regions(program_of(Net, net_inputs(rows=rows)))[0].group for rows in (4, 5))
    assert wide.digest != narrow.digest


def test_what_nobody_reads_afterwards_is_inside() -> None:
    _, regions = regions_of(lambda x: (x * 2 + 1).exp(), torch.randn(4, 4))
    (region,) = regions
    assert (len(region.group.members), len(region.results), region.group.inner_bytes) == (3, 1, 2 * 64)


def test_what_is_read_afterwards_is_a_result() -> None:
    program, (region,) = regions_of(lambda x: ((y := x * 2), y + 1), torch.randn(4, 4))
    assert [program.graph.values.buffer[v] for v in region.results] == [
        program.graph.values.buffer[v] for v in program.graph.outputs
    ]


def test_operators_without_a_row_are_in_no_region() -> None:
    program, regions = regions_of(lambda x: torch.cumsum(x * 2, 0) + 1, torch.randn(4, 4))
    assert names(program, regions) == [["mul"], ["add"]]


def test_random_and_complex_numbers_are_in_no_region() -> None:
    _, drawn = regions_of(torch.rand_like, torch.randn(4, 4))
    _, turned = regions_of(lambda x: x * 2, torch.randn(4, 4, dtype=torch.complex64))
    assert (drawn, turned) == ((), ())


def test_large_ops_that_share_nothing_are_apart() -> None:
    large = torch.randn(256, 256)
    program = program_of(Two, {"x": large, "y": large})
    regions = find_regions(program)
    assert regions == ()


class Two(nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x * 2, y * 3


def test_a_region_does_not_end_with_room_for_the_next() -> None:
    def attend(x: torch.Tensor) -> torch.Tensor:
        rows, matrices = x[:, None] * 2, x[:, :, None] * torch.ones(4, 4, 4)
        scores = x.new_empty(4, 1, 4)
        torch.bmm(rows, matrices, out=scores)
        return scores

    program, regions = regions_of(attend, torch.randn(4, 4))
    assert [group for group in names(program, regions) if "bmm" in group] == [["new_empty", "bmm"]]


def calls_replaced(program: Program, op: int, **changes: object) -> Program:
    call = replace(program.calls[op], **changes)  # type: ignore[arg-type]
    return replace(program, calls=(*program.calls[:op], call, *program.calls[op + 1 :]))


def test_numbers_that_vary_and_other_switches_are_not_in_one_kernel() -> None:
    program, (region,) = regions_of(lambda x: ((x * 2).exp() + 1).tanh(), torch.randn(4, 4))
    assert (region.first, region.last) == (0, 4)
    varying = find_regions(calls_replaced(program, 1, numbers_vary=True))
    assert [(each.first, each.last) for each in varying] == [(0, 1), (2, 4)]
    switched = find_regions(calls_replaced(program, 2, switches=(("deterministic", True),)))
    assert [(each.first, each.last) for each in switched] == [(0, 2), (2, 3), (3, 4)]


@pytest.mark.parametrize(("rows", "is_fused"), [(1, True), (4, True), (5, False)])
def test_attention_of_few_rows_is_a_member(rows: int, is_fused: bool) -> None:
    attention = nn.functional.scaled_dot_product_attention
    keys = torch.ones(1, 2, 8, 16)
    program, regions = regions_of(lambda q: attention(q, keys, keys), torch.randn(1, 2, rows, 16))
    assert any("attention" in name for group in names(program, regions) for name in group) == is_fused


def test_halves_of_a_region_are_regions() -> None:
    program, (region,) = regions_of(lambda x: ((x * 2 + 1).exp() * 3).tanh(), torch.randn(4, 4))
    first, second = RegionFinder(program).halves(region)
    assert (first.first, first.last, second.first, second.last) == (region.first, 2, 2, region.last)
    assert second.reads == first.results


def test_on_a_gpu_products_and_attention_are_in_no_region() -> None:
    program = program_of(Cache, cache_inputs())
    on_gpu = replace(program, graph=replace(program.graph, target="cuda"))
    kinds = [
        {kind_of(member.operator) for region in find_regions(each) for member in region.group.members}
        for each in (program, on_gpu)
    ]
    assert kinds[0] - kinds[1] == {PRODUCT, ATTENTION}
    assert kinds[1]


def test_every_kind_is_of_an_operator_that_torch_has() -> None:
    for name in KINDS:
        _, packet, overload = name.split(".")
        assert hasattr(getattr(torch.ops.aten, packet), overload), name
