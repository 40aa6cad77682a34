"""diffusers: the network of a latent diffusion model, conditioned on text."""

import torch
from diffusers import UNet2DConditionModel


class Denoiser(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.unet = UNet2DConditionModel(
            sample_size=16,
            block_out_channels=(32, 64),
            layers_per_block=1,
            down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
            up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
            cross_attention_dim=32,
            attention_head_dim=8,
        )

    def forward(self, latents: torch.Tensor, step: torch.Tensor, text: torch.Tensor) -> torch.Tensor:
        return self.unet(latents, step, encoder_hidden_states=text).sample


model = Denoiser


def inputs() -> tuple[torch.Tensor, ...]:
    return torch.randn(2, 4, 16, 16), torch.tensor([10, 500]), torch.randn(2, 7, 32)
