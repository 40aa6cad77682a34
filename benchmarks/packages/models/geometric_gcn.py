"""torch_geometric: two graph convolutions and a pooling over the nodes of each graph."""

import torch
from torch_geometric.nn import GCNConv, global_mean_pool


class Classifier(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = GCNConv(8, 16), GCNConv(16, 16)
        self.head = torch.nn.Linear(16, 3)

    def forward(self, x: torch.Tensor, edges: torch.Tensor, batch: torch.Tensor) -> torch.Tensor:
        x = self.first(x, edges).relu()
        x = self.second(x, edges).relu()
        return self.head(global_mean_pool(x, batch))


model = Classifier


def inputs() -> tuple[torch.Tensor, ...]:
    ring = torch.arange(12)
    edges = torch.stack([ring, ring.roll(-1)])
    return torch.randn(12, 8), edges, torch.arange(12) // 6
