"""Compiled kernels in their plan: near the members, tried before they run, and gone unfused where they are wrong."""

import logging
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.compiler import needs_compiler
from tests.runtime.harness import TOKEN, plan_of, weights_of
from tests.unit.fusion.programs import Cache, Net, cache_inputs, find_regions, net_inputs, program_of
from tmmu.errors import InvalidConfig, PlanUnsound
from tmmu.fusion import kernel_library
from tmmu.fusion.fused_kernels import Fusion, Guard, fuse_for_run
from tmmu.fusion.fused_operators import is_fused
from tmmu.fusion.kernel_forms import KernelForms
from tmmu.fusion.kernel_library import NoCompiler
from tmmu.fusion.kernel_source import generate_kernel
from tmmu.ir.graph import Graph
from tmmu.ir.plan import segment_bytes
from tmmu.ir.program import Program
from tmmu.runtime.compare.sanitize import run_sanitized
from tmmu.runtime.execute.bind import bind
from tmmu.runtime.execute.executor import Executor
from tmmu.runtime.kernels.kernel_calls import is_kernel_call
from tmmu.runtime.steps.fused_trial import is_near

Make = Callable[[], torch.nn.Module]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("kernels")


def stack_bytes(graph: Graph) -> int:
    return segment_bytes(plan_of(Program(graph=graph, calls=())).arenas, "stack")


GUARD = Guard(stack_bytes=stack_bytes)


def bind_both(
    make: Make, inputs: Mapping[str, torch.Tensor], folder: Path, **options: Any
) -> tuple[Executor, Executor, Fusion]:
    """The program as it is, and fused."""
    torch.manual_seed(0)
    module = make()
    program = program_of(make, dict(inputs))
    fusion = fuse_for_run(program, GUARD, folder)
    weights = weights_of(module)
    plain = bind(program, plan_of(program), token=TOKEN, weights=weights)
    fused = bind(
        fusion.program, plan_of(fusion.program), token=TOKEN, weights=weights, kernels=fusion.kernels, **options
    )
    return plain, fused, fusion


def kernels_in(executor: Executor) -> int:
    return sum(any(map(is_kernel_call, step.code)) for step in executor.bound.steps)


@needs_compiler
@pytest.mark.parametrize("replay", [True, False])
@pytest.mark.parametrize(
    "cases",
    [
        [(Cache, cache_inputs())],
        pytest.param([(Net, net_inputs()), (Net, net_inputs(rows=1))], marks=pytest.mark.slow),
    ],
)
def test_kernels_are_near_their_members_captured_or_one_by_one(folder: Path, cases: Any, replay: bool) -> None:
    for make, inputs in cases:
        plain, fused, fusion = bind_both(make, inputs, folder, replay=replay)
        assert kernels_in(fused) == sum(is_fused(call.operator) for call in fusion.program.calls) > 0
        for _ in range(3):
            for a, b in zip(fused.run(inputs), plain.run(inputs), strict=True):
                assert is_near(a, b)
        for name in plain.states:
            dtype = torch.int64 if name == "places" else torch.float32
            assert is_near(fused.state(name).view(dtype), plain.state(name).view(dtype))


@needs_compiler
def test_neighbouring_kernels_are_one_call(folder: Path) -> None:
    _, fused, fusion = bind_both(Cache, cache_inputs(), folder)
    assert len(fusion.program.calls) == kernels_in(fused) > 1
    assert fused.launch_count == 1


@needs_compiler
def test_a_warm_start_generates_and_compiles_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bind_both(Cache, cache_inputs(), folder)

    def refuse(*_: Any, **__: Any) -> Any:
        raise AssertionError("made again")

    monkeypatch.setattr(kernel_library, "generate_kernel", refuse)
    monkeypatch.setattr(kernel_library, "_compile", refuse)
    monkeypatch.setattr("tmmu.fusion.kernel_forms.generate_kernel", refuse)
    _, fused, _ = bind_both(Cache, cache_inputs(), folder)
    assert kernels_in(fused) > 0


@needs_compiler
def test_the_sanitizer_runs_members_beside_each_kernel(folder: Path) -> None:
    torch.manual_seed(0)
    module, inputs = Cache(), cache_inputs()
    _, fused, fusion = bind_both(Cache, inputs, folder)
    report = run_sanitized(fusion.program, fused, weights_of(module), inputs, token=TOKEN)
    assert report.compared > 0


def wrong(pattern: str, replacement: str) -> Callable[[Any], Any]:
    """A generator of kernels with one thing wrong."""

    def generate(group: Any, *, for_plan: bool) -> Any:
        source = generate_kernel(group, for_plan=for_plan)
        text, count = re.subn(pattern, replacement, source.text, count=1)
        return type(source)(form=source.form, types=source.types, text=text) if count else source

    return generate


MUTATIONS = {
    "another sum": (r"(tmp\d+) \+ (tmp\d+);", r"\1 - \2;"),
    "another product": (r"(tmp\d+) \* (tmp\d+);", r"\1 + \2;"),
    "another constant": (r"static_cast<float>\(0\.5\)", "static_cast<float>(0.25)"),
    "a row too few": (r"x0<static_cast<int64_t>\((\d+)L\)", r"x0<static_cast<int64_t>(\1L) / 2"),
    "beyond its end": (r"\.store\((\w+) \+ static_cast<int64_t>\(", r".store(\1 + 8 + static_cast<int64_t>("),
}


SLOW_MUTATIONS = ("another sum", "a row too few", "beyond its end")


@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize(
    "mutation",
    [name if name in SLOW_MUTATIONS else pytest.param(name, marks=pytest.mark.long) for name in MUTATIONS],
)
def test_a_wrong_kernel_is_found_before_it_runs(mutation: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    changed: list[str] = []
    generate = wrong(*MUTATIONS[mutation])

    def note(group: Any, *, for_plan: bool) -> Any:
        source, right = generate(group, for_plan=for_plan), generate_kernel(group, for_plan=for_plan)
        if source.text != right.text:
            changed.append(group.name)
        return source

    monkeypatch.setattr(kernel_library, "generate_kernel", note)
    inputs = net_inputs()
    plain, fused, _ = bind_both(Net, inputs, tmp_path)
    assert changed
    unfused = [step.name for step in fused.bound.steps if step.code is step.fallback]
    assert all(any(name in step for step in unfused) for name in changed)
    for a, b in zip(fused.run(inputs), plain.run(inputs), strict=True):
        assert is_near(a, b)


@needs_compiler
@pytest.mark.slow
def test_a_kernel_that_is_wrong_on_other_numbers_is_found_by_the_sanitizer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is right on the numbers of a trial, which are below 50."""
    generate = wrong(
        r"auto tmp0 = at::vec::Vectorized<float>::loadu\(([^;]*)\);",
        r"auto tmp0 = at::vec::minimum(at::vec::Vectorized<float>::loadu(\1), at::vec::Vectorized<float>(50.0f));",
    )
    monkeypatch.setattr(kernel_library, "generate_kernel", generate)
    inputs = {"x": torch.randn(4, 16) * 1000}
    torch.manual_seed(0)
    module = Net()
    _, fused, fusion = bind_both(Net, inputs, tmp_path)
    assert kernels_in(fused) > 0
    with pytest.raises(PlanUnsound, match="further from its members"):
        run_sanitized(fusion.program, fused, weights_of(module), inputs, token=TOKEN)


@pytest.fixture
def no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> Any:
        raise NoCompiler("no compiler")

    monkeypatch.setattr(kernel_library, "machine_text", refuse)
    monkeypatch.setattr(kernel_library, "_operator_library", [])


def test_without_a_compiler_nothing_is_fused_and_one_line_says_so(
    no_compiler: None, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    program = program_of(Net, net_inputs())
    with caplog.at_level(logging.WARNING, logger="tmmu"):
        fusion = fuse_for_run(program, GUARD, tmp_path)
    assert fusion.program is program
    assert fusion.reason == "no compiler"
    assert [record.getMessage() for record in caplog.records] == [
        "nothing is fused: no kernel can be compiled here: no compiler"
    ]


def test_a_compiler_that_is_none_is_a_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def search() -> str:
        raise RuntimeError("No working C++ compiler found\nin two lines")

    monkeypatch.setattr(kernel_library.torch_private.cpp_builder, "get_cpp_compiler", search)
    monkeypatch.setattr(kernel_library, "_operator_library", [])
    program = program_of(Net, net_inputs())
    assert fuse_for_run(program, GUARD, tmp_path).reason == "No working C++ compiler found"
    groups = [region.group for region in find_regions(program)]
    assert all(KernelForms(None).form_of(group) is not None for group in groups)  # a plan needs none


def test_a_folder_that_cannot_be_written_is_one_of_the_process(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    folder = kernel_library.usable_folder(file / "kernels")
    assert folder.is_dir()
    assert not folder.is_relative_to(tmp_path)
    assert kernel_library.usable_folder(tmp_path / "new") == tmp_path / "new"
    assert kernel_library.usable_folder(tmp_path / "new") == tmp_path / "new"


def test_code_is_run_from_no_folder_that_others_may_write(tmp_path: Path) -> None:
    folder = tmp_path / "kernels"
    assert kernel_library.usable_folder(folder) == folder
    assert folder.stat().st_mode & 0o077 == 0
    folder.chmod(0o777)
    assert kernel_library.usable_folder(folder) != folder


def test_forms_that_cannot_be_kept_are_made_again(tmp_path: Path) -> None:
    (region, *_) = find_regions(program_of(Cache, cache_inputs()))
    (tmp_path / "forms").touch()
    assert KernelForms(tmp_path).form_of(region.group) is not None


def test_a_program_of_a_gpu_stays_as_it_is_where_triton_is_not_there(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "triton", None)
    program = program_of(Net, net_inputs())
    program = replace(program, graph=replace(program.graph, target="cuda"))
    with caplog.at_level(logging.WARNING, logger="tmmu"):
        fusion = fuse_for_run(program, GUARD, tmp_path)
    assert fusion.program is program
    (line,) = (record.getMessage() for record in caplog.records)
    assert line.startswith("nothing is fused: no kernel can be compiled here: Triton is not there")
    assert fusion.reason.startswith("Triton is not there")
    assert list(tmp_path.iterdir()) == []


def test_a_fused_plan_runs_its_members_where_no_compiler_is(no_compiler: None, tmp_path: Path) -> None:
    torch.manual_seed(0)
    module, inputs = Net(), net_inputs()
    program = program_of(Net, inputs)
    fusion = fuse_for_run(program, GUARD, tmp_path, is_planned=True)
    assert any(is_fused(call.operator) for call in fusion.program.calls)
    fused = bind(fusion.program, plan_of(fusion.program), token=TOKEN, weights=weights_of(module))
    plain = bind(program, plan_of(program), token=TOKEN, weights=weights_of(module))
    for a, b in zip(fused.run(inputs), plain.run(inputs), strict=True):
        assert a.equal(b)


class Looked(torch.nn.Module):
    """Rows of a table by numbers that may be out of range, many enough for more than one thread."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.norm = torch.nn.Embedding(10, 64), torch.nn.LayerNorm(64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(self.table(x) * 2)


@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize("replay", [True, False])
@pytest.mark.parametrize("threads", [1, 2])
def test_a_number_out_of_range_is_an_error_and_not_the_end(folder: Path, threads: int, replay: bool) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        inputs = {"x": torch.ones(64, 64, dtype=torch.int64)}
        plain, fused, _ = bind_both(Looked, inputs, folder, replay=replay)
        assert kernels_in(fused) == 1
        for place in (10, -1, 1 << 40):
            wrong = inputs["x"].clone()
            wrong[33, 5] = place
            with pytest.raises(InvalidConfig, match="index out of range in a fused kernel"):
                fused.run({"x": wrong})
        assert is_near(fused.run(inputs)[0], plain.run(inputs)[0])
    finally:
        torch.set_num_threads(before)


@needs_compiler
@pytest.mark.slow
def test_a_text_that_the_compiler_refuses_leaves_all_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its op runs its members; a line says which, in the run that compiles and in one that finds the library."""
    torch.manual_seed(0)
    inputs = cache_inputs()
    (broken, *others) = [region.group for region in find_regions(program_of(Cache, inputs))]
    assert others

    def generate(group: Any, *, for_plan: bool) -> Any:
        source = generate_kernel(group, for_plan=for_plan)
        is_other = for_plan or group.digest != broken.digest
        return source if is_other else replace(source, text=source.text.replace("{", "{ no such thing;", 1))

    monkeypatch.setattr(kernel_library, "generate_kernel", generate)
    for _ in range(2):
        caplog.clear()
        with caplog.at_level(logging.WARNING, logger="tmmu"):
            plain, fused, fusion = bind_both(Cache, inputs, tmp_path)
        assert kernels_in(fused) == sum(is_fused(call.operator) for call in fusion.program.calls) - 1
        (line,) = [record.getMessage() for record in caplog.records]
        assert f"for want of a kernel here: {broken.name}: kernel_{broken.digest}:" in line
        assert line.endswith(fusion.reason)
        for a, b in zip(fused.run(inputs), plain.run(inputs), strict=True):
            assert is_near(a, b)
        monkeypatch.setattr(kernel_library, "_compile", None)  # the second one finds all there


@needs_compiler
@pytest.mark.slow
def test_a_damaged_library_is_compiled_again(tmp_path: Path) -> None:
    for name, damage in (("empty", b""), ("cut", b"\x7fELF and no more")):
        first = tmp_path / name
        program = program_of(Net, net_inputs())
        (first / "x").mkdir(parents=True)
        groups = [region.group for region in find_regions(program)]
        forms = {group.name: form for group in groups if (form := KernelForms(None).form_of(group))}
        path = kernel_library.library_path(groups, first)
        path.write_bytes(damage)
        kernels, counts = kernel_library.load_kernels(groups, forms, first)
        assert (len(kernels), counts.compiled) == (len(groups), True)


@pytest.mark.parametrize(
    "damage", [b"", b"{", b'{"pointers": 3}', b'{"pointers": [], "scratch": [-1]}', b"[]", b'"x"', b"[" * 100_000]
)
def test_a_damaged_form_is_made_again(damage: bytes, tmp_path: Path) -> None:
    (region, *_) = find_regions(program_of(Cache, cache_inputs()))
    form = KernelForms(tmp_path).form_of(region.group)
    (path,) = tmp_path.glob("forms/*.json")
    path.write_bytes(damage)
    forms = KernelForms(tmp_path)
    assert (forms.form_of(region.group), forms.generated) == (form, 1)
    assert KernelForms(tmp_path).form_of(region.group) == form


def test_forms_are_those_of_any_machine() -> None:
    """A plan's form is generated for fixed vectors and one thread, whatever is set."""
    program = program_of(Net, net_inputs())
    threads = torch.get_num_threads()
    forms = []
    try:
        for count in (1, 2):
            torch.set_num_threads(count)
            kept = KernelForms(None)
            forms.append([kept.form_of(region.group) for region in find_regions(program)])
    finally:
        torch.set_num_threads(threads)
    assert forms[0] == forms[1]
