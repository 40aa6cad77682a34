"""Layers that eager runs as one kernel in evaluation are traced in parts, and refused where bits are promised."""

import pytest
import torch
from torch import nn

import tmmu


class Attending(nn.Module):
    def __init__(self, *, batch_first: bool) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(16, 2, batch_first=batch_first)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.attention(x, x, x, need_weights=False)[0]


FUSED = {
    "encoder layer": lambda: nn.TransformerEncoderLayer(16, 2, 32, batch_first=True),
    "encoder": lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), 2),
    "attention": lambda: Attending(batch_first=True),
}


@pytest.mark.parametrize("name", FUSED)
def test_kernel_that_is_traced_in_parts_is_refused_with_what_turns_it_off(name: str) -> None:
    model, x = FUSED[name]().eval(), torch.randn(2, 4, 16)
    with pytest.raises(tmmu.TmmuError, match="runs as one kernel in evaluation") as raised:
        tmmu.compile(model, x)
    assert raised.value.fix.startswith("torch.backends.mha.set_fastpath_enabled(False)")
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        compiled = tmmu.compile(model, x)
        with torch.no_grad():
            assert torch.equal(compiled(x), model(x))
    finally:
        torch.backends.mha.set_fastpath_enabled(True)


def test_layer_that_has_no_kernel_runs_in_its_plan() -> None:
    model, x = Attending(batch_first=False).eval(), torch.randn(2, 4, 16)
    compiled = tmmu.compile(model, x)
    with torch.no_grad():
        assert torch.equal(compiled(x), model(x))
