"""A training step as one writes it: a batch in two halves, clipping, AdamW, an average of the weights.

tmmu plan examples/train.py:step
"""

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 - the name everyone uses

model = nn.Sequential(
    nn.Embedding(1000, 64),
    nn.TransformerEncoderLayer(64, 4, 256, dropout=0.0, batch_first=True, norm_first=True),
    nn.Linear(64, 1000),
)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 1000)
average = {name: weight.detach().clone() for name, weight in model.named_parameters()}


def inputs() -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens and those that follow them: ``int64[16, 32]`` each."""
    tokens = torch.zeros(16, 33, dtype=torch.int64)
    return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()


def step(batch: tuple[torch.Tensor, torch.Tensor]) -> float:
    """One update; the loss of the last half."""
    optimizer.zero_grad()
    for tokens, following in zip(*(part.chunk(2) for part in batch), strict=True):
        loss = F.cross_entropy(model(tokens).flatten(0, 1), following.flatten()) / 2
        loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    schedule.step()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            average[name].lerp_(weight, 0.01)
    return loss.item()
