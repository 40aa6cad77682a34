"""A ghost holds no bytes of its model."""

import subprocess
import sys
from typing import Final

PROGRAM: Final = """
import gc
from pathlib import Path

import torch

import tmmu
from tmmu.client.ghost_model import GhostModel
from tmmu.wire.model_messages import LoadedModel, ModelEntry, WeightEntry


def resident():
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def entry(name, *shape):
    return WeightEntry(name=name, dtype="float32", shape=shape, tied=name, is_buffer=False)


blocks = {"attn.c_attn": (1600, 4800), "attn.c_proj": (1600, 1600)}
blocks |= {"mlp.c_fc": (1600, 6400), "mlp.c_proj": (6400, 1600)}
weights = [entry("transformer.wte.weight", 50257, 1600)]
weights += [entry(f"transformer.h.{n}.{name}.weight", *shape) for n in range(9) for name, shape in blocks.items()]
model = ModelEntry(name="large", longest=1024, vocabulary=50257, encodes=False)
tmmu.TmmuError
before = resident()
ghost = GhostModel(None, LoadedModel(entry=model, weights=tuple(weights)), b"{}")
added = resident() - before
size = sum(weight.numel() * weight.element_size() for weight in ghost.parameters())
print(size, added)
"""


def test_a_ghost_of_a_gigabyte_adds_less_than_20_megabytes() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    size, added = map(int, done.stdout.split())
    assert size > 1_000_000_000
    assert added < 20_000_000
