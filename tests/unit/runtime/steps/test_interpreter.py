"""Code in torch's interpreter makes the calls that were written, in their order, with their bits; or is refused."""

from collections.abc import Sequence
from threading import Event, Thread
from typing import Any

import pytest
import torch

from tmmu.runtime.kernels.code import Code, instruction, runnable_of
from tmmu.runtime.steps.interpreter import build_function, is_expressible, without_optimization

aten = torch.ops.aten


def tensors(seed: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(4, 6, generator=generator) for _ in range(4)]


def every_argument_kind(x: torch.Tensor, y: torch.Tensor, out: torch.Tensor, out2: torch.Tensor) -> list[Any]:
    """(instruction, tensor that it changes), with every kind of argument."""
    mean, deviation = torch.empty(4, 1), torch.empty(4, 1)
    wide, counts = torch.empty(4, 12), torch.zeros(10, dtype=torch.int64)
    half = torch.empty(4, 6, dtype=torch.float16)
    rows = torch.tensor([1, 3])
    return [
        (instruction(aten.add.out, x, y, alpha=2, out=out), out),
        (instruction(aten.mul.out, x, 2.5, out=out), out),
        (instruction(aten.native_layer_norm.default, x, [6], None, None, 1e-5, into=(out, mean, deviation)), mean),
        (instruction(aten.native_layer_norm.default, x, [6], None, None, 1e-5, into=(out2, None, None)), out2),
        (instruction(aten.sum.IntList_out, x, [1], True, dtype=None, out=mean), mean),
        (instruction(aten.cat.out, [x, y], 1, out=wide), wide),
        (instruction(aten.arange.start_out, 0, 10, 1, out=counts), counts),
        (instruction(aten.index_put_.default, out, [None, rows], torch.zeros(4, 2), False), out),
        (instruction(aten._to_copy.default, x, dtype=torch.float16, into=(half,)), half),
        (instruction(aten.clone.default, x, memory_format=torch.contiguous_format, into=(out,)), out),
        (instruction(aten.add_.Tensor, counts, 1), counts),
        (instruction(aten.gelu.out, x, approximate="tanh", out=out), out),
        (instruction(aten.split_copy.Tensor, x, 3, 1), x),
        (instruction(aten.bernoulli_.float, out, 0.5), out),
        (instruction(aten.full.default, [4, 6], 3, into=(out,)), out),
    ]


@pytest.mark.parametrize("index", range(15))
def test_graph_calls_do_what_python_calls_do(index: int) -> None:
    results = []
    for run_of in (_call, _run):
        code, changed = every_argument_kind(*tensors(0))[index]
        torch.manual_seed(4)
        run_of((code,))
        results.append(changed.clone())
    assert results[0].equal(results[1])


def _call(code: Code) -> None:
    runnable_of(code)()


def _run(code: Code) -> None:
    run = build_function(code)
    assert run is not None
    run()


def test_graph_keeps_order_and_folds_nothing() -> None:
    x, _, _, _ = tensors(1)
    filled, product = torch.zeros(3), torch.zeros(3)
    code = (
        instruction(aten.fill_.Scalar, filled, 2.0),
        instruction(aten.mul.out, filled, 3.0, out=product),  # equal contents at first: no constant may stand for both
        instruction(aten.fill_.Scalar, filled, 5.0),
        instruction(aten.add.out, product, filled, out=product),
        instruction(aten.neg.default, x),  # no op reads it
    )
    run = build_function(code)
    assert run is not None
    for _ in range(3):
        run()
        assert product.tolist() == [11.0] * 3


def test_inexpressible_code_is_left_to_python() -> None:
    flags, out = torch.tensor([True, False]), torch.zeros(2)
    inexpressible: Sequence[Any] = [
        instruction(aten.masked_fill_.Scalar, flags, flags, True),
        instruction(aten.split_copy.Tensor, out, 1, into=(out[:1], out[1:])),
        instruction(aten.neg.default, out, into=(torch.zeros(1).expand(2),)),
        instruction(aten.bernoulli_.float, out, 0.5, generator=torch.Generator()),
    ]
    assert [is_expressible((instr,)) for instr in inexpressible] == [False] * 4
    assert build_function((instruction(aten.zero_.default, out), inexpressible[0])) is None


def test_optimization_is_off_in_this_thread_until_the_outermost_call_ends() -> None:
    states: list[bool] = []

    def look() -> None:
        thread = Thread(target=lambda: states.append(torch._C._get_graph_executor_optimize()))
        thread.start()
        thread.join()
        states.append(torch._C._get_graph_executor_optimize())

    without_optimization(without_optimization(look))()
    assert states == [True, False]  # another thread turns its own
    assert torch._C._get_graph_executor_optimize()


def test_graphs_run_as_written_while_another_thread_runs_one() -> None:
    """Of two threads inside at once, neither folds what its tensors held when the graph was first run."""
    started, may_end = Event(), Event()

    def wait() -> None:
        started.set()
        assert may_end.wait(60)

    thread = Thread(target=without_optimization(wait))
    thread.start()
    assert started.wait(60)
    x, y, out = torch.ones(3), torch.ones(3), torch.zeros(3)
    results = []
    try:
        run = build_function((instruction(aten.add.Tensor, x, y, into=(out,)),))
        assert run is not None
        for number in range(4):
            x.fill_(number)
            run()
            results.append(out.tolist())
    finally:
        may_end.set()
        thread.join()
    assert results == [[number + 1.0] * 3 for number in range(4)]


def test_optimization_is_restored_after_a_failure() -> None:
    run = build_function((instruction(aten.index_select.out, torch.ones(2), 0, torch.tensor([5]), out=torch.ones(1)),))
    assert run is not None
    with pytest.raises(RuntimeError, match="index out of range"):
        run()
    assert torch._C._get_graph_executor_optimize()
