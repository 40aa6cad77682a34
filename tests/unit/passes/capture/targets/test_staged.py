"""Models of transformers as stages of a pipeline: which layers a rank has, what it sends, and what is refused."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.unit.passes.capture.targets.test_sharded import LLAMA
from tmmu.errors import InvalidConfig, UnsupportedOp
from tmmu.ir.program import Program
from tmmu.passes.capture.program import CapturedProgram
from tmmu.passes.capture.ranks.schedules import SCHEDULES
from tmmu.passes.capture.request import CaptureRequest
from tmmu.passes.capture.targets.staged import StageLayers
from tmmu.passes.capture.trace import capture
from tmmu.passes.pipeline import lower_program

pytest.importorskip("torch.distributed.pipelining")
pytest.importorskip("transformers.distributed")
LONG: dict[str, Any] = {"num_hidden_layers": 4, "vocab_size": 104}
HIDDEN = 16 * LLAMA["hidden_size"] * 4
"""Bytes of what a stage sends of a sequence of 16 tokens."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA | LONG))
    return tmp_path


def captured(folder: Path, rank: int, *, world: int = 2, **options: Any) -> CapturedProgram:
    """What a rank does with sequences of 16 tokens in two stages, if nobody says another number."""
    given = {"pp": 2, "seq": 16, "device": "cpu"} | options
    return capture(CaptureRequest(model=f"hf:{folder}", world=world, rank=rank, **given))


def weights_of(program: CapturedProgram) -> set[str]:
    """The parts of the model that have a weight here: layers by their number."""
    names = {storage.name for storage in program.storages if storage.name.endswith("weight")}
    return {name.split(".")[2] if ".layers." in name else name for name in names}


def inputs_of(program: CapturedProgram) -> list[str]:
    return [program.storages[window.storage].name for window in program.inputs]


def test_layers_are_cut_evenly_and_both_ends_have_what_is_theirs(folder: Path) -> None:
    (folder / "config.json").write_text(json.dumps(LLAMA | LONG | {"num_hidden_layers": 3}))
    first, last = (captured(folder, rank, batch=2, microbatches=3) for rank in range(2))
    assert weights_of(first) == {"model.embed_tokens.weight", "0", "1"}, "the first stages have one layer more"
    assert weights_of(last) == {"2", "model.norm.weight", "lm_head.weight"}
    assert inputs_of(first) == ["input_ids"]
    assert inputs_of(last) == []
    assert first.traffic is not None
    assert last.traffic is not None
    assert (first.traffic.bytes, last.traffic.bytes) == (3 * 2 * HIDDEN, 0)
    assert first.rank_kinds is not None
    assert (first.rank_kinds.kind_of, first.rank_kinds.reads) == ((0, 1), ())


def computed_layers(program: Program) -> set[str]:
    """Numbers of the layers in which there are products."""
    modules = program.graph.notes.ops.module
    targets = program.graph.ops.target
    paths = [module for module, target in zip(modules, targets, strict=True) if "mm" in target and ".layers." in module]
    return {path.split(".")[path.split(".").index("layers") + 1] for path in paths}


@pytest.mark.parametrize(
    ("schedule", "stages"),
    [
        pytest.param("gpipe", [{"0", "1"}, {"2", "3"}], marks=pytest.mark.long),
        pytest.param("1f1b", [{"0", "1"}, {"2", "3"}], marks=pytest.mark.long),
        pytest.param("interleaved-1f1b", [{"0", "2"}, {"1", "3"}], marks=pytest.mark.long),
        pytest.param("looped-bfs", [{"0", "2"}, {"1", "3"}], marks=pytest.mark.long),
        pytest.param("interleaved-zero-bubble", [{"0", "2"}, {"1", "3"}], marks=pytest.mark.long),
        pytest.param("dualpipev", [{"0", "3"}, {"1", "2"}], marks=pytest.mark.slow),
        pytest.param("zbv-zero-bubble", [{"0", "3"}, {"1", "2"}], marks=pytest.mark.long),
    ],
)
def test_a_schedule_says_which_stages_a_rank_has(folder: Path, schedule: str, stages: list[set[str]]) -> None:
    assert schedule in SCHEDULES
    for rank, layers in enumerate(stages):
        program = captured(folder, rank, mode="backward", optimizer="sgd", schedule=schedule)
        lowered = lower_program(program)
        assert computed_layers(lowered) == layers
        assert set(lowered.graph.ops.stage) == {"forward", "backward", "update"}
        is_first, is_last = "0" in layers, "3" in layers
        assert inputs_of(program) == ["input_ids"] * is_first + ["labels"] * is_last


@pytest.mark.long
def test_without_an_optimizer_gradients_are_results(folder: Path) -> None:
    program = lower_program(captured(folder, 1, mode="backward", loss="cross_entropy"))
    trained = 2 * 9 + 2
    losses = 2
    assert len(program.graph.outputs) >= trained + losses
    assert "update" not in program.graph.ops.stage


@pytest.mark.slow
def test_ranks_of_one_stage_are_one_kind_and_layers_run_again(folder: Path) -> None:
    kept = captured(folder, 0, world=8, tp=2, fsdp=2, mode="backward", optimizer="sgd")
    again = captured(folder, 0, world=8, tp=2, fsdp=2, mode="backward", optimizer="sgd", checkpoint=True)
    assert kept.rank_kinds is not None
    assert kept.rank_kinds.kind_of == (0,) * 4 + (1,) * 4
    assert kept.rank_kinds.reads == ()
    assert len(again.graph.nodes) > len(kept.graph.nodes)


@pytest.mark.parametrize(
    ("change", "options", "error", "said"),
    [
        ({"tie_word_embeddings": True}, {}, UnsupportedOp, r"--pp 2: lm_head\.weight is tied to the embedding"),
        ({}, {"pp": 5, "world": 5}, InvalidConfig, r"--pp 5: the model has 4 layers for 5 stages"),
        ({}, {"schedule": "interleaved-1f1b:3"}, InvalidConfig, r"--pp 2: the model has 4 layers for 6 stages"),
        (
            {}, {"microbatches": 1, "mode": "backward"}, InvalidConfig,
            r"--schedule 1f1b --microbatches 1: Number of microbatches \(1\) must be greater",
        ),
    ],
    ids=["tied", "few layers", "few layers for stages", "few micro-batches"],
)  # fmt: skip
def test_what_makes_no_stages_is_refused(
    folder: Path, change: dict[str, Any], options: dict[str, Any], error: type[Exception], said: str
) -> None:
    (folder / "config.json").write_text(json.dumps(LLAMA | LONG | change))
    with pytest.raises(error, match=said):
        captured(folder, 0, **options)


def test_an_architecture_that_does_not_name_its_layers_is_refused(tmp_path: Path) -> None:
    vit = {"architectures": ["ViTForImageClassification"], "model_type": "vit", "hidden_size": 32,
           "num_hidden_layers": 2, "num_attention_heads": 2, "image_size": 32, "patch_size": 8}  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(vit))
    with pytest.raises(UnsupportedOp, match="--pp: transformers has no pp_plan for ViTForImageClassification"):
        captured(tmp_path, 0, seq=None)


def test_layers_of_other_stages_are_passed_by_under_their_numbers() -> None:
    layers = nn.ModuleList(nn.Linear(2, 2) for _ in range(4))
    layers[0].kind = "full_attention"
    own = StageLayers(layers, range(1, 3))
    assert [name for name, _ in own.named_parameters()] == ["1.weight", "1.bias", "2.weight", "2.bias"]
    assert len(own) == len([*own]) == len(own[:4]) == 4
    assert own[1] is layers[1]
    assert own[0].kind == "full_attention"
    hidden = torch.zeros(2)
    assert own[3](hidden, attention_mask=None) is hidden
