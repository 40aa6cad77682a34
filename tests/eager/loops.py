"""Training steps as users write them: the text of a file with ``step`` and ``inputs``."""

from typing import Final

HEAD: Final = """
import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 10))

def inputs():
    return torch.ones(16, 32), torch.zeros(16, dtype=torch.int64)
"""

LOOPS: Final = {
    "sgd with momentum": """
opt = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

def step(batch):
    x, y = batch
    opt.zero_grad()
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    opt.step()
    return loss.item()
""",
    "default adamw and a schedule": """
opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(opt, 100)

def step(x, y):
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    opt.step()
    schedule.step()
    opt.zero_grad()
    return loss
""",
    "foreach adamw": """
opt = torch.optim.AdamW(model.parameters(), foreach=True)

def step(batch):
    x, y = batch
    opt.zero_grad()
    F.cross_entropy(model(x), y).backward()
    opt.step()
""",
    "fused adamw": """
opt = torch.optim.AdamW(model.parameters(), fused=True)

def step(batch):
    x, y = batch
    opt.zero_grad()
    F.cross_entropy(model(x), y).backward()
    opt.step()
""",
    "gradients kept as zeros": """
opt = torch.optim.SGD(model.parameters(), lr=0.1)

def step(batch):
    x, y = batch
    opt.zero_grad(set_to_none=False)
    F.cross_entropy(model(x), y).backward()
    opt.step()
""",
    "accumulation and clipping": """
opt = torch.optim.AdamW(model.parameters())

def step(batch):
    x, y = batch
    for part, target in zip(x.chunk(4), y.chunk(4)):
        loss = F.cross_entropy(model(part), target) / 4
        loss.backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    opt.step()
    opt.zero_grad()
    return norm
""",
    "mixed precision with a scaler": """
opt = torch.optim.AdamW(model.parameters())
scaler = torch.amp.GradScaler("cpu")

def step(batch):
    x, y = batch
    opt.zero_grad()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = F.cross_entropy(model(x), y)
    scaler.scale(loss).backward()
    scaler.unscale_(opt)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(opt)
    scaler.update()
""",
    "optimizer by hand": """
moments = {}

def step(batch):
    x, y = batch
    for p in model.parameters():
        p.grad = None
    F.cross_entropy(model(x), y).backward()
    with torch.no_grad():
        for p in model.parameters():
            if p not in moments:
                moments[p] = torch.zeros_like(p)
            moments[p] = 0.9 * moments[p] + 0.1 * p.grad
            p -= 0.01 * moments[p]
""",
    "average of weights": """
opt = torch.optim.SGD(model.parameters(), lr=0.1)
ema = {name: p.detach().clone() for name, p in model.named_parameters()}

def step(batch):
    x, y = batch
    opt.zero_grad()
    F.cross_entropy(model(x), y).backward()
    opt.step()
    with torch.no_grad():
        for name, p in model.named_parameters():
            ema[name].mul_(0.99).add_(p, alpha=0.01)
""",
    "low-rank adapters on a frozen base": """
class Adapted(nn.Module):
    def __init__(self, base, rank=4):
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down = nn.Parameter(torch.ones(rank, base.in_features))
        self.up = nn.Parameter(torch.zeros(base.out_features, rank))

    def forward(self, x):
        return self.base(x) + x @ self.down.t() @ self.up.t()

model[0], model[2] = Adapted(model[0]), Adapted(model[2])
opt = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad])

def step(batch):
    x, y = batch
    opt.zero_grad()
    F.cross_entropy(model(x), y).backward()
    opt.step()
""",
    "checkpointing": """
from torch.utils.checkpoint import checkpoint

opt = torch.optim.SGD(model.parameters(), lr=0.1)

def step(batch):
    x, y = batch
    opt.zero_grad()
    loss = F.cross_entropy(checkpoint(model, x, use_reentrant=False), y)
    loss.backward()
    opt.step()
""",
    "compiled submodule": """
body = torch.compile(model, backend="eager")
opt = torch.optim.SGD(model.parameters(), lr=0.1)

def step(batch):
    x, y = batch
    opt.zero_grad()
    F.cross_entropy(body(x), y).backward()
    opt.step()
""",
    "two optimizers": """
critic = nn.Sequential(nn.Linear(10, 16), nn.ReLU(), nn.Linear(16, 1))
opt, critic_opt = torch.optim.Adam(model.parameters()), torch.optim.RMSprop(critic.parameters())

def step(batch):
    x, y = batch
    critic_opt.zero_grad()
    (critic(model(x).detach()).mean() - critic(F.one_hot(y, 10).float()).mean()).backward()
    critic_opt.step()
    opt.zero_grad()
    loss = -critic(model(x)).mean()
    loss.backward()
    opt.step()
    return loss.detach()
""",
    "last logits kept": """
opt = torch.optim.SGD(model.parameters(), lr=0.1)
seen = {}

def step(batch):
    x, y = batch
    opt.zero_grad()
    seen["logits"] = model(x)
    seen["loss"] = F.cross_entropy(seen["logits"], y)
    seen["loss"].backward()
    opt.step()
""",
    "in a class": """
class Trainer:
    def __init__(self):
        self.model, self.count = model, 0
        self.opt = torch.optim.Adam(model.parameters())

    def step(self, batch):
        x, y = batch
        self.count += 1
        self.opt.zero_grad()
        loss = F.cross_entropy(self.model(x), y)
        loss.backward()
        self.opt.step()
        return {"loss": loss.detach()}

step = Trainer().step
""",
}
"""By what they do."""


def loop_text(name: str) -> str:
    """The file of a step."""
    return HEAD + LOOPS[name]
