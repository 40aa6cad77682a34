"""The launches that Inductor's module makes, read off it: what each pointer is, and what is refused."""

from typing import Any

import pytest
import torch

from tests.unit.fusion.programs import Net, find_regions, net_inputs, program_of
from tests.unit.fusion.triton.modules import group_of_two, module_text
from tmmu.fusion.call_form import NotOneKernel
from tmmu.fusion.triton.launch_source import MAX_LAUNCHES, generate_launches, launches_of


def test_each_pointer_is_an_argument_a_result_or_typed_scratch() -> None:
    source = launches_of(group_of_two(), module_text())
    assert source.form.pointers == (("read", 0), ("scratch", 0), ("result", 0), ("changed", 0))
    assert (source.form.scratch, source.dtypes) == ((16,), ("", "float16", "", ""))
    assert [launch.text.name for launch in source.launches] == ["triton_first_0", "triton_second_1"]
    assert [launch.places for launch in source.launches] == [(0, 1), (1, 2, 3, 3)]
    assert {launch.numbers for launch in source.launches} == {(64,)}


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("triton_first.run(x, buf1,", "triton_first.run(buf1, x,", "writes argument 0"),
        ("return (buf0, )", "return (y, )", "a result that is an argument"),
        ("return (buf0, )", "return (buf0, buf1)", "other results"),
        ("return (buf0, )", "return (buf1, )", "a result that is an argument"),
        ("(64, ), (1, ), torch.float32", "(64, ), (2, ), torch.float32", "lies otherwise"),
        ("triton_first.run(x, buf1, 64,", "triton_first.run(x, buf1, 64, 0.5,", "something else"),
        ("triton_second.run(buf1, buf0, y, y, 64, stream=raw_stream0)", "pass", "does not write"),
        ("def call(", "def other(", "called otherwise"),
        ("            del x", "            for _ in range(20): triton_first.run(x, buf1, 64, stream=0)", "22 kernels"),
    ],
)
def test_a_module_that_does_something_else_is_refused(old: str, new: str, why: str) -> None:
    text = module_text()
    assert old in text
    with pytest.raises(NotOneKernel, match=why):
        launches_of(group_of_two(), text.replace(old, new))
    assert MAX_LAUNCHES < 22


def test_a_call_of_anything_else_has_no_name() -> None:
    text = module_text().replace("            del x", "            extern_kernels.mm(x, x, out=buf0)")
    with pytest.raises(NameError, match="extern_kernels"):
        launches_of(group_of_two(), text)


@pytest.mark.slow
def test_source_is_the_same_whether_a_gpu_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    (*_, region) = find_regions(program_of(Net, net_inputs()))
    source = generate_launches(region.group)

    def other(*_: Any) -> Any:
        raise AssertionError("the machine is asked for its GPU")

    monkeypatch.setattr(torch.cuda, "is_available", other)
    monkeypatch.setattr(torch.cuda, "get_device_capability", other)
    monkeypatch.setattr(torch.cuda, "get_device_properties", other)
    assert generate_launches(region.group) == source
    assert len(source.launches) == 1
    assert source.form.scratch == ()
    assert sorted(source.form.pointers) == [*(("read", place) for place in range(4)), ("result", 0)]
    assert torch.cuda.is_available is other  # put back as it was found
