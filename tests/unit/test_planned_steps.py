"""Engines of the tests share plans of steps where all that a plan depends on is equal, and nowhere else."""

from typing import Any

import pytest
import torch
import transformers

from tests import planned_steps
from tests.planned_steps import plan_step_once, planned_once, probe_once
from tmmu import Engine
from tmmu.engine.capture.model_call import OWN_DTYPES
from tmmu.engine.capture.step import StepModel, StepShape
from tmmu.engine.steps.planned_steps import plan_step

SHAPE = StepShape(rows=1, tokens=1, kv_length=64)


@pytest.fixture(autouse=True)
def planned(monkeypatch: pytest.MonkeyPatch) -> list[StepShape]:
    """What is really planned, in a process that has planned nothing yet."""
    shapes: list[StepShape] = []

    def noted(subject: StepModel, shape: StepShape) -> Any:
        shapes.append(shape)
        return plan_step(subject, shape)

    for name, value in (("_MODELS", {}), ("_STEPS", {}), ("plan_step", noted)):
        monkeypatch.setattr(planned_steps, name, value)
    return shapes


def config_of(**sizes: int) -> Any:
    return transformers.GPT2Config(n_embd=16, n_head=2, vocab_size=32, n_positions=64, **{"n_layer": 1} | sizes)


def model_of(config: Any, dtype: torch.dtype = torch.float32) -> StepModel:
    return probe_once(config, dtype, dtypes=OWN_DTYPES, device="cpu", alignment=64)


def test_equal_models_share_plans_and_each_has_its_own_weights(planned: list[StepShape]) -> None:
    models = [transformers.GPT2LMHeadModel(config_of()).eval() for _ in range(2)]
    for model in models:
        with planned_once(), Engine(model, max_tokens=64, max_batch=1) as engine, engine.open() as session:
            found = session.prefill([3, 1, 4])
            assert found.allclose(model(torch.tensor([[3, 1, 4]])).logits[0, -1], atol=1e-5)
    assert len(planned) == len(set(planned)) > 0


def test_plan_is_that_of_a_model_that_shares_none(planned: list[StepShape]) -> None:
    subject = model_of(config_of())
    alone = plan_step(subject, SHAPE)
    first, second = plan_step_once(subject, SHAPE), plan_step_once(model_of(config_of()), SHAPE)
    assert planned == [SHAPE]
    assert first.plan.digest == second.plan.digest == alone.plan.digest
    assert first.program.graph == second.program.graph == alone.program.graph


def test_what_a_plan_depends_on_is_planned_anew(planned: list[StepShape], monkeypatch: pytest.MonkeyPatch) -> None:
    config = config_of()
    plan_step_once(model_of(config), SHAPE)
    plan_step_once(model_of(config, torch.float64), SHAPE)
    plan_step_once(model_of(config), StepShape(rows=2, tokens=1, kv_length=64))
    config.n_layer = 2
    plan_step_once(model_of(config), SHAPE)
    plan_step_once(model_of(config_of(n_layer=2)), SHAPE)  # as it is now
    assert len(planned) == 4
    monkeypatch.setenv("TORCH_ANY", "1")
    plan_step_once(model_of(config), SHAPE)
    assert len(planned) == 5
