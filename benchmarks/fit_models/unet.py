"""The UNet of a latent diffusion model: 320 channels, a text of 77 tokens, latents of 64 x 64."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - the name everyone uses

HEADS, NORM_GROUPS, LEVELS, TEXT = 8, 32, (1, 2, 4, 4), 768
LOG_OF_LONGEST_PERIOD = 9.2103


class Residual(nn.Module):
    """Two convolutions, the time added between them, beside a residual."""

    def __init__(self, channels: int, out: int, time: int) -> None:
        super().__init__()
        self.norm_1, self.conv_1 = nn.GroupNorm(NORM_GROUPS, channels), nn.Conv2d(channels, out, 3, 1, 1)
        self.time = nn.Linear(time, out)
        self.norm_2, self.conv_2 = nn.GroupNorm(NORM_GROUPS, out), nn.Conv2d(out, out, 3, 1, 1)
        self.project = nn.Identity() if channels == out else nn.Conv2d(channels, out, 1)

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        y = self.conv_1(F.silu(self.norm_1(x))) + self.time(F.silu(time))[:, :, None, None]
        return self.conv_2(F.silu(self.norm_2(y))) + self.project(x)


class Attention(nn.Module):
    """Of queries to what may be another sequence."""

    def __init__(self, width: int, source: int) -> None:
        super().__init__()
        self.q, self.out = nn.Linear(width, width, bias=False), nn.Linear(width, width)
        self.k, self.v = nn.Linear(source, width, bias=False), nn.Linear(source, width, bias=False)

    def forward(self, x: Tensor, source: Tensor) -> Tensor:
        def heads(y: Tensor) -> Tensor:
            return y.view(y.shape[0], y.shape[1], HEADS, -1).transpose(1, 2)

        mixed = F.scaled_dot_product_attention(heads(self.q(x)), heads(self.k(source)), heads(self.v(source)))
        return self.out(mixed.transpose(1, 2).reshape(x.shape))


class Transformer(nn.Module):
    """Places of an image look at each other and at the text; a gated MLP."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.enter, self.leave = (
            nn.GroupNorm(NORM_GROUPS, width),
            nn.Linear(width, width),
            nn.Linear(width, width),
        )
        self.norm_1, self.own = nn.LayerNorm(width), Attention(width, width)
        self.norm_2, self.text = nn.LayerNorm(width), Attention(width, TEXT)
        self.norm_3, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 8 * width), nn.Linear(4 * width, width)

    def forward(self, images: Tensor, text: Tensor) -> Tensor:
        batch, channels, height, width = images.shape
        x = self.enter(self.norm(images).permute(0, 2, 3, 1).reshape(batch, height * width, channels))
        y = self.norm_1(x)
        x = x + self.own(y, y)
        x = x + self.text(self.norm_2(x), text)
        value, gate = self.up(self.norm_3(x)).chunk(2, dim=-1)
        x = x + self.down(value * F.gelu(gate))
        return self.leave(x).reshape(batch, height, width, channels).permute(0, 3, 1, 2) + images


class Larger(nn.Module):
    """Twice as high and wide."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 3, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(F.interpolate(x, scale_factor=2.0, mode="nearest"))


class UNet(nn.Module):
    """Four levels down, a middle, four levels up beside what the way down left."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        time, widths = 4 * channels, [factor * channels for factor in LEVELS]
        self.channels, last = channels, len(widths) - 1
        self.time_1, self.time_2 = nn.Linear(channels, time), nn.Linear(time, time)
        self.enter, self.down, self.up = nn.Conv2d(4, channels, 3, 1, 1), nn.ModuleList(), nn.ModuleList()
        left, now = [channels], channels
        for level, width in enumerate(widths):
            for _ in range(2):
                residual = Residual(now, width, time)
                self.down.append(nn.ModuleList([residual, Transformer(width)] if level < last else [residual]))
                now = width
                left.append(now)
            if level < last:
                self.down.append(nn.ModuleList([nn.Conv2d(now, now, 3, 2, 1)]))
                left.append(now)
        self.middle = nn.ModuleList((Residual(now, now, time), Transformer(now), Residual(now, now, time)))
        for level, width in reversed(list(enumerate(widths))):
            for place in range(3):
                modules: list[nn.Module] = [Residual(now + left.pop(), width, time)]
                modules += [Transformer(width)] if level < last else []
                modules += [Larger(width)] if place == 2 and level else []
                now = width
                self.up.append(nn.ModuleList(modules))
        self.norm, self.leave = nn.GroupNorm(NORM_GROUPS, now), nn.Conv2d(now, 4, 3, 1, 1)

    def forward(self, latents: Tensor, times: Tensor, text: Tensor) -> Tensor:
        half = self.channels // 2
        places = torch.arange(half, device=latents.device).float()
        angles = times[:, None].float() * torch.exp(-places * (LOG_OF_LONGEST_PERIOD / half))[None]
        waves = torch.cat((angles.cos(), angles.sin()), dim=-1).to(latents.dtype)
        time = self.time_2(F.silu(self.time_1(waves)))
        x = self.enter(latents)
        left = [x]
        for modules in self.down:
            x = self.through(modules, x, time, text)
            left.append(x)
        x = self.through(self.middle, x, time, text)
        for modules in self.up:
            x = self.through(modules, torch.cat((x, left.pop()), dim=1), time, text)
        return self.leave(F.silu(self.norm(x)))

    @staticmethod
    def through(modules: nn.ModuleList, x: Tensor, time: Tensor, text: Tensor) -> Tensor:
        for module in modules:
            if isinstance(module, Residual):
                x = module(x, time)
            else:
                x = module(x, text) if isinstance(module, Transformer) else module(x)
        return x


def model(channels: int = 320) -> UNet:
    return UNet(channels)


def inputs(batch: int = 4, size: int = 64) -> tuple[Tensor, Tensor, Tensor]:
    return torch.randn(batch, 4, size, size), torch.ones(batch), torch.randn(batch, 77, TEXT)


def loss(model: nn.Module, latents: Tensor, times: Tensor, text: Tensor) -> Tensor:
    return F.mse_loss(model(latents, times, text), latents)
