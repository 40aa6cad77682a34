"""A group's formula, as Inductor is given it, beside its members."""

from typing import Any

import pytest
import torch
from torch import nn

from tests.unit.fusion.programs import Cache, Net, cache_inputs, find_regions, net_inputs, program_of
from tmmu.fusion.functional_form import argument_tensors, functional_form
from tmmu.fusion.group import FusionGroup, run_members
from tmmu.fusion.window_views import memory_order
from tmmu.runtime.steps.fused_trial import is_near


class Attended(nn.Module):
    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor) -> Any:
        kernel = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
        return kernel(q, k, v, attn_mask=mask, scale=0.3)


class Updated(nn.Module):
    """What is changed through another shape, filled, copied and written by place."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("a", torch.zeros(4, 8))
        self.register_buffer("b", torch.zeros(4, 8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.a.mul_(0.5).add_(x, alpha=2).lerp_(x, 0.25)
        self.b.copy_(x[0]).masked_fill_(x > 0, 3.0)
        return torch.bmm(self.a[:1, None], self.b.t()[None])


def both(group: FusionGroup, tensors: list[torch.Tensor]) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """(formula's, members') of each result in the order of memory, then of each changed tensor."""
    copies, split = [tensor.clone() for tensor in tensors], len(group.reads)
    expected = run_members(group, copies[:split], copies[split:])
    results = functional_form(group)(*tensors)
    windows = [group.bases[base].result for base in group.results]
    rows = [
        (result, right.permute(memory_order(window.shape, window.stride)).contiguous())
        for result, right, window in zip(results, expected, windows, strict=True)
    ]
    return [*rows, *zip(tensors[split:], copies[split:], strict=True)]


@pytest.mark.parametrize(
    ("make", "inputs"),
    [(Net, net_inputs()), (Net, net_inputs(rows=1)), (Cache, cache_inputs()), (Updated, {"x": torch.randn(4, 8)})],
)
def test_formulas_are_near_their_members(make: Any, inputs: dict[str, torch.Tensor]) -> None:
    torch.manual_seed(0)
    for region in find_regions(program_of(make, inputs)):
        tensors = list(argument_tensors(region.group, torch.empty_strided))
        for tensor in tensors:
            tensor.copy_(torch.randn(tensor.shape) if tensor.is_floating_point() else torch.ones(tensor.shape))
        rows = both(region.group, tensors)
        assert rows
        assert all(is_near(result, expected) for result, expected in rows)


@pytest.mark.parametrize("open_keys", [0, 1, 5])
def test_attention_of_rows_with_few_keys_or_none_is_the_kernel_s(open_keys: int) -> None:
    torch.manual_seed(0)
    mask = torch.full((1, 1, 2, 5), -torch.inf)
    mask[..., :open_keys] = 0
    q, k, v = torch.randn(1, 2, 2, 8), torch.randn(1, 2, 5, 8), torch.randn(1, 2, 5, 8)
    inputs = {"q": q, "k": k, "v": v, "mask": mask}
    (region,) = find_regions(program_of(Attended, inputs))
    result, sums = both(region.group, [q, k, v, mask])
    assert is_near(*result)
    assert is_near(*sums, scale=1.0)
