"""What C++ asks a fake tensor for most, its device, is answered by the recorder, as torch would answer."""

from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tmmu.passes.capture.record.recorder import Recorder
from tmmu.torch_private import FakeTensorMode, in_kernel_invocation_manager

QUESTION = torch.ops.prim.device.default


class _Questions(TorchDispatchMode):
    """Counts the questions for a device that reach the mode below."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += func is QUESTION
        return func(*args, **kwargs or {})


@pytest.mark.parametrize("pauses", [False, True])
def test_no_question_for_a_device_reaches_the_fake_mode(pauses: bool) -> None:
    with FakeTensorMode(), _Questions() as questions:
        recorder = Recorder()
        weight = torch.nn.Parameter(torch.empty(4, 4))
        recorder.declare(weight, role="parameter", name="weight")
        asked = questions.count
        with recorder:
            if pauses:
                with recorder.pause():
                    (weight @ weight).chunk(2)
            else:
                (weight @ weight).chunk(2)[0].sum().backward()
            devices = {QUESTION(weight), weight.device}
        assert devices == {torch.device("cpu")}
        assert questions.count == asked
        assert QUESTION(weight) == torch.device("cpu")
        assert questions.count == asked + 1, "the same question is seen where no recorder answers it"


def test_in_a_kernel_the_device_is_that_of_the_meta_tensor() -> None:
    with FakeTensorMode() as fake, Recorder() as recorder:
        tensor = torch.empty(2)
        with in_kernel_invocation_manager(fake):
            answer = recorder.__torch_dispatch__(QUESTION, (type(tensor),), (tensor,))
        assert answer == torch.device("meta")
