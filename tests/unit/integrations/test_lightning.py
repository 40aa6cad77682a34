"""The callback of Lightning's trainer: figures, refusal, and a trainer that does not notice."""

import hashlib
import logging
import random
from importlib import import_module
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from tests.unit.integrations.lazy import Lazy
from tmmu.errors import DeviceMemory, InvalidConfig

lightning, pytorch_lightning = Lazy("lightning.pytorch"), Lazy("pytorch_lightning")
integration = Lazy("tmmu.integrations.lightning")
pytestmark = pytest.mark.filterwarnings("ignore")

WEIGHTS = 4 * (8 * 32 + 32 + 32 * 4 + 4)


def module(base: Any = None, **attributes: Any) -> Any:
    class Small(base or lightning.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.net = nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Dropout(0.1), nn.Linear(32, 4))
            self.seen: list[float] = []

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            x, y = batch
            loss = nn.functional.cross_entropy(self.net(x), y)
            self.log("loss", loss)
            self.seen.append(random.random() + self.current_epoch + self.trainer.world_size)
            return {"loss": loss}

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.AdamW(self.parameters(), lr=0.01)

    for name, value in attributes.items():
        setattr(Small, name, value)
    return Small()


def manual_step(self: Any, batch: Any, batch_idx: int) -> None:
    x, y = batch
    optimizer = self.optimizers()
    optimizer.zero_grad()
    self.manual_backward(nn.functional.cross_entropy(self.net(x), y))
    self.clip_gradients(optimizer, gradient_clip_val=1.0, gradient_clip_algorithm="norm")
    optimizer.step()


def trainer(*callbacks: Any, package: Any = lightning, **options: Any) -> Any:
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    return package.Trainer(
        **{"max_steps": 2, "accelerator": "cpu", "enable_model_summary": False, "callbacks": list(callbacks)}
        | quiet
        | options
    )


def samples() -> DataLoader[Any]:
    generator = torch.Generator().manual_seed(1)
    pairs = [(torch.randn(8, generator=generator), i % 4) for i in range(64)]
    return DataLoader(pairs, batch_size=16, shuffle=True)  # type: ignore[arg-type]


def fingerprint(fit: Any, network: Any) -> str:
    """Of weights, gradients, states, metrics, progress, attributes and generators."""
    digest = hashlib.sha256()
    for weight in network.parameters():
        digest.update(weight.detach().numpy().tobytes())
        digest.update(b"" if weight.grad is None else weight.grad.numpy().tobytes())
    values = (
        *([optimizer.state_dict() for optimizer in fit.optimizers], fit.callback_metrics, fit.global_step),
        *(fit.fit_loop.state_dict(), network.seen, sorted(vars(network)), sorted(vars(fit)), network.training),
        *(torch.get_rng_state().tolist(), random.getstate()),
    )
    digest.update(repr(values).encode())
    return digest.hexdigest()


def planned(*, package: Any = lightning, own: Any = None, **options: Any) -> Any:
    check = integration.MemoryPlanCheck()
    trainer(check, package=package, **{"max_steps": 1} | options).fit(own or module(package.LightningModule), samples())
    assert check.memory_plan is not None
    return check.memory_plan


@pytest.mark.slow
@pytest.mark.parametrize("package", [lightning, pytorch_lightning], ids=["lightning", "pytorch_lightning"])
def test_trained_weights_and_all_states_are_those_without_the_callback(package: Any) -> None:
    prints = []
    for callbacks in ([], [integration.MemoryPlanCheck("24GB")]):
        torch.manual_seed(5)
        random.seed(5)
        fit, network = trainer(*callbacks, package=package), module(package.LightningModule)
        fit.fit(network, samples())
        prints.append(fingerprint(fit, network))
    assert prints[0] == prints[1]
    assert callbacks[0].memory_plan is not None


@pytest.mark.parametrize(
    "is_automatic", [pytest.param(True, id="automatic"), pytest.param(False, id="manual", marks=pytest.mark.slow)]
)
def test_planning_changes_nothing_of_the_trainer(is_automatic: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    seen, plans, check_step = list[str](), list[Any](), integration.check_step

    def check(*arguments: Any) -> None:
        seen.append(fingerprint(fit, network))
        plans.append(check_step(*arguments))
        seen.append(fingerprint(fit, network))

    monkeypatch.setattr(import_module("tmmu.integrations.lightning"), "check_step", check)
    own = {} if is_automatic else {"training_step": manual_step}
    fit, network = trainer(integration.MemoryPlanCheck()), module(**own)
    network.automatic_optimization = is_automatic
    fit.fit(network, samples())
    assert len(seen) == 2
    assert seen[0] == seen[1]
    states = plans[0].graph.buffers
    state = sum(size for size, role in zip(states.bytes, states.role, strict=True) if role == "state")
    assert state >= 3 * WEIGHTS  # the weights that AdamW updates, and two averages


def test_step_that_does_not_fit_is_refused_before_it_runs() -> None:
    fit, network = trainer(integration.MemoryPlanCheck("1GiB")), module()
    with pytest.raises(DeviceMemory, match=r"in reserve that is [0-9.]+ KiB more than 1.0 GiB, and fullest at aten"):
        fit.fit(network, samples())
    assert (fit.global_step, network.seen) == (0, [])


def test_misfit_is_a_warning_where_it_is_asked_for(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("lightning.pytorch"), "propagate", True)
    caplog.set_level(logging.INFO)
    fit = trainer(integration.MemoryPlanCheck("1GiB", on_misfit="warn"))
    fit.fit(module(), samples())
    assert fit.global_step == 2
    levels = [(r.levelname, "DEVICE_MEMORY" in r.getMessage()) for r in caplog.records if r.name.endswith(".tmmu")]
    assert set(levels) == {("INFO", False), ("WARNING", True)}


@pytest.mark.slow
def test_precision_clipping_and_accumulation_are_the_trainers() -> None:
    plain = planned()
    assert "bfloat16" not in plain.graph.values.dtype
    assert "bfloat16" in planned(precision="bf16-mixed").graph.values.dtype
    clipped = planned(gradient_clip_val=1.0)
    assert len(clipped.plan.order) > len(plain.plan.order)
    accumulated = planned(accumulate_grad_batches=4)
    assert len(accumulated.plan.order) > 1.4 * len(plain.plan.order)


@pytest.mark.slow
def test_gradients_live_until_the_next_forward_is_done_as_in_the_trainer() -> None:
    plan = planned()
    assert plan.timeline().eager[0] >= WEIGHTS


def test_step_that_cannot_be_planned_is_told_and_trains(caplog: pytest.LogCaptureFixture) -> None:
    def training_step(self: Any, batch: Any) -> Any:
        loss = self.net(batch[0]).square().mean()
        return loss * 2 if float(loss) > 0 else loss

    check = integration.MemoryPlanCheck("1KiB")
    fit = trainer(check)
    logging.getLogger("lightning.pytorch").propagate = True
    fit.fit(module(training_step=training_step), samples())
    assert (fit.global_step, check.memory_plan) == (2, None)
    assert any("is not planned" in record.getMessage() for record in caplog.records)


def test_wrong_option_is_refused_when_the_callback_is_made() -> None:
    with pytest.raises(InvalidConfig):
        integration.MemoryPlanCheck("many")
