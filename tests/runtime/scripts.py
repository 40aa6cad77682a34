"""Whole training scripts, in which much comes together: the text of a file with ``step`` and ``inputs``."""

from typing import Final

SCRIPTS: Final = {
    "language model with all that a script has": """
import copy
from dataclasses import dataclass, field
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 64), nn.GELU(), nn.Dropout(0.1), nn.Linear(64, width))

    def forward(self, x):
        q, k, v = [t.unflatten(-1, (4, -1)).transpose(1, 2) for t in self.qkv(self.norm(x)).chunk(3, -1)]
        attended = F.scaled_dot_product_attention(q, k, v, dropout_p=0.1, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).flatten(2))
        return x + self.mlp(self.norm2(x))

class Language(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.blocks = nn.Embedding(64, 32), nn.ModuleList([Block(32) for _ in range(2)])
        self.head = nn.Linear(32, 64, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids):
        x = self.embed(ids)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False)
        return self.head(x)

@dataclass
class Progress:
    step: int = 0
    losses: list = field(default_factory=list)

model = Language()
average = copy.deepcopy(model).requires_grad_(False)
groups = [
    {"params": [p for p in model.parameters() if p.dim() > 1], "weight_decay": 0.1},
    {"params": [p for p in model.parameters() if p.dim() < 2], "weight_decay": 0.0},
]
opt = torch.optim.AdamW(groups, lr=1e-3, betas=(0.9, 0.95))
warm = torch.optim.lr_scheduler.LinearLR(opt, 0.1, total_iters=5)
schedule = torch.optim.lr_scheduler.SequentialLR(opt, [warm, torch.optim.lr_scheduler.CosineAnnealingLR(opt, 20)], [5])
scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
progress = Progress()

def inputs():
    return torch.zeros(8, 17, dtype=torch.int64)

def step(tokens):
    opt.zero_grad()
    total = 0.0
    for part in tokens.split(4):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            logits = model(part[:, :-1])
            loss = F.cross_entropy(logits.flatten(0, 1), part[:, 1:].flatten(), label_smoothing=0.1) / 2
        scaler.scale(loss).backward()
        total = total + loss.detach()
    scaler.unscale_(opt)
    norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(opt)
    scaler.update()
    schedule.step()
    decay = min(0.999, (1 + progress.step) / (10 + progress.step))
    with torch.no_grad():
        for kept, weight in zip(average.parameters(), model.parameters()):
            kept.lerp_(weight, 1 - decay)
    progress.step += 1
    progress.losses.append(total)
    return {"loss": total, "norm": norm, "lr": schedule.get_last_lr()[0]}
""",
    "two networks and a penalty on a gradient": """
import torch
from torch import nn
from torch.nn import functional as F

maker = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 16))
critic = nn.Sequential(nn.Linear(16, 32), nn.LeakyReLU(0.2), nn.Linear(32, 1))
maker_opt, critic_opt = (torch.optim.Adam(net.parameters(), 2e-4, betas=(0.5, 0.999)) for net in (maker, critic))

def inputs():
    return torch.zeros(12, 16)

def step(real):
    fake = maker(torch.randn(12, 8))
    critic_opt.zero_grad()
    loss = F.binary_cross_entropy_with_logits(critic(real), torch.ones(12, 1))
    loss = loss + F.binary_cross_entropy_with_logits(critic(fake.detach()), torch.zeros(12, 1))
    share = torch.rand(12, 1)
    mixed = (share * real + (1 - share) * fake.detach()).requires_grad_()
    (gradient,) = torch.autograd.grad(critic(mixed).sum(), mixed, create_graph=True)
    (loss + ((gradient.norm(2, 1) - 1) ** 2).mean()).backward()
    critic_opt.step()
    maker_opt.zero_grad()
    F.binary_cross_entropy_with_logits(critic(fake), torch.ones(12, 1)).backward()
    maker_opt.step()
    return loss.item(), gradient
""",
    "a recurrent state kept in a global": """
import torch
from torch import nn
from torch.nn import functional as F

model, head, hidden = nn.LSTM(8, 16, 2, batch_first=True, dropout=0.1), nn.Linear(16, 5), None
opt = torch.optim.RMSprop([*model.parameters(), *head.parameters()])

def inputs():
    return torch.zeros(4, 6, 8), torch.zeros(4, dtype=torch.int64)

def step(batch):
    global hidden
    x, y = batch
    opt.zero_grad()
    out, hidden = model(x, None if hidden is None else tuple(part.detach() for part in hidden))
    F.cross_entropy(head(out[:, -1]), y).backward()
    opt.step()
""",
    "images in channels_last, mixed in pairs": """
import torch
from torch import nn
from torch.nn import functional as F

model = nn.Sequential(
    nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(inplace=True), nn.MaxPool2d(2), nn.Conv2d(8, 16, 3),
    nn.BatchNorm2d(16), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.2), nn.Linear(16, 10),
).to(memory_format=torch.channels_last)
opt = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, weight_decay=5e-4, nesterov=True)
schedule = torch.optim.lr_scheduler.MultiStepLR(opt, [2, 3])

def inputs():
    return torch.zeros(4, 3, 16, 16).to(memory_format=torch.channels_last), torch.zeros(4, dtype=torch.int64)

def step(x, y):
    order = torch.randperm(4)
    opt.zero_grad()
    out = model(0.3 * x + 0.7 * x[order])
    loss = 0.3 * F.cross_entropy(out, y) + 0.7 * F.cross_entropy(out, y[order])
    loss.backward()
    opt.step()
    schedule.step()
    return {"loss": loss.detach(), "accuracy": (out.argmax(1) == y).float().mean()}
""",
    "noise of a generator, a fused update": """
import torch
from torch import nn
from torch.nn import functional as F

model = nn.Sequential(nn.Linear(17, 32), nn.SiLU(), nn.Linear(32, 16))
kept = (1 - torch.linspace(1e-4, 0.02, 10)).cumprod(0)
opt = torch.optim.AdamW(model.parameters(), fused=True)
generator = torch.Generator().manual_seed(5)

def inputs():
    return torch.zeros(6, 16)

def step(x):
    time = torch.randint(0, 10, (6,), generator=generator)
    noise, share = torch.randn_like(x), kept[time][:, None]
    noisy = share.sqrt() * x + (1 - share).sqrt() * noise
    opt.zero_grad()
    loss = F.mse_loss(model(torch.cat([noisy, time[:, None] / 10], 1)), noise)
    loss.backward()
    opt.step()
    return loss.item()
""",
}
"""By what is in them."""
