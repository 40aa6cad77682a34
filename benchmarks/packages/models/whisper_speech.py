"""whisper: speech to text, encoder and decoder."""

import torch
from whisper.model import ModelDimensions, Whisper


def model() -> torch.nn.Module:
    return Whisper(
        ModelDimensions(
            n_mels=20, n_audio_ctx=50, n_audio_state=32, n_audio_head=2, n_audio_layer=2,
            n_vocab=100, n_text_ctx=16, n_text_state=32, n_text_head=2, n_text_layer=2,
        )
    )  # fmt: skip


def inputs() -> tuple[torch.Tensor, ...]:
    return torch.randn(1, 20, 100), torch.randint(0, 100, (1, 8))
