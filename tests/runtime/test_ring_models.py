"""Models whose weights exceed the ring four times equal the resident model, bit for bit."""

from typing import Any

import pytest
import torch
from torch import nn

from tests.runtime.harness import Tensors, random_ids, randomize, same_bits
from tests.runtime.streamed import outputs, plan_streamed
from tmmu.runtime.device.command_log import CommandRecorder
from tmmu.runtime.device.races import races
from tmmu.runtime.device.tags import TagChecker
from tmmu.runtime.device.threads import Jitter, ThreadsDevice
from tmmu.runtime.ring.modules import StreamOptions, stream_module

transformers = pytest.importorskip("transformers")
pytest.importorskip("transformers.initialization")

pytestmark = pytest.mark.usefixtures("one_thread")
RUNS = 100
SPECIAL = {"bos_token_id": None, "eos_token_id": None}
GPT2: dict[str, Any] = {"n_embd": 64, "n_layer": 12, "n_head": 4, "vocab_size": 100, "n_positions": 32}
LLAMA: dict[str, Any] = {
    "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 12, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 100,
}  # fmt: skip
MIXTRAL: dict[str, Any] = LLAMA | {"num_local_experts": 4, "num_experts_per_tok": 2, "num_hidden_layers": 10}
CASES = {
    "gpt2": ("GPT2LMHeadModel", "GPT2Config", GPT2),
    "llama": ("LlamaForCausalLM", "LlamaConfig", LLAMA),
    "mixtral": ("MixtralForCausalLM", "MixtralConfig", MIXTRAL),
}


def model(name: str) -> nn.Module:
    cls, config, settings = CASES[name]
    module: nn.Module = getattr(transformers, cls)(
        getattr(transformers, config)(**settings, **SPECIAL, use_cache=False, experts_implementation="batched_mm")
    ).eval()
    return module


def blank(name: str) -> nn.Module:
    with transformers.initialization.no_init_weights():
        module: Any = model(name)
    module.tie_weights()
    return module  # type: ignore[no-any-return]


def tokens(seed: int) -> Tensors:
    return {"input_ids": random_ids(2, 8, high=100, seed=seed)}


def test_generation_with_a_cache_gives_the_same_tokens() -> None:
    case = plan_streamed(lambda: blank("llama"), tokens(0))
    real: Any = randomize(model("llama"))
    real.generation_config.pad_token_id = 0
    arguments = {**tokens(1), "max_new_tokens": 12, "do_sample": False, "use_cache": True}
    arguments["attention_mask"] = torch.ones_like(arguments["input_ids"])
    expected = real.generate(**arguments)
    device = ThreadsDevice(jitter=Jitter(seed=1, max_seconds=0.0003))
    with stream_module(real, case.ring, case.program.graph, device, StreamOptions(poison=True)) as stream:
        assert real.generate(**arguments).equal(expected)
        assert stream.counters.passes == 12
        assert stream.skipped_copies == 0
    device.close()


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_logits_equal_the_resident_run_a_hundred_times(name: str) -> None:
    case = plan_streamed(lambda: blank(name), tokens(0))
    assert case.ring.bytes * 4 <= case.weights
    real = randomize(model(name))
    expected = [outputs(real, tokens(seed)) for seed in range(3)]
    tags, recording = TagChecker(), CommandRecorder()
    device = ThreadsDevice((tags, recording), jitter=Jitter(seed=1, max_seconds=0.0003))
    try:
        with stream_module(real, case.ring, case.program.graph, device, StreamOptions(poison=True)) as stream:
            for run in range(RUNS):
                assert same_bits(outputs(real, tokens(run % 3)), expected[run % 3]), run
            assert stream.counters.passes == RUNS
            assert stream.skipped_copies == 0
            assert stream.counters.copied_bytes >= RUNS * case.ring.bytes_per_pass
    finally:
        device.close()
    assert not tags.mismatches
    assert not races(recording.log)
