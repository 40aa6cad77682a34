"""What the Python interface is given by mistake: each is refused with a code, and never by another exception."""

import copy
import inspect
import math
import pickle
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import tmmu
from tmmu.runtime.execute.bind_request import BindRequest

VALUES: tuple[Any, ...] = (
    *(None, 3, -1, 2**70, True, math.nan, math.inf, -1.5, 1e300),
    *("x", "", "\0", "a" * 5000, "/nonexistent/a/b", "/dev/null/x", b"x"),
    *([], {}, set(), ("a",), object(), int, lambda: 0, torch.zeros(1)),
)
ACCEPTED = {
    "load": (),
    "plan": (VALUES[-2],),  # a function without arguments is a step
    "measure": (VALUES[-2],),
    "fits": (3,),
    "fits reserve": (3,),
    "largest": (3, 2**70),
    "over": (3,),
    "report against": (None,),
    "plan seed": (3,),
    "plan training": (None,),
    "plan world": (None,),
    "plan capacity_factor": (None, 3),
    "plan arenas": ([],),
    "measure plan": (None,),
    "bind kernels": ({},),
    "bind session": (None, *(value for value in VALUES if isinstance(value, str))),
    "bind weight_keys": ({},),
    "bind segments": (None,),
    "bind external": (None, {}),
    "bind variants": ([],),
    "bind scratch": (3, 2**70),
    **{f"{name} {option}": (None,) for name in ("plan", "measure") for option in ("loss", "optimizer", "autocast")},
    "plan preset": (None,),
    "measure training": (None,),
    "compile autocast": (None,),
    "compile seed": (3,),
    "compile budget": (None,),
    "compile fuse": (True,),
    "compile reserve": (3,),
    **{f"bind {option}": (True,) for option in ("replay", "adopt", "exact_strides")},
}


@cache
def parts() -> dict[str, Any]:
    net, x = nn.Linear(4, 4).eval(), torch.zeros(2, 4)
    plan, compiled = tmmu.plan(net, (x,), device="cpu"), tmmu.compile(net, (x,))
    request = compiled._request
    known = {"token": request.token, "weights": dict(net.named_parameters())}
    return {
        "net": net,
        "inputs": (x,),
        "plan": plan,
        "compiled": compiled,
        "diff": plan.diff(plan),
        "measured": tmmu.measure(net, (x,), plan=plan),
        "bind": partial(tmmu.bind, request.program, request.plan, **known),
    }


def method(part: str, name: str) -> Callable[[Any], Any]:
    def call(value: Any) -> Any:
        return getattr(parts()[part], name)(value)

    return call


def functions() -> Iterator[tuple[str, Callable[[Any], Any]]]:
    """Each argument of each public function and method: its name, and a call with one value for it."""
    call = {
        "plan": lambda **options: tmmu.plan(parts()["net"], parts()["inputs"], **options),
        "compile": lambda **options: tmmu.compile(parts()["net"], parts()["inputs"], **options),
        "measure": lambda **options: tmmu.measure(parts()["net"], parts()["inputs"], **options),
        "bind": lambda **options: parts()["bind"].func(*parts()["bind"].args, **parts()["bind"].keywords | options),
    }
    for name in ("plan", "compile", "measure"):
        yield name, getattr(tmmu, name)
        yield f"{name} inputs", lambda value, name=name: getattr(tmmu, name)(parts()["net"], value)
        for option, field in inspect.signature(getattr(tmmu, name)).parameters.items():
            if field.kind is field.KEYWORD_ONLY:
                yield f"{name} {option}", lambda value, name=name, option=option: call[name](**{option: value})
    yield "bind", lambda value: tmmu.bind(value, value)
    for option in inspect.signature(BindRequest).parameters:
        if option not in ("program", "plan"):
            yield f"bind {option}", lambda value, option=option: call["bind"](**{option: value})
    yield "load", tmmu.load
    yield "fits", method("plan", "fits")
    yield "fits run", lambda value: parts()["plan"].fits("24GB", run=value)
    yield "fits reserve", lambda value: parts()["plan"].fits("24GB", reserve=value)
    yield "largest", method("plan", "largest")
    yield "max_size", lambda value: parts()["plan"].max_size(value, "24GB")
    yield "max_size size", lambda value: parts()["plan"].max_size("batch", value)
    for option in ("inputs", "reserve", "fit", "near"):
        yield f"max_size {option}", lambda value, option=option: parts()["plan"].max_size("batch", 1, **{option: value})
    yield "diff", method("plan", "diff")
    yield "diff names", lambda value: parts()["plan"].diff(parts()["plan"], names=value)
    yield "report against", lambda value: parts()["plan"].report("plan.html", against=value)
    yield "save", method("plan", "save")
    yield "report", method("plan", "report")
    yield "over", method("diff", "over")
    yield "call", method("compiled", "__call__")
    yield "MemoryPlan", lambda value: tmmu.MemoryPlan(graph=value, plan=value)
    yield "PlanDiff", lambda value: tmmu.PlanDiff(report=value)
    yield (
        "CompiledModel",
        lambda value: tmmu.CompiledModel(value, plan=value, request=value, form=value, assumed=value, autocast=value),
    )


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("name", [name for name, _ in functions()])
def test_wrong_value_is_refused_with_a_code(name: str) -> None:
    call = dict(functions())[name]
    for value in VALUES:
        accepted = ACCEPTED.get(name, ())
        is_file = name in ("save", "report") and (value == "x" or (name == "report" and value is None))
        if is_file or any(value is one or (type(value) is type(one) and value == one) for one in accepted):
            call(value)
            continue
        with pytest.raises(tmmu.TmmuError) as caught:
            call(value)
        assert caught.value.code != "INTERNAL", (name, value)
        assert caught.value.fix, (name, value)


def test_every_public_method_with_an_argument_is_swept() -> None:
    swept = {name.split()[0] for name, _ in functions()}
    for kind in (tmmu.MemoryPlan, tmmu.PlanDiff, tmmu.MeasuredRun, tmmu.CompiledModel):
        for name, method in inspect.getmembers(kind, inspect.isfunction):
            if not name.startswith("_") and len(inspect.signature(method).parameters) > 1:
                assert name in swept, (kind, name)
    assert {"plan", "compile", "measure", "bind", "load"} <= swept


@pytest.mark.parametrize("value", [3, "x", None])
def test_weight_that_is_no_tensor_is_refused(value: object) -> None:
    with pytest.raises(tmmu.TmmuError, match="weights has a") as caught:
        parts()["bind"](weights={"weight": value, "bias": torch.zeros(4)})
    assert caught.value.code == "INVALID_CONFIG"


@pytest.mark.parametrize("path", [".", "..", "/"])
def test_folder_is_no_plan(path: str) -> None:
    with pytest.raises(tmmu.TmmuError) as caught:
        tmmu.load(path)
    assert caught.value.code in ("INVALID_CONFIG", "PLAN_CORRUPT")


@pytest.mark.parametrize("function", [pickle.dumps, copy.copy, copy.deepcopy])
def test_what_has_memory_of_its_own_is_not_copied(function: Callable[[Any], Any]) -> None:
    for value in (parts()["compiled"], parts()["bind"]()):
        with pytest.raises(tmmu.TmmuError, match="not copied and not pickled") as caught:
            function(value)
        assert caught.value.code == "UNSUPPORTED_OP"


@pytest.mark.parametrize("name", ["plan", "diff", "measured"])
def test_values_are_copied_and_pickled_whole(name: str) -> None:
    value = parts()[name]
    for twin in (pickle.loads(pickle.dumps(value)), copy.copy(value), copy.deepcopy(value)):
        assert twin == value
        assert repr(twin) == repr(value)
