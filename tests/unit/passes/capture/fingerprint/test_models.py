import types
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from tests.unit.passes.nets import Holder, Net, digest, look, multiplier
from tmmu.ir.key import NoKey
from tmmu.passes.capture.fingerprint import Fingerprint

BASE = digest(Net())


def test_the_same_model_made_twice_is_the_same() -> None:
    assert {digest(Net()) for _ in range(3)} == {BASE}


def test_weights_do_not_count() -> None:
    other = Net()
    nn.init.ones_(other.a.weight)
    assert digest(other) == BASE
    assert digest(Net(), torch.ones(2, 4)) != BASE  # the values of an input may steer a trace


def test_looking_changes_nothing() -> None:
    net = Net()
    before = list(net.__dict__)
    assert digest(net) == digest(net) == BASE
    assert list(net.__dict__) == before


def untied(net: Net) -> None:
    net.b.weight = nn.Parameter(net.a.weight.detach().clone())


def replaced(name: str, value: Any) -> Callable[[Net], None]:
    return lambda net: setattr(net, name, value)


def strided(net: Net) -> None:
    net.a.weight = nn.Parameter(torch.empty(4, 4).t())


def windowed(net: Net) -> None:
    net.a.weight = nn.Parameter(torch.empty(5, 4)[1:])


def shared_storage(net: Net) -> None:
    whole = torch.empty(2, 4, 4)
    net.a.weight, net.b.weight = nn.Parameter(whole[0]), nn.Parameter(whole[1])


def two_storages(net: Net) -> None:
    one, other = torch.empty(2, 4, 4), torch.empty(2, 4, 4)
    net.a.weight, net.b.weight = nn.Parameter(one[0]), nn.Parameter(other[1])


def patched(net: Net) -> None:
    net.act.forward = types.MethodType(lambda self, x: x, net.act)  # type: ignore[method-assign]


def patched_otherwise(net: Net) -> None:
    net.act.forward = types.MethodType(lambda self, x: x + 1, net.act)  # type: ignore[method-assign]


def with_gradient(net: Net) -> None:
    net.a.weight.grad = torch.zeros(4, 4)


CHANGES: dict[str, Callable[[Net], object]] = {
    "an attribute": replaced("flag", False),
    "a truth value as a number": replaced("flag", 1),
    "a number as text": replaced("flag", "True"),
    "the sign of zero": replaced("rate", -0.0),
    "a whole number for a float": replaced("rate", 0),
    "an attribute more": replaced("more", None),
    "an attribute less": lambda net: delattr(net, "flag"),
    "an item": replaced("sizes", [1, 3]),
    "a tuple for a list": replaced("sizes", (1, 2)),
    "nesting": replaced("sizes", [[1], 2]),
    "an attribute of a configuration": lambda net: setattr(net.config, "width", 5),
    "an item of a configuration": lambda net: net.config.names.append("c"),
    "a list shared for two alike": lambda net: setattr(net.config, "names", net.sizes),
    "train": lambda net: net.train(False),
    "train of a part": lambda net: net.act.eval(),
    "another class": replaced("act", nn.GELU()),
    "an option of a layer": replaced("act", nn.ReLU(inplace=True)),
    "a layer less": replaced("act", None),
    "a layer in a box": replaced("act", nn.Sequential(nn.ReLU())),
    "a shape": replaced("b", nn.Linear(4, 5)),
    "no bias": replaced("b", nn.Linear(4, 4, bias=False)),
    "a dtype": lambda net: net.b.half(),
    "a dtype of a buffer": lambda net: net.table.data.__class__ and setattr(net, "table", net.table.double()),
    "a stride": strided,
    "an offset": windowed,
    "a tied weight": lambda net: setattr(net.b, "weight", net.a.weight),
    "a shared layer": replaced("b", Net().a) and (lambda net: setattr(net, "b", net.a)),
    "windows of one storage": shared_storage,
    "windows of two": two_storages,
    "a frozen weight": lambda net: net.a.weight.requires_grad_(False),
    "a frozen bias": lambda net: net.a.bias.requires_grad_(False),
    "the value of a buffer": lambda net: net.table.add_(1),
    "a buffer that is not saved": lambda net: net.register_buffer("table", torch.arange(4.0), persistent=False),
    "a buffer as a parameter": lambda net: (
        delattr(net, "table"),
        setattr(net, "table", nn.Parameter(torch.arange(4.0))),
    ),
    "a forward of its own": patched,
    "another forward of its own": patched_otherwise,
    "a hook": lambda net: net.a.register_forward_hook(multiplier(2.0)),
    "a hook with another number": lambda net: net.a.register_forward_hook(multiplier(3.0)),
    "a hook on another layer": lambda net: net.b.register_forward_hook(multiplier(2.0)),
    "two hooks": lambda net: [net.a.register_forward_hook(multiplier(n)) for n in (2.0, 3.0)],
    "two hooks in another order": lambda net: [net.a.register_forward_hook(multiplier(n)) for n in (3.0, 2.0)],
    "a hook before": lambda net: net.a.register_forward_pre_hook(lambda module, args: args),
    "a hook on gradients": lambda net: net.a.register_full_backward_hook(lambda module, before, after: before),
    "a hook on a weight": lambda net: net.a.weight.register_hook(lambda grad: grad * 2),
    "another hook on a weight": lambda net: net.a.weight.register_hook(lambda grad: grad * 3),
    "a hook after accumulation": lambda net: net.a.weight.register_post_accumulate_grad_hook(lambda weight: None),
    "a gradient that is there": with_gradient,
    "a gradient of other strides": lambda net: setattr(net.a.weight, "grad", torch.zeros(4, 4).t()),
    "a name": lambda net: (net.add_module("c", net.b), delattr(net, "b")),
}


@pytest.fixture(scope="module")
def seen() -> dict[str, bytes]:
    """The digest after each change."""
    found = {}
    for name, change in CHANGES.items():
        net = Net()
        change(net)
        found[name] = digest(net)
    return found


@pytest.mark.parametrize("name", CHANGES)
def test_a_near_miss_is_another_model(seen: dict[str, bytes], name: str) -> None:
    assert seen[name] != BASE
    assert [other for other in seen if seen[other] == seen[name]] == [name]


def test_hooks_that_came_and_went_leave_no_trace() -> None:
    net = Net()
    for _ in range(3):
        net.a.register_forward_hook(multiplier(5.0)).remove()
    assert digest(net) == BASE


def test_the_number_that_torch_gave_a_hook_does_not_count() -> None:
    found = set()
    for _ in range(2):
        net = Net()
        net.a.register_forward_hook(multiplier(2.0))
        found.add(digest(net))
    assert len(found) == 1


def test_everything_about_the_call_counts() -> None:
    def given(*args: Any, **changes: Any) -> bytes:
        return digest(Net(), *args, **changes)

    x = torch.zeros(2, 4)
    found = [
        given(x),
        given(torch.zeros(2, 5)),
        given(torch.zeros(8)),
        given(torch.zeros(2, 4, dtype=torch.float64)),
        given(torch.zeros(4, 2).t()),
        given(torch.zeros(3, 4)[1:]),
        given(torch.zeros(2, 4, requires_grad=True)),
        given(x, x),
        given(x, torch.zeros(2, 4)),
        given([x]),
        given((x,)),
        given({"x": x}),
        given({"y": x}),
        given(x, args=(), kwargs={"x": x}),
        given(x, args=(), kwargs={"y": x}),
        given(x, 1),
        given(x, True),
        given(x, None),
        given(x, name="other"),
        given(x, loss=None),
        given(x, training=True),
    ]
    assert len(set(found)) == len(found)


def parts(net: nn.Module, **changes: Any) -> dict[str, bytes]:
    found = look(net, torch.zeros(2, 4), **changes)
    assert not isinstance(found, NoKey)
    return {part.name: part.digest for part in found.parts}


@pytest.mark.parametrize(
    ("name", "subjects"),
    [
        ("an attribute", {"model.attributes"}),
        ("a frozen weight", {"model.tensors"}),
        ("train of a part", {"model.modules", "model.attributes"}),
    ],
)
def test_the_subjects_say_where_two_models_differ(name: str, subjects: set[str]) -> None:
    net = Net()
    CHANGES[name](net)
    base, found = parts(Net()), parts(net)
    assert {one for one in base if base[one] != found[one]} == {"model", *subjects}


def test_the_libraries_behind_a_model_are_named() -> None:
    found = look(Net(), torch.zeros(2, 4))
    assert isinstance(found, Fingerprint)
    assert "torch" in found.libraries
    more = look(Holder(np.zeros(2)), torch.zeros(2, 4))
    assert isinstance(more, Fingerprint)
