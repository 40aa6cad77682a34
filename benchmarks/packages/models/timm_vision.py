"""timm: a vision transformer or any other of its models, by name."""

import timm
import torch


def model(name: str = "vit_tiny_patch16_224", size: int = 64) -> torch.nn.Module:
    return timm.create_model(name, img_size=size, depth=2, num_classes=10)


def inputs(size: int = 64) -> tuple[torch.Tensor, ...]:
    return (torch.randn(2, 3, size, size),)
