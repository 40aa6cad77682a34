"""Planned bytes equal what an interceptor below autograd sees while the model runs on real tensors."""

from importlib.util import find_spec

import pytest
import torch

from benchmarks.packages.interceptor import Interceptor, live_peak
from benchmarks.packages.rows import MODES, models, row_of

PACKAGE_OF = {
    "diffusers_unet": "diffusers",
    "esm_protein": "esm",
    "geometric_gcn": "torch_geometric",
    "monai_volume": "monai",
    "peft_lora": "peft",
    "segmenter_prompts": "segment_anything",
    "timm_vision": "timm",
    "torchvision_detection": "torchvision",
    "torchvision_resnet": "torchvision",
    "whisper_speech": "whisper",
    "x_transformers_decoder": "x_transformers",
}
"""The package that a model needs; none stands for torch alone."""


@pytest.mark.parametrize("mode", MODES)
def test_language_model_of_lstm_layers_is_planned_to_the_byte(mode: str) -> None:
    row = row_of("lstm_language", mode)
    assert row.is_equal, row
    assert row.seen > 0


@pytest.mark.long
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("model", models())
def test_models_of_twelve_packages_are_planned_to_the_byte(model: str, mode: str) -> None:
    package = PACKAGE_OF.get(model, "torch")
    if find_spec(package) is None:
        pytest.skip(f"{package} is not installed here: make packages")
    row = row_of(model, mode)
    assert row.is_right, row


def seen_peak(step: object, *inputs: torch.Tensor) -> int:
    with Interceptor() as seen:
        results = step(*inputs)  # type: ignore[operator]
    return live_peak(seen, inputs, results)


def test_storage_lives_from_its_first_write_to_its_last_use() -> None:
    def step(x: torch.Tensor) -> list[torch.Tensor]:
        first = x + 1  # 400 bytes
        second = first.repeat(2)  # 800, beside the first
        return [second.sum()]  # 4, beside the second

    assert seen_peak(step, torch.zeros(100)) == 1_200


def test_views_are_no_use_and_room_is_no_write() -> None:
    def step(x: torch.Tensor) -> list[torch.Tensor]:
        room = torch.empty(1_000)
        first = x + 1
        second = first.repeat(2)
        assert first.view(10, 10).shape == (10, 10)
        return [room.copy_(second[:1].expand(1_000))]

    assert seen_peak(step, torch.zeros(100)) == 4_800


def test_what_nothing_comes_of_is_not_counted() -> None:
    def step(x: torch.Tensor) -> list[torch.Tensor]:
        unused = x.repeat(50)
        assert unused.shape == (5_000,)
        x.add_(1)
        return [x + 1]

    assert seen_peak(step, torch.zeros(100)) == 400
