"""A loss by class as the loss of one column: its steps have the loss and weight of the whole, or are refused."""

import pytest
import torch

from tests.runtime.harness import same_bits
from tests.unit.judge.rewrite.cut_cases import T, evaluate, numbers, targets
from tmmu.ir.call_text import Argument, CallText
from tmmu.ir.parts.boxes import TensorWindow
from tmmu.ir.rewrite import CLASSES, COLUMNS, LOSS, NUMBERS, ROWS, WEIGHT
from tmmu.judge.rewrite.picked import picked_step


@pytest.mark.parametrize("reduction", [1, 2])
@pytest.mark.parametrize("ignored", [-100, -1])
@pytest.mark.parametrize(("rows", "classes"), [(3, 7), (70, 131), (4099, 5)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.usefixtures("threads")
def test_loss_by_class_is_that_of_one_column(
    dtype: torch.dtype, rows: int, classes: int, ignored: int, reduction: int
) -> None:
    log = torch.log_softmax(numbers(rows, classes, dtype=dtype), -1)
    wanted = targets(rows, classes)
    wanted[wanted < 0] = ignored
    text = CallText(
        operator="aten.nll_loss_forward.default", arguments=(T, T, [], reduction, ignored), results=(True, True)
    )
    loss, weight = evaluate(text, (log, wanted))
    made: dict[int, torch.Tensor] = {ROWS: torch.empty(rows, 1, dtype=dtype)}
    windows = [TensorWindow(0, tuple(tensor.shape), tensor.stride(), str(tensor.dtype)[6:]) for tensor in (log, wanted)]
    cut = rows // 2
    for part in ((CLASSES,), (COLUMNS,), (NUMBERS,), (WEIGHT,), (ROWS, 0, cut), (ROWS, cut, rows), (LOSS,)):
        step = picked_step(text, windows[0], windows[1], part)
        assert not isinstance(step, str)
        taken = [
            (made[maker] if maker >= 0 else (log, wanted)[-1 - maker])
            .view(-1)
            .as_strided(window.shape, window.stride, window.offset // (made | {-1: log, -2: wanted})[maker].itemsize)
            for maker, window in step.takes
        ]
        result = evaluate(step.text, taken)
        if part[0] == ROWS:
            made[ROWS][part[1] : part[2]] = result
        elif part[0] in (WEIGHT, LOSS):
            assert same_bits(result[part[0] == WEIGHT], weight if part[0] == WEIGHT else loss)
        else:
            made[part[0]] = result


def test_losses_that_are_of_no_column_are_refused() -> None:
    window = TensorWindow(0, (4, 3), (3, 1), "float32")
    columns = TensorWindow(0, (4,), (1,), "int64")
    good: tuple[Argument, ...] = (T, T, [], 1, -100)
    for arguments in ((T, T, T, 1, -100), (T, T, [], 0, -100), (T, T, [], 1, 0), (T, T, [], 1, 2)):
        text = CallText(operator="aten.nll_loss_forward.default", arguments=arguments, results=(True, True))
        assert isinstance(picked_step(text, window, columns, (CLASSES,)), str)
    text = CallText(operator="aten.nll_loss_forward.default", arguments=good, results=(True, True))
    assert isinstance(picked_step(text, window, columns._replace(dtype="uint8"), (CLASSES,)), str)
    for part in ((), (6,), (ROWS,), (ROWS, 0, 5), (ROWS, 2, 2), (LOSS, 0, 1)):
        assert isinstance(picked_step(text, window, columns, part), str)
