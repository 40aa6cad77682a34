"""x-transformers: a decoder with rotary positions, root mean square norms and grouped heads."""

import torch
from x_transformers import Decoder, TransformerWrapper


def model() -> torch.nn.Module:
    layers = Decoder(dim=32, depth=2, heads=4, rotary_pos_emb=True, use_rmsnorm=True, ff_glu=True, attn_kv_heads=2)
    return TransformerWrapper(num_tokens=100, max_seq_len=32, attn_layers=layers)


def inputs() -> tuple[torch.Tensor, ...]:
    return (torch.randint(0, 100, (2, 16)),)
