"""The callback of ``transformers.Trainer``: figures, refusal, and a trainer that does not notice."""

import hashlib
import logging
import random
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import tmmu
from tests.unit.integrations.lazy import Lazy
from tmmu.errors import DeviceMemory, InvalidConfig

transformers, integration = Lazy("transformers"), Lazy("tmmu.integrations.transformers")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning", "ignore::FutureWarning"),
]


@pytest.fixture(autouse=True)
def _records_reach_the_test(monkeypatch: pytest.MonkeyPatch) -> None:
    assert transformers.logging  # loading it turns this off
    monkeypatch.setattr(logging.getLogger("transformers"), "propagate", True)


def model() -> Any:
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        n_layer=1, n_embd=16, n_head=2, vocab_size=32, n_positions=16, bos_token_id=0, eos_token_id=0, use_cache=False
    )
    return transformers.GPT2LMHeadModel(config)


def trainer(folder: Path, *callbacks: Any, own: Any = None, **options: Any) -> Any:
    tokens = torch.arange(8)
    samples = [{"input_ids": (tokens + i) % 32, "labels": (tokens + i) % 32} for i in range(32)]
    plain = {"max_steps": 2, "per_device_train_batch_size": 4, "use_cpu": True, "remove_unused_columns": False}
    quiet = {"report_to": [], "save_strategy": "no", "disable_tqdm": True, "logging_strategy": "no"}
    arguments = transformers.TrainingArguments(str(folder), **plain | quiet | options)
    return transformers.Trainer(own or model(), arguments, train_dataset=samples, callbacks=list(callbacks))


def fingerprint(trained: Any) -> str:
    """Of weights, gradients, hooks, states, callbacks and generators; not of seconds."""
    digest = hashlib.sha256()
    network, optimizer = trained.model, trained.optimizer
    assert isinstance(network, torch.nn.Module)
    for weight in network.parameters():
        digest.update(weight.detach().numpy().tobytes())
        digest.update(b"" if weight.grad is None else weight.grad.numpy().tobytes())
    schedule = trained.lr_scheduler.state_dict() if trained.lr_scheduler else None
    values = (
        *(optimizer.state_dict() if optimizer else None, schedule, trained.control),
        *(sorted((name, value) for name, value in vars(trained.state).items() if name != "log_history"),),
        *(sorted(vars(network)), network._forward_pre_hooks, sorted(vars(trained)), network.training),
        *(torch.get_rng_state().tolist(), random.getstate(), str(np.random.get_state())),
    )
    digest.update(repr(values).encode())
    return digest.hexdigest()


def test_trained_weights_and_all_states_are_those_without_the_callback(tmp_path: Path) -> None:
    prints = []
    for callbacks in ([], [integration.MemoryPlanCallback("24GB")]):
        training = trainer(tmp_path, *callbacks)
        training.train()
        prints.append(fingerprint(training))
    assert prints[0] == prints[1]
    assert callbacks[0].memory_plan is not None


def test_planning_changes_nothing_of_the_trainer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def check(*arguments: Any) -> None:
        seen.append(fingerprint(training))
        plans.append(check_step(*arguments))
        seen.append(fingerprint(training))

    check_step, plans = integration.check_step, list[Any]()
    monkeypatch.setattr(import_module("tmmu.integrations.transformers"), "check_step", check)
    training = trainer(tmp_path, integration.MemoryPlanCallback())
    training.train()
    assert len(seen) == 2
    assert seen[0] == seen[1]
    assert plans[0] is not None


def test_step_that_does_not_fit_is_refused_before_it_runs(tmp_path: Path) -> None:
    training = trainer(tmp_path, integration.MemoryPlanCallback("1GiB"))
    before = [weight.detach().clone() for weight in training.model.parameters()]
    with pytest.raises(DeviceMemory, match=r"in reserve that is [0-9.]+ KiB more than 1.0 GiB, and fullest at aten"):
        training.train()
    assert training.state.global_step == 0
    after = list(training.model.parameters())
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))


def test_misfit_is_a_warning_where_it_is_asked_for(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    training = trainer(tmp_path, integration.MemoryPlanCallback("1GiB", on_misfit="warn"))
    training.train()
    assert training.state.global_step == 2
    assert {r.levelname for r in caplog.records if "DEVICE_MEMORY" in r.getMessage()} == {"WARNING"}


def test_plan_has_the_optimizers_state_and_the_accumulated_gradients(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "transformers")
    plans = []
    for steps in (1, 4):
        callback = integration.MemoryPlanCallback()
        trainer(tmp_path, callback, gradient_accumulation_steps=steps, max_steps=1).train()
        assert callback.memory_plan is not None
        plans.append(callback.memory_plan)
    weights = sum(weight.nbytes for weight in model().parameters())
    states = plans[0].graph.buffers
    state = sum(size for size, role in zip(states.bytes, states.role, strict=True) if role == "state")
    assert state >= 3 * weights  # AdamW: weights that it updates, and two averages
    assert plans[0].graph.target == "cpu"
    assert len(plans[1].plan.order) > 1.5 * len(plans[0].plan.order)
    assert plans[1].eager.stack_bytes > plans[0].eager.stack_bytes + weights // 2
    texts = [record.getMessage() for record in caplog.records if record.name == "transformers.tmmu"]
    assert "inside its plan" in texts[0]
    assert "as it is" in texts[0]


def test_mixed_precision_is_planned_as_the_trainer_runs_it(tmp_path: Path) -> None:
    plans = []
    for bf16 in (False, True):
        callback = integration.MemoryPlanCallback()
        trainer(tmp_path, callback, bf16=bf16, max_steps=1).train()
        assert callback.memory_plan is not None
        plans.append(callback.memory_plan)
    assert "bfloat16" not in plans[0].graph.values.dtype
    assert "bfloat16" in plans[1].graph.values.dtype


def test_step_that_cannot_be_planned_is_told_and_trains(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:

    class Odd(transformers.GPT2LMHeadModel):  # type: ignore[misc]
        def forward(self, *arguments: Any, **named: Any) -> Any:
            outputs = super().forward(*arguments, **named)
            if float(outputs.loss) > 0:
                outputs.loss = outputs.loss * 2
            return outputs

    callback = integration.MemoryPlanCallback("1KiB")
    training = trainer(tmp_path, callback, own=Odd(model().config))
    training.train()
    assert training.state.global_step == 2
    assert callback.memory_plan is None
    assert any("is not planned" in record.message for record in caplog.records)


def test_optimizer_of_another_kind_is_told(caplog: pytest.LogCaptureFixture) -> None:
    callback = integration.MemoryPlanCallback("1KiB")
    callback.on_train_begin(None, None, None, model=nn.Linear(2, 2), optimizer=object())
    assert any("its optimizer is a object" in record.message for record in caplog.records)
    assert callback.memory_plan is None


@pytest.mark.parametrize("options", [{"memory": "many"}, {"memory": -1}, {"on_misfit": "ignore"}, {"reserve": 1.5}])
def test_wrong_options_are_refused_when_the_callback_is_made(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidConfig):
        integration.MemoryPlanCallback(**options)
    assert issubclass(InvalidConfig, tmmu.TmmuError)
