"""Threads that plan, compile and measure at once: each has its answer, and torch is afterwards what it was."""

import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn

import tmmu

X = torch.randn(4, 8)
CALLS: dict[str, Callable[[nn.Module], object]] = {
    "plan": lambda model: tmmu.plan(model, X, device="cpu").eager.stack_bytes == 128,
    "step": lambda model: tmmu.plan(lambda x: model(x).sum(), X, device="cpu").total > 0,
    "compile": lambda model: torch.equal(tmmu.compile(model, X)(X), model(X)),
    "measure": lambda model: tmmu.measure(model, X).agrees,
}
PATCHED = (torch.Tensor, nn.Parameter, nn.Module, torch.optim.Optimizer)


@pytest.mark.parametrize("name", CALLS)
def test_threads_wait_and_leave_torch_as_it_was(name: str) -> None:
    before = [dict(vars(owner)) for owner in PATCHED]
    disabled, generator = logging.root.manager.disable, torch.get_rng_state()
    models = [nn.Linear(8, 8).eval() for _ in range(4)]
    torch.set_rng_state(generator)
    with ThreadPoolExecutor(4) as threads:
        answers = list(threads.map(CALLS[name], models))
    assert answers == [True] * 4
    assert [dict(vars(owner)) for owner in PATCHED] == before
    assert logging.root.manager.disable == disabled
    assert torch.equal(torch.get_rng_state(), generator)
    assert torch._dynamo.eval_frame._stance.stance == "default"
