"""Every dtype that torch has runs in a plan, with eager's bits, or is refused by name."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from tests.runtime.harness import TOKEN, bind_module, capture_program, plan_of, run_checked, run_eager, same_bits
from tmmu.backend import reports
from tmmu.errors import UnsupportedOp
from tmmu.runtime.compare.random_tensors import random_inputs
from tmmu.runtime.compare.sanitize import run_sanitized
from tmmu.runtime.execute.bind import bind
from tmmu.runtime.weights.safetensors_files import stored_tensors

pytestmark = pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
FLOAT8 = (
    torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz, torch.float8_e8m0fnu,
)  # fmt: skip
OTHERS = (
    torch.uint16, torch.uint32, torch.uint64, torch.int8, torch.int16, torch.bool, torch.complex32, torch.complex64,
    torch.complex128, torch.float16, torch.bfloat16, torch.float64,
)  # fmt: skip


class Moves(nn.Module):
    """What a tensor of any dtype can take: copies, windows, casts."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        wide = x.real if x.is_complex() else x
        return x.clone(), x.t().contiguous(), torch.cat([x, x]), wide.to(torch.float32) * 2, x[1:].clone()


class Scaled(nn.Module):
    """Weights stored short and used long, as of a quantized checkpoint."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(6, 5, dtype=dtype), requires_grad=False)
        self.register_buffer("scale", torch.tensor(0.5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ (self.weight.to(x.dtype) * self.scale).t()


def numbers(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(3)
    return (torch.rand(shape, generator=generator) * 3).to(dtype)


@pytest.mark.parametrize("dtype", [*FLOAT8, *OTHERS])
def test_tensors_of_a_dtype_have_eagers_bits_and_pass_the_sanitizer(dtype: torch.dtype) -> None:
    inputs = {"x": numbers(dtype, 4, 6)}
    program, _ = capture_program(Moves, inputs)
    executor = bind(program, plan_of(program), token=TOKEN, weights={})
    results, expected = executor(**inputs), run_eager(Moves(), inputs)
    assert len(results) == len(expected)
    assert all(map(same_bits, results, expected))
    drawn = random_inputs(executor.inputs, 1)
    assert run_sanitized(program, executor, {}, drawn, token=TOKEN).ops == len(program.calls)


@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.parametrize("dtype", [*FLOAT8, *OTHERS])
def test_compiled_tensors_of_a_dtype_have_eagers_bits(dtype: torch.dtype) -> None:
    x = numbers(dtype, 4, 6)
    results = torch.compile(Moves(), backend="tmmu")(x)
    assert all(map(same_bits, results, Moves()(x)))
    assert [report.planned for report in reports()] == [1]


@pytest.mark.parametrize("dtype", FLOAT8)
def test_short_weights_are_read_from_a_file(dtype: torch.dtype, tmp_path: Path) -> None:
    real, inputs = Scaled(dtype), {"x": numbers(torch.float32, 4, 5)}
    with torch.no_grad():
        real.weight.copy_(numbers(dtype, 6, 5))
    path = tmp_path / "weights.safetensors"
    try:
        save_file({name: tensor.detach() for name, tensor in real.state_dict().items()}, path)
    except (ValueError, KeyError):
        pytest.skip(f"safetensors does not write {dtype}")
    program, _ = capture_program(lambda: Scaled(dtype), inputs)
    executor = bind(program, plan_of(program), token=TOKEN, weights=stored_tensors(path))
    assert same_bits(executor(**inputs)[0], run_eager(real, inputs)[0])


def test_packed_dtype_is_planned_and_refused_by_name_when_it_is_bound() -> None:
    inputs = {"x": torch.zeros(4, 6, dtype=torch.uint8).view(torch.float4_e2m1fn_x2)}
    program, _ = capture_program(Transposed, inputs)
    plan = plan_of(program)
    with pytest.raises(UnsupportedOp, match="float4_e2m1fn_x2: a model of them is planned, and not run"):
        bind(program, plan, token=TOKEN, weights={})


class Transposed(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.t().contiguous()


def test_weights_of_eight_bits_without_a_file_need_no_default_dtype() -> None:
    inputs = {"x": numbers(torch.float32, 4, 5)}
    for dtype in FLOAT8:
        real = Scaled(dtype)
        executor = bind_module(lambda dtype=dtype: Scaled(dtype), real, inputs)
        assert same_bits(executor(**inputs)[0], run_eager(real, inputs)[0])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
@pytest.mark.usefixtures("fresh_compiler")
def test_bags_of_each_dtype_run_in_a_plan(dtype: torch.dtype, mode: str) -> None:
    bag = nn.EmbeddingBag(10, 5, mode=mode, dtype=dtype)
    indices, offsets = torch.tensor([1, 9, 3, 3, 0]), torch.tensor([0, 3])
    expected = bag(indices, offsets)
    expected.sum().backward()
    gradient = bag.weight.grad
    bag.weight.grad = None
    result = torch.compile(bag, backend="tmmu")(indices, offsets)
    result.sum().backward()
    assert same_bits(result.detach(), expected.detach())
    assert gradient is not None
    assert bag.weight.grad is not None
    assert same_bits(bag.weight.grad, gradient)
    assert all(not report.plain for report in reports())


@pytest.mark.usefixtures("fresh_compiler")
def test_graph_whose_kernel_disagrees_with_its_fake_is_run_by_torch_and_tried_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with torch.library._scoped_library("tmmu_tests", "FRAGMENT") as library:
        library.define("turned(Tensor x) -> Tensor")
        library.impl("turned", lambda x: (x * 2).t().contiguous().t(), "CPU")
        library.impl("turned", lambda x: torch.empty(x.shape, dtype=x.dtype, device=x.device), "Meta")
        x = numbers(torch.float32, 3, 4)
        compiled = torch.compile(lambda x: torch.ops.tmmu_tests.turned(x), backend="tmmu")  # noqa: PLW0108 - Dynamo takes functions
        for _ in range(3):
            result = compiled(x)
            assert result.stride() == (1, 3)
            assert same_bits(result, x * 2)
    (report,) = reports()
    assert report.planned == 0
    assert list(report.plain.values()) == [3]
    assert sum("torch's kernel makes" in record.getMessage() for record in caplog.records) == 1


READ_AS_ANOTHER = """
import torch
from torch import nn
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(8, 8).to({dtype}), requires_grad=False)
        self.register_buffer("codes", torch.arange(64).view(8, 8).to({dtype}))
    def forward(self, x):
        return self.weight.view({reader}) + 0, self.codes.view({reader}) + 0, x * 2
model = Net
inputs = lambda: (torch.zeros(4, 8),)
"""


@pytest.mark.parametrize(
    ("dtype", "reader"),
    [("float8_e4m3fn", "uint8"), ("bfloat16", "int16"), ("float32", "int32"), ("complex64", "int64")],
)
def test_weights_and_constants_may_be_read_as_another_dtype_alone(tmp_path: Path, dtype: str, reader: str) -> None:
    """Random weights and constants of the file have the dtype of the model, whatever reads them first."""
    text = READ_AS_ANOTHER.format(dtype=f"torch.{dtype}", reader=f"torch.{reader}")
    (tmp_path / "net.py").write_text(text)
    report = run_checked(f"{tmp_path / 'net.py'}:Net", sanitize=True)
    assert (report.checked, report.same, report.near) == (3, 3, 0)
