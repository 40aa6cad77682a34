"""The step that a callback plans holds what the trainer's own step holds, seen by weak references in a real run."""

import gc
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.eager.interceptor import Interceptor
from tests.unit.integrations import test_lightning, test_transformers
from tests.unit.integrations.lazy import Lazy

lightning, transformers = Lazy("lightning.pytorch"), Lazy("transformers")

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

LOSS_SUM = 4
"""Bytes that a trainer of transformers keeps from step to step itself: the sum of losses that it will log."""


class Watch:
    """One step under the interceptor. Gradients that are there before it count, as they go in it."""

    def begin(self, model: Any, optimizer: Any, batch: list[Any]) -> None:
        state = [value for values in optimizer.state.values() for value in values.values()]
        tensors = [*model.parameters(), *model.buffers(), *state, *batch]
        gc.collect()
        gc.disable()
        self.seen = Interceptor([tensor for tensor in tensors if isinstance(tensor, torch.Tensor)])
        for gradient in (weight.grad for weight in model.parameters() if weight.grad is not None):
            self.seen._watch(gradient.untyped_storage(), gradient.nbytes)
        self.seen.__enter__()

    def end(self) -> None:
        self.seen.__exit__(None, None, None)
        gc.enable()


def lightning_watch() -> Any:
    """Of the second step."""

    class LightningWatch(Watch, lightning.Callback):  # type: ignore[misc]
        def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
            if batch_idx == 1:
                self.begin(pl_module, trainer.optimizers[0], batch)

        def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
            if batch_idx == 1:
                self.end()

    return LightningWatch()


def transformers_watch() -> Any:
    """Of the second step, from its forward on."""

    class TransformersWatch(Watch, transformers.TrainerCallback):  # type: ignore[misc]
        def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if state.global_step == 1:
                model, optimizer = kwargs["model"], kwargs["optimizer"]

                def hook(_: Any, positional: Any, named: dict[str, Any]) -> None:
                    handle.remove()
                    self.begin(model, optimizer, list(named.values()))

                handle = model.register_forward_pre_hook(hook, with_kwargs=True)

        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if state.global_step == 2:
                self.end()

    return TransformersWatch()


@pytest.mark.parametrize("options", [{}, {"gradient_clip_val": 1.0}, {"precision": "bf16-mixed"}], ids=str)
def test_lightning_step_holds_what_is_planned(options: dict[str, Any]) -> None:
    check, watch = test_lightning.integration.MemoryPlanCheck(), lightning_watch()
    test_lightning.trainer(check, watch, **options).fit(test_lightning.module(), test_lightning.samples())
    assert check.memory_plan is not None
    assert check.memory_plan.eager.stack_bytes == max(watch.seen.live)


@pytest.mark.parametrize("options", [{}, {"bf16": True}, {"optim": "sgd"}], ids=str)
def test_transformers_step_holds_what_is_planned(options: dict[str, Any], tmp_path: Path) -> None:
    callback, watch = test_transformers.integration.MemoryPlanCallback(), transformers_watch()
    test_transformers.trainer(tmp_path, callback, watch, max_steps=3, **options).train()
    assert callback.memory_plan is not None
    assert max(watch.seen.live) - callback.memory_plan.eager.stack_bytes in (0, LOSS_SUM)
