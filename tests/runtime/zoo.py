"""Modules of what is hard to run in place: factories, takeovers, odd strides, empty tensors, many results."""

import torch
from torch import nn


class Factories(nn.Module):
    """Operators that make a tensor without reading one."""

    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        n = x.shape[0]
        tensors = [
            torch.arange(n), torch.arange(1, n + 1, dtype=torch.int32), torch.arange(0.0, 1.0, 0.3),
            torch.full((2, n), 0.1), torch.full_like(x, -2.5), x.new_full((n,), 3),
            torch.zeros(n, dtype=torch.bool), torch.zeros_like(x),
            x.new_zeros(2, 2), torch.ones(3, dtype=torch.bfloat16), torch.ones_like(x), x.new_ones(n), torch.eye(n),
            torch.linspace(0, 1, n), torch.empty_like(x).fill_(4.0), torch.tensor([1.5, n]), torch.zeros(0, 3),
            torch.scalar_tensor(2.5),
        ]  # fmt: skip
        return [*tensors, tensors[0] + 1, tensors[3] * 2]


class Elementwise(nn.Module):
    """Chains that take over each other's bytes, over operators with and without ``out=``."""

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> list[torch.Tensor]:
        y = torch.exp(x).add(1).log().mul(x).sub(0.5)
        y = torch.where(mask, y, y.neg())
        y = y.masked_fill(mask, 0.25).clamp(-1, 1)
        y = torch.nn.functional.silu(torch.nn.functional.gelu(y * 3))
        z = torch.nn.functional.hardswish(y + 1).pow(2).rsqrt().clone()
        flip = mask.logical_not().masked_fill(mask, True).bitwise_and(mask.roll(1, 0))
        aten = torch.ops.aten
        y = aten.sub.Scalar(aten.add.Scalar(aten.mul.Scalar(aten.div.Scalar(y, 3), 2.5), 0.1, 2), 1, 0.5).relu()
        w = torch.nn.functional.leaky_relu(z.t() + 0).t().contiguous().sigmoid()
        return [y, z, flip, w, torch.lerp(w, w * 2, 0.3), torch.remainder(w * 7, 2.0), torch.float_power(w, 2)]


class Shapes(nn.Module):
    """Strides, casts, gathers, sorts, empty tensors, several results, a result that stands still along an axis."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(7, 4, padding_idx=0)
        self.table.weight.data[0] = 1.0

    def forward(self, x: torch.Tensor, ids: torch.Tensor) -> dict[str, object]:
        top = x.topk(2, -1)
        ordered = x.sort(-1, descending=True)
        y = x.index_put((ids[:, 0],), torch.ones(x.shape[1]), accumulate=True)
        return {
            "top": top, "sorted": ordered, "put": y, "rows": self.table(ids), "columns": self.table(ids.t()),
            "half": x.to(torch.float16).to(torch.float64), "int": x.mul(10).to(torch.int8), "cum": x.cumsum(0),
            "cat": torch.cat([x, x.t()[:, : x.shape[1]].reshape(-1, x.shape[1])], 0), "none": x[:0].exp(),
            "mean": x.mean(), "sum": x.sum(), "var": x.var(1), "max": x.max(1), "all": (x > -9).all(), "norm": x.norm(),
            "gather": x.gather(1, ids[:, :1]), "complex": torch.view_as_real(torch.fft.rfft(x)),
            "still": x[:1].expand(3, -1),
            "turned": x.t().contiguous() + x.t(), "stack": torch.stack([x, x + 1], -1), "argmax": x.argmax(-1),
            "pad": torch.nn.functional.pad(x, (1, 2)), "flip": x.flip(0), "triu": x.triu(), "prod": x.prod(0),
        }  # fmt: skip


class ChangesInput(nn.Module):
    """Changes its input in place, also through views, and returns it."""

    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        x.mul_(2)
        x[1:].add_(x[:1])
        return [x, x + 1]


class RandomOperators(nn.Module):
    """Random operators, with an ``out=`` and without."""

    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        drawn = torch.rand(3) + torch.randn(3)
        dropped = torch.nn.functional.dropout(x, 0.5, training=True)
        return [
            drawn,
            dropped,
            torch.rand_like(x),
            torch.randint(0, 9, (4,)),
            torch.bernoulli(x.sigmoid()),
            x.uniform_(0, 1),
        ]
