"""fair-esm: a language model of proteins, whose padding is looked for in its input."""

import torch
from esm.model.esm2 import ESM2


class Protein(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.esm = ESM2(num_layers=2, embed_dim=40, attention_heads=4)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.esm(tokens)["logits"]


model = Protein


def inputs() -> tuple[torch.Tensor, ...]:
    return (torch.tensor([[0, 5, 9, 12, 7, 2], [0, 4, 11, 2, 1, 1]]),)
