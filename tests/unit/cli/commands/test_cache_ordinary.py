"""What people write beside a model, in one file and a helper: kept, and found again by other processes."""

import json
import os
import re
import subprocess
import sys
from typing import Any

import pytest

from tests.unit.cli.graphs import Shell

HELPER = """
from __future__ import annotations

import functools
import logging
import os
import torch

log = logging.getLogger(__name__)
DEBUG = os.environ.get("HELPER_DEBUG") == "1"
KINDS = {"relu", "gelu"}
ACTS = {"relu": torch.relu, "gelu": torch.nn.functional.gelu}

@functools.lru_cache(256)
def parse(pattern: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    left, right = pattern.split("->")
    return tuple(left.split()), tuple(right.split())

def rearrange(x, pattern):
    left, right = parse(pattern)
    return x.permute([left.index(name) for name in right])

def act(kind):
    if kind not in KINDS:
        raise ValueError(kind)
    return ACTS[kind]
"""

NET = """
import argparse
import logging
import os
import random
import sys
import time
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import NamedTuple, Optional

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import helper
from helper import act, rearrange

logging.basicConfig(level=logging.INFO)
log = logging.getLogger(__name__)

class Norm(Enum):
    PRE = "pre"
    POST = "post"

@dataclass
class Config:
    width: int = 16
    act: str = "gelu"
    norm: Norm = Norm.PRE
    rates: list = field(default_factory=lambda: [0.1])
    path: Optional[Path] = None

class Out(NamedTuple):
    y: torch.Tensor
    aux: Optional[torch.Tensor] = None

class Block(nn.Module):
    def __init__(self, config: Config):
        super().__init__()
        self.qkv = nn.Linear(config.width, 3 * config.width)
        self.act = act(config.act)
        self.register_buffer("mask", torch.ones(4, 4), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (rearrange(t.view(2, 4, 4, 4), "b t h d -> b h t d") for t in self.qkv(x).chunk(3, -1))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        log.debug("attention of %s", x.shape)
        return x + self.act(rearrange(y, "b h t d -> b t h d").reshape(2, 4, 16))

class Net(nn.Module):
    def __init__(self, config: Config = Config()):
        super().__init__()
        self.config = config
        self.blocks = nn.ModuleList(Block(config) for _ in range(2))
        self.apply(self.reset)
        print("parameters", sum(p.numel() for p in self.parameters()), file=sys.stderr)

    def reset(self, module):
        if isinstance(module, (nn.Linear,)):
            nn.init.normal_(module.weight, std=0.02)

    def save(self, path):
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as file:
            torch.save(self.state_dict(), file)

    @classmethod
    def from_pretrained(cls, path):
        import json
        import os
        return cls(Config(**json.load(open(os.path.join(path, "config.json")))))

    def timed(self):
        start = time.time()
        return random.random() + time.time() - start

    def forward(self, x, aux: bool = False):
        for at, block in enumerate(self.blocks):
            x = checkpoint(block, x, use_reentrant=False) if self.training and at else block(x)
        if self.config.norm is Norm.POST:
            x = x * 2
        assert x.ndim == 3, f"{type(self).__name__} {x.shape}"
        return Out(x, x.mean() if aux else None)

def model():
    return Net(Config())

def inputs():
    return torch.randn(2, 4, 16)

def loss(model, x):
    return model(x).y.float().square().mean()

def train():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rate", type=float, default=1e-3)
    given = parser.parse_args()
    random.seed(0); np.random.seed(0); torch.manual_seed(0)
    net = Net()
    optimizer = torch.optim.AdamW(net.parameters(), lr=given.rate)
    for step in range(3):
        start = time.time()
        loss(net, inputs()).backward()
        optimizer.step()
        log.info("step %d: %f", step, time.time() - start)
    net.save("out/net.pt")

if __name__ == "__main__":
    train()
"""

HF = """
import torch
from transformers import LlamaConfig, LlamaForCausalLM

class Net(LlamaForCausalLM):
    def forward(self, ids):
        return super().forward(input_ids=ids, use_cache=False).logits * 2

def model():
    sizes = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    return Net(LlamaConfig(**sizes, num_key_value_heads=2, vocab_size=16, max_position_embeddings=16))

def inputs():
    return torch.zeros(1, 4, dtype=torch.int64)
"""


def planned(*options: str, seed: str) -> dict[str, Any]:
    """What another process, with another order of its sets, says of the cache."""
    program = f"from tmmu.cli.app import run; run({['plan', 'net.py', '--json', *options]})"
    env = os.environ | {"PYTHONHASHSEED": seed}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, env=env)
    found: dict[str, Any] = json.loads(done.stdout)["cache"]
    return found


@pytest.mark.parametrize(("text", "options"), [(NET, ()), (NET, ("--mode", "backward")), (HF, ())])
def test_an_ordinary_file_is_found_again_by_another_process(shell: Shell, text: str, options: tuple[str, ...]) -> None:
    (shell.folder / "net.py").write_text(text)
    (shell.folder / "helper.py").write_text(HELPER)
    cold, warm = planned(*options, seed="1"), planned(*options, seed="2")
    assert (cold["origin"], cold["unkept"]) == ("cold", "")
    assert warm["origin"] == "disk"


READING = {
    "the backward of a function": """
class Read(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        return grad * 2 if os.environ.get("A") else grad.exp()
""",
    "a hook of a gradient": """
class Read:
    @staticmethod
    def apply(x):
        x.register_hook(lambda grad: grad * float(os.environ.get("A", 1)))
        return x * 2
""",
    "a decorated method": """
def gated(function):
    def wrapper(x):
        return function(x) if os.environ.get("A") else x.exp()
    return wrapper

class Read:
    @staticmethod
    @gated
    def apply(x):
        return x * 2
""",
}


@pytest.mark.parametrize("name", READING)
def test_what_torch_calls_is_watched_as_well(shell: Shell, name: str) -> None:
    (shell.folder / "net.py").write_text(
        f"import os\nimport torch\nfrom torch import nn\n{READING[name]}\n"
        "class Net(nn.Module):\n"
        "    def __init__(self):\n        super().__init__()\n        self.a = nn.Linear(4, 4)\n"
        "    def forward(self, x):\n        return Read.apply(self.a(x)).sum()\n"
        "model = Net\ndef inputs():\n    return torch.zeros(2, 4)\n"
    )
    for _ in range(2):
        found = shell.tmmu("plan", "net.py", "--mode", "backward", "--json").record["cache"]
        assert found["origin"] == "cold"
        assert re.fullmatch(r"the model reads os\._Environ\.__getitem__ at net\.py:\d+", found["unkept"])
