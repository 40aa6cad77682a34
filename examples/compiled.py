"""Five training steps of a small network, with and without a plan: the same bits."""

import copy

import torch
from torch import nn

from tmmu.backend import reports


def train(run, parameters, batches):
    """The losses of one step for each batch."""
    optimizer = torch.optim.AdamW(parameters, lr=0.01)
    losses = []
    for seed, batch in enumerate(batches):
        torch.manual_seed(seed)  # dropout draws from torch's generator, planned or not
        optimizer.zero_grad()
        loss = run(batch).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def main():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Dropout(0.1), nn.Linear(256, 64))
    plain = copy.deepcopy(model)
    batches = [torch.randn(32, 64) for _ in range(5)]
    planned = train(torch.compile(model, backend="tmmu"), model.parameters(), batches)
    print("losses equal eager's:", planned == train(plain, plain.parameters(), batches))
    same = all(one.equal(other) for one, other in zip(model.parameters(), plain.parameters(), strict=True))
    print("weights equal eager's:", same)
    for one in reports():
        print(f"trains {one.trains}, halves run in plans {one.planned}, without {sum(one.plain.values())}")
        print(f"stack {one.stack_bytes[0]} bytes")


if __name__ == "__main__":
    main()
