"""MONAI: a network of volumes with shifted windows, or one of convolutions."""

import torch
from monai.networks.nets import SwinUNETR, UNet


def model(name: str = "unet") -> torch.nn.Module:
    if name == "swin":
        return SwinUNETR(in_channels=1, out_channels=2, feature_size=12)
    return UNet(
        spatial_dims=3,
        in_channels=1,
        out_channels=2,
        channels=(4, 8, 16),
        strides=(2, 2),
        num_res_units=2,
        norm="BATCH",
    )


def inputs(name: str = "unet") -> tuple[torch.Tensor, ...]:
    size = 64 if name == "swin" else 16
    return (torch.randn(1, 1, size, size, size),)
