"""A module as Inductor writes it for a GPU, by hand, and the group that it is of; Triton as what takes notes."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import torch

from tmmu.fusion.group import CHANGED, MADE, READ, Base, FusionGroup, GroupMember, TensorRef
from tmmu.fusion.window_views import Strided

ROW: Final = Strided((64,), (1,), "float32")


def group_of_two() -> FusionGroup:
    """``x + 1`` of what it reads, added to what it changes."""
    aten = torch.ops.aten
    return FusionGroup(
        bases=(
            Base(kind=READ, window=ROW, result=ROW),
            Base(kind=CHANGED, window=ROW, result=ROW),
            Base(kind=MADE, window=ROW, result=ROW, is_result=True),
        ),
        members=(
            GroupMember(operator=aten.add.Scalar, args=(TensorRef(0, ROW), 1), kwargs=(), results=(2,)),
            GroupMember(operator=aten.add_.Tensor, args=(TensorRef(1, ROW), TensorRef(2, ROW)), kwargs=(), results=()),
        ),
    )


KERNEL: Final = """
import triton

@triton_heuristics.pointwise(
    size_hints={'x': 64},
    inductor_meta={'grid_type': 'Grid1D', 'atomic_add_found': False},
)
@triton.jit
def NAME(ARGUMENTS, xnumel, XBLOCK : tl.constexpr):
    pass
"""
MODULE: Final = """
from torch._C import _cuda_getCurrentRawStream as get_raw_stream
triton_first = async_compile.triton('triton_first', '''FIRST''', device_str='cuda')
triton_second = async_compile.triton('triton_second', '''SECOND''', device_str='cuda')

class Runner:
    def call(self, args):
        x, y = args
        args.clear()
        with torch.cuda._DeviceGuard(0):
            torch.cuda.set_device(0)
            x = copy_if_misaligned(x)
            buf0 = empty_strided_cuda((64, ), (1, ), torch.float32)
            buf1 = empty_strided_cuda((8, ), (1, ), torch.float16)
            raw_stream0 = get_raw_stream(0)
            triton_first.run(x, buf1, 64, stream=raw_stream0)
            triton_second.run(buf1, buf0, y, y, 64, stream=raw_stream0)
            del x
        return (buf0, )
"""


def module_text() -> str:
    """Two kernels, of which the second reads what the first left in scratch."""
    first = KERNEL.replace("NAME", "triton_first").replace("ARGUMENTS", "in_ptr0, out_ptr0")
    second = KERNEL.replace("NAME", "triton_second").replace("ARGUMENTS", "in_ptr0, out_ptr0, in_ptr1, out_ptr1")
    return MODULE.replace("FIRST", first).replace("SECOND", second)


@dataclass(slots=True)
class NotedLaunch:
    """One launch, as Triton would have it."""

    kernel: str
    grid: tuple[int, ...]
    tensors: tuple[torch.Tensor, ...]
    options: dict[str, Any]


@dataclass(slots=True)
class Notes:
    """What stands for the module ``triton`` in a file of launches."""

    launches: list[NotedLaunch] = field(default_factory=list)

    def jit(self, function: Any) -> "NotedKernel":
        """As ``triton.jit``."""
        return NotedKernel(function.__name__, self)


@dataclass(frozen=True, slots=True)
class NotedKernel:
    """What ``triton.jit`` returns."""

    name: str
    notes: Notes

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        def launch(*tensors: torch.Tensor, **options: Any) -> None:
            self.notes.launches.append(NotedLaunch(self.name, grid, tensors, options))

        return launch


triton = Notes()
IMPORTS: Final = f"from {__name__} import triton\nclass tl:\n    constexpr = int\n"


@contextmanager
def noted_launches() -> Iterator[list[NotedLaunch]]:
    """The launches of a block."""
    triton.launches.clear()
    yield triton.launches
