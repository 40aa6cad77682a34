"""ResNet-50 on images of 224 x 224, activations in place."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - the name everyone uses

STAGES = ((64, 3), (128, 4), (256, 6), (512, 3))


class Bottleneck(nn.Module):
    """Three convolutions with batch norms beside a residual, which is projected where shapes differ."""

    def __init__(self, channels: int, middle: int, stride: int) -> None:
        super().__init__()
        wide = 4 * middle
        self.conv_1, self.norm_1 = nn.Conv2d(channels, middle, 1, bias=False), nn.BatchNorm2d(middle)
        self.conv_2, self.norm_2 = nn.Conv2d(middle, middle, 3, stride, 1, bias=False), nn.BatchNorm2d(middle)
        self.conv_3, self.norm_3 = nn.Conv2d(middle, wide, 1, bias=False), nn.BatchNorm2d(wide)
        self.relu = nn.ReLU(inplace=True)
        self.project: nn.Module = nn.Identity()
        if stride != 1 or channels != wide:
            self.project = nn.Sequential(nn.Conv2d(channels, wide, 1, stride, bias=False), nn.BatchNorm2d(wide))

    def forward(self, x: Tensor) -> Tensor:
        y = self.relu(self.norm_1(self.conv_1(x)))
        y = self.relu(self.norm_2(self.conv_2(y)))
        y = self.norm_3(self.conv_3(y))
        return self.relu(y + self.project(x))


class ResNet(nn.Module):
    """A stem, sixteen bottlenecks, the mean over all places, classes."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)
        )
        self.layers, channels = nn.ModuleList(), 64
        for stage, (middle, count) in enumerate(STAGES):
            for place in range(count):
                self.layers.append(Bottleneck(channels, middle, 2 if stage and not place else 1))
                channels = 4 * middle
        self.head = nn.Linear(channels, 1000)

    def forward(self, images: Tensor) -> Tensor:
        x = self.stem(images)
        for layer in self.layers:
            x = layer(x)
        return self.head(x.mean((2, 3)))


def model() -> ResNet:
    return ResNet()


def inputs(batch: int = 64) -> tuple[Tensor]:
    return (torch.randn(batch, 3, 224, 224),)


def loss(model: nn.Module, images: Tensor) -> Tensor:
    return F.cross_entropy(model(images), torch.zeros(len(images), dtype=torch.long, device=images.device))
