"""ConvNeXt-T on images of 224 x 224."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - the name everyone uses

STAGES = ((96, 3), (192, 3), (384, 9), (768, 3))


class ChannelNorm(nn.Module):
    """A layer norm over the channels of images."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(channels, eps=1e-6)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class Block(nn.Module):
    """A wide depthwise convolution, a norm and an MLP over channels, scaled, beside a residual."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(channels, channels, 7, 1, 3, groups=channels)
        self.norm = nn.LayerNorm(channels, eps=1e-6)
        self.up, self.down = nn.Linear(channels, 4 * channels), nn.Linear(4 * channels, channels)
        self.scale = nn.Parameter(torch.ones(channels) * 1e-6)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.depthwise(x).permute(0, 2, 3, 1))
        return x + (self.scale * self.down(F.gelu(self.up(y)))).permute(0, 3, 1, 2)


class ConvNext(nn.Module):
    """Four stages, each after a convolution that makes images smaller; classes."""

    def __init__(self) -> None:
        super().__init__()
        self.stages, before = nn.ModuleList(), 0
        for channels, count in STAGES:
            smaller = (
                nn.Sequential(ChannelNorm(before), nn.Conv2d(before, channels, 2, 2))
                if before
                else nn.Sequential(nn.Conv2d(3, channels, 4, 4), ChannelNorm(channels))
            )
            self.stages.extend((smaller, nn.Sequential(*(Block(channels) for _ in range(count)))))
            before = channels
        self.norm, self.head = nn.LayerNorm(before), nn.Linear(before, 1000)

    def forward(self, images: Tensor) -> Tensor:
        x = images
        for stage in self.stages:
            x = stage(x)
        return self.head(self.norm(x.mean((2, 3))))


def model() -> ConvNext:
    return ConvNext()


def inputs(batch: int = 64) -> tuple[Tensor]:
    return (torch.randn(batch, 3, 224, 224),)


def loss(model: nn.Module, images: Tensor) -> Tensor:
    return F.cross_entropy(model(images), torch.zeros(len(images), dtype=torch.long, device=images.device))
