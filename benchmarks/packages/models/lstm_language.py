"""torch alone: the language model of two LSTM layers that its examples train."""

import torch


class Language(torch.nn.Module):
    def __init__(self, words: int = 100, width: int = 32) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(words, width)
        self.recur = torch.nn.LSTM(width, width, num_layers=2)
        self.head = torch.nn.Linear(width, words)
        self.head.weight = self.embed.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        states, _ = self.recur(self.embed(tokens))
        return torch.log_softmax(self.head(states).flatten(0, 1), dim=1)


model = Language


def inputs() -> tuple[torch.Tensor, ...]:
    return (torch.randint(0, 100, (12, 4)),)
