import argparse
import decimal
import enum
import functools
import importlib
import io
import itertools
import linecache
import os
import random
import sys
import textwrap
import threading
import time
import types
from abc import ABC
from collections import Counter, OrderedDict, UserDict, defaultdict, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.unit.passes import nets
from tests.unit.passes.nets import Config, Net, digest, look, multiplier, refusal
from tmmu.ir.key import NoKey
from tmmu.passes.fingerprint import Fingerprint
from tmmu.passes.fingerprint.code import chains

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


# -- code


GLOBALS: dict[str, tuple[Any, str, Any]] = {
    "a number that a function reads": (nets, "SCALE", 3),
    "a function that forward calls": (nets, "scaled", lambda x: x),
    "a class attribute": (Net, "factor", 4),
    "a method": (Net, "forward", lambda self, x: x),
    "a property": (Net, "doubled", property(lambda self: 1)),
    "a method more": (Net, "more", lambda self: None),
    "a method of a class that hangs on the model": (Config, "more", lambda self: None),
    "the loss": (nets.loss, "__code__", (lambda model, x: model(x).mean()).__code__),
    "defaults": (nets.scaled, "__defaults__", (1,)),
    "a class of torch": (nn.ReLU, "forward", lambda self, x: x),
    "a class of torch, by another's method": (nn.ReLU, "forward", nn.Sigmoid.forward),
    "every module of torch": (nn.Module, "__call__", lambda self, *args: args[0]),
    "a class of torch that the model does not use": (nn.Conv2d, "forward", lambda self, x: x),
    "a setting of a class of torch": (nn.Linear, "fast", True),
    "a function of torch": (functional, "softmax", lambda x, dim: x),
    "a function that torch's layers call": (functional, "relu", lambda x, inplace=False: x),
    "a compiled function that torch's layers call": (functional, "linear", torch.bilinear),
    "a method of tensors": (torch.Tensor, "softmax", lambda self: self),
    "a compiled function of torch": (torch, "relu", torch.sigmoid),
}


@pytest.mark.parametrize("name", GLOBALS)
def test_what_code_means_counts(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    owner, attribute, value = GLOBALS[name]
    monkeypatch.setattr(owner, attribute, value, raising=False)
    assert digest(Net()) != BASE


@pytest.mark.parametrize("holder", [argparse.Namespace, textwrap.dedent, nn.Conv3d])
def test_what_is_put_on_a_library_s_class_or_function_counts_where_code_names_it(
    monkeypatch: pytest.MonkeyPatch, holder: Any
) -> None:
    def said() -> bytes:
        return digest(Holder(function("def f(x): return holder.put(x) + holder.__doc__", holder=holder)))

    monkeypatch.setattr(holder, "put", 1, raising=False)
    found = [said(), said()]
    for value in (2, lambda x: x, lambda x: -x):
        monkeypatch.setattr(holder, "put", value, raising=False)
        found.append(said())
    assert found[0] == found[1]
    assert len(set(found)) == 4


def test_a_function_that_remembers_has_none_once_it_does() -> None:
    cached = functools.lru_cache(function("def f(x): return x"))
    assert digest(Holder(cached)) == digest(Holder(cached))
    cached(1)
    assert "what a function remembers" in refusal(Holder(cached))


def test_what_was_compiled_before_does_not_count() -> None:
    torch.compile(nn.Linear(2, 2), backend="eager")(torch.zeros(1, 2))
    assert nn.Module.__init__.__module__.startswith("torch._dynamo")
    assert digest(Net()) == BASE


def test_what_a_library_adds_to_another_does_not_count_but_what_it_puts_in_a_place_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from transformers.modeling_utils import PreTrainedModel  # noqa: PLC0415

    monkeypatch.setattr(nn.Module, "smart_apply", PreTrainedModel.init_weights, raising=False)
    assert digest(Net()) == BASE
    monkeypatch.setattr(nn.ReLU, "forward", PreTrainedModel.init_weights)
    assert digest(Net()) != BASE


def test_what_no_code_names_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(nets.SIZES, "third", [4])
    assert digest(Net()) == BASE


def function(source: str, **globals: Any) -> Callable[..., Any]:  # noqa: A002
    """A function made of text, with globals of its own."""
    scope = {"torch": torch, "functional": functional} | globals
    exec(compile(source, "<test>", "exec"), scope)
    found: Callable[..., Any] = scope["f"]
    return found


def test_two_functions_of_one_text_are_the_same_and_of_two_texts_are_not() -> None:
    texts = [
        "def f(x): return x + 1",
        "def f(x): return x + 2",
        "def f(x): return x + 1.0",
        "def f(x): return x + True",
        "def f(x): return x - 1",
        "def f(y): return y + 1",
        "def f(x, y=1): return x + 1",
        "def f(x, y=2): return x + 1",
        "def f(x, *, y=1): return x + 1",
        "def f(x, *, y=2): return x + 1",
        "def f(x):\n  return x + 1",
        "def f(x):\n\n  return x + 1",
        "def f(x): return torch.add(x, 1)",
        "def f(x): return torch.sub(x, 1)",
        "def f(x): return [y + 1 for y in x]",
        "def f(x): return [y + 2 for y in x]",
        "def f(x): return (lambda: x + 1)()",
        "def f(x): return (lambda: x + 2)()",
        "\ndef f(x): return x + 1",  # graphs name source lines
        "def f(x):\n  try: return x + 1\n  except ValueError: return x",
    ]
    assert len({digest(function(text)) for text in texts}) == len(texts)
    assert [digest(function(text)) for text in texts] == [digest(function(text)) for text in texts]


def test_attributes_are_followed_in_functions_with_many_names() -> None:
    many = "\n  ".join(f"x.name_{n}" for n in range(300))
    text = f"def f(x):\n  {many}\n  from .a import b\n  torch.nn.inner(x)"
    assert list(chains(function(text).__code__)) == [("import", ".a", "b"), ("torch", "nn", "inner")]


def test_an_import_while_it_runs_is_followed() -> None:
    text = "def f(x):\n  from tests.unit.passes import nets\n  return nets.scaled(x)"
    before = digest(function(text))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(nets, "SCALE", 5)
        assert digest(function(text)) != before
    assert digest(function("def f(x):\n  import math\n  return math.pi * x")) != before
    found = look(function("def f(x):\n  import yaml.nodes\n  return x"))
    assert isinstance(found, Fingerprint)
    assert "yaml" in found.libraries
    assert "not loaded yet" in refusal(function("def f(x):\n  import nowhere\n  return x"))


def test_globals_are_read_through_nested_functions() -> None:
    text = "def f(x):\n  def g(y): return [G[0] + z for z in y]\n  return g(x)"
    assert digest(function(text, G=[1])) != digest(function(text, G=[2]))
    assert digest(function(text, G=[1])) == digest(function(text, G=[1]))


def test_functions_are_read_through_functions() -> None:
    inner = [function("def f(x): return x + H", H=h) for h in (1, 2)]
    outer = [function("def f(x): return G(x)", G=g) for g in inner]
    assert digest(outer[0]) != digest(outer[1])


def test_functions_that_call_each_other_end() -> None:
    scope: dict[str, Any] = {}
    exec("def f(x): return g(x)\ndef g(x): return f(x) + H", scope)
    found = []
    for scope["H"] in (1, 2):
        found.append(digest(scope["f"]))
    assert found[0] != found[1]


def test_closures_count() -> None:
    def made(factor: Any) -> Callable[[Tensor], Tensor]:
        return lambda x: x * factor

    assert digest(made(2)) == digest(made(2))
    assert len({digest(made(value)) for value in (2, 3, 2.0, [2], "2", None, made(2), made(3))}) == 8


def test_what_wraps_a_function_does_not_hide_it() -> None:
    def wrapped(value: int) -> Callable[..., Any]:
        @torch.no_grad()
        @functools.wraps(nets.scaled)
        def inner(x: Tensor) -> Tensor:
            return x + value

        return inner

    assert digest(wrapped(1)) == digest(wrapped(1))
    assert digest(wrapped(1)) != digest(wrapped(2))
    assert digest(functools.partial(wrapped(1))) != digest(functools.partial(wrapped(2)))
    assert digest(functools.partial(nets.loss, 1)) != digest(functools.partial(nets.loss, 2))
    assert digest(functools.lru_cache(wrapped(1))) != digest(functools.lru_cache(wrapped(2)))


def test_a_patch_that_wraps_in_a_library_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(functional, "gelu", torch.no_grad()(lambda x: x))
    assert digest(Net()) != BASE


@pytest.fixture(scope="module")
def gpt2() -> nn.Module:
    """A model of a library's classes."""
    from transformers import GPT2Config, GPT2Model  # noqa: PLC0415

    sizes = {"n_layer": 1, "n_embd": 8, "n_head": 2, "vocab_size": 8, "n_positions": 8}
    with torch.device("meta"):
        return GPT2Model(GPT2Config(**sizes, bos_token_id=0, eos_token_id=0))


def of_library(model: nn.Module) -> bytes:
    return digest(model, torch.zeros(1, 2, dtype=torch.int64))


class Mine(nn.Module):
    """Stands for a class of the user's that replaces one of a library."""


MODELLING = "transformers.models.gpt2.modeling_gpt2"
INTO_LIBRARIES: dict[str, tuple[str, str, Any]] = {
    "a function beside the model's classes": (MODELLING, "eager_attention_forward", lambda x: x),
    "a class beside the model's classes": (MODELLING, "GPT2MLP", Mine),
    "another of its own functions": (MODELLING, "eager_attention_forward", functional.relu),
    "a plain value beside the model's classes": (MODELLING, "LIMIT", 3),
    "a function somewhere else": ("transformers.masking_utils", "create_causal_mask", lambda x: x),
    "a class somewhere else": ("transformers.masking_utils", "BlockMask", Mine),
    "an object somewhere else": ("transformers.masking_utils", "settings", nets.Config()),
    "a decorated function": ("transformers.masking_utils", "create_causal_mask", torch.no_grad()(lambda x: x)),
}


@pytest.mark.parametrize("name", INTO_LIBRARIES)
def test_what_is_put_into_a_library_is_seen(monkeypatch: pytest.MonkeyPatch, gpt2: nn.Module, name: str) -> None:
    module, attribute, value = INTO_LIBRARIES[name]
    before = of_library(gpt2)
    assert of_library(gpt2) == before
    monkeypatch.setattr(import_module(module), attribute, value, raising=False)
    assert of_library(gpt2) != before


def test_a_method_put_into_a_class_of_a_library_is_seen(monkeypatch: pytest.MonkeyPatch, gpt2: nn.Module) -> None:
    before = of_library(gpt2)
    for name in ("forward", "more"):
        with monkeypatch.context() as patch:
            patch.setattr(type(gpt2.h[0]), name, lambda self, x: x, raising=False)  # type: ignore[index, union-attr]
            assert of_library(gpt2) != before
    monkeypatch.setattr(type(gpt2.h[0]), "limit", 3, raising=False)  # type: ignore[index, union-attr]
    assert of_library(gpt2) != before


def test_a_function_put_into_a_table_of_a_library_is_seen(monkeypatch: pytest.MonkeyPatch, gpt2: nn.Module) -> None:
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS  # noqa: PLC0415

    found = [of_library(gpt2)]
    for text in ("def f(x): return x", "def f(x): return x + 1"):
        monkeypatch.setitem(ALL_ATTENTION_FUNCTIONS._global_mapping, "mine", function(text))
        found.append(of_library(gpt2))
    assert len(set(found)) == 3


def test_the_number_of_generated_code_does_not_count() -> None:
    graphs = [torch.fx.symbolic_trace(Net().act) for _ in range(2)]
    assert digest(graphs[0].forward) == digest(graphs[1].forward)


# -- flags


@contextmanager
def switched(turn: Callable[[], object], back: Callable[[], object]) -> Iterator[None]:
    turn()
    try:
        yield
    finally:
        back()


def pair(switch: Callable[[Any], object], on: Any, off: Any) -> tuple[Callable[[], object], Callable[[], object]]:
    return functools.partial(switch, on), functools.partial(switch, off)


FLAGS = {
    "default dtype": pair(torch.set_default_dtype, torch.float64, torch.float32),
    "deterministic": pair(torch.use_deterministic_algorithms, True, False),
    "precision of products": pair(torch.set_float32_matmul_precision, "high", "highest"),
    "flash attention": pair(torch.backends.cuda.enable_flash_sdp, False, True),
    "efficient attention": pair(torch.backends.cuda.enable_mem_efficient_sdp, False, True),
    "mathematical attention": pair(torch.backends.cuda.enable_math_sdp, False, True),
    "grad": pair(torch._C._set_grad_enabled, False, True),
    "autocast": pair(functools.partial(torch.set_autocast_enabled, "cpu"), True, False),
    "autocast on a GPU": pair(functools.partial(torch.set_autocast_enabled, "cuda"), True, False),
    "autocast dtype": pair(functools.partial(torch.set_autocast_dtype, "cpu"), torch.float16, torch.bfloat16),
    "fast path": pair(torch.backends.mha.set_fastpath_enabled, False, True),
}


@pytest.mark.parametrize("name", FLAGS)
def test_a_switch_of_torch_counts(name: str) -> None:
    turn, back = FLAGS[name]
    args = (torch.zeros(2, 4),)
    net = Net()
    with switched(turn, back):
        assert digest(net, *args) != BASE
    assert digest(net, *args) == BASE


def test_hooks_of_every_module_count() -> None:
    handle = nn.modules.module.register_module_forward_hook(multiplier(2.0))
    try:
        assert digest(Net()) != BASE
    finally:
        handle.remove()
    assert digest(Net()) == BASE


# -- the call


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


# -- what has no stable content


class Holder(nn.Module):
    def __init__(self, held: Any) -> None:
        super().__init__()
        self.held = held

    def forward(self, x: Tensor) -> Tensor:
        return x


class Odd(OrderedDict[str, int]):
    """A map with attributes."""


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (np.zeros(3), np.ones(3)),
        (np.zeros(3), np.zeros(3, dtype=np.float32)),
        (np.float32(1), np.float64(1)),
        (np.arange(6).reshape(2, 3), np.arange(6).reshape(3, 2)),
        (torch.float16, torch.bfloat16),
        (torch.Size([1, 2]), (1, 2)),
        (torch.device("cpu"), torch.device("cuda")),
        ({1, 2}, {1, 3}),
        ({1, 2}, frozenset({1, 2})),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
        ({1: 2}, OrderedDict({1: 2})),
        ({"ab": "c"}, {"a": "bc"}),
        (["a", "b"], ["ab"]),
        (Odd(a=1), Odd(a=2)),
        (Odd(a=1), {"a": 1}),
        (range(3), range(4)),
        (slice(1), slice(2)),
        (Path("a"), Path("b")),
        (Path("a"), "a"),
        (b"a", "a"),
        (1j, 2j),
        (float("nan"), float("inf")),
        (2**70, 2**70 + 1),
        ("\ud800", "\ud801"),
        (nn.ReLU, nn.GELU),
        (Net, Config),
        (len, max),
        (torch.relu, torch.sigmoid),
        (torch.nn.functional.relu, torch.nn.functional.gelu),
        (torch.ops.aten.add, torch.ops.aten.mul),
        (torch.ops.aten.add.Tensor, torch.ops.aten.add.Scalar),
        ([].append, {}.update),
        ([1].index, [2].index),
        (Net().half, Net().float),
        (torch.zeros(2), torch.ones(2)),
        (torch.zeros(2), nn.Parameter(torch.zeros(2))),
        (threading.Lock(), None),
        (itertools, functools),
    ],
)
def test_values_that_differ_are_told_apart(one: Any, other: Any) -> None:
    assert digest(Holder(one)) == digest(Holder(one))
    assert digest(Holder(one)) != digest(Holder(other))


def test_a_set_has_one_order() -> None:
    names = [f"name {n}" for n in range(50)]
    assert digest(Holder(set(names))) == digest(Holder(set().union(reversed(names))))


def test_what_is_shared_is_told_from_what_is_alike() -> None:
    one: list[int] = [1]
    assert digest(Holder([one, one])) != digest(Holder([[1], [1]]))
    other = [1]
    assert digest(Holder([one, other, one])) != digest(Holder([one, other, other]))
    loop: list[Any] = []
    loop.append(loop)
    assert digest(Holder(loop)) != digest(Holder([[]]))


class Color(enum.Enum):
    RED = 1
    BLUE = 2


class Other(enum.Enum):
    RED = 1
    BLUE = 3


class Flags(enum.IntFlag):
    A = 1
    B = 2


@dataclass(frozen=True)
class Point:
    x: int
    y: list[int] = field(default_factory=list)


@dataclass(slots=True)
class Slotted:
    x: int


class Pair(NamedTuple):
    x: int
    y: int


T = TypeVar("T")


class Box(Generic[T], ABC):
    limit: ClassVar[int] = 3

    def __init__(self, held: T) -> None:
        self.held = held

    @staticmethod
    def one() -> int:
        return 1

    @classmethod
    def two(cls) -> int:
        return 2

    @cached_property
    def three(self) -> int:
        return 3

    def __reduce__(self) -> Any:
        raise TypeError("never copied")

    def __eq__(self, other: object) -> bool:
        raise TypeError("never compared")

    def __hash__(self) -> int:
        raise TypeError("never hashed")


class Awkward(dict[str, int]):
    def items(self) -> Any:
        raise TypeError("asked politely")

    def __iter__(self) -> Any:
        raise TypeError("asked politely")


OF_CLASSES = [
    (Color.RED, Color.BLUE),
    (Color.RED, Other.RED),
    (Flags.A, Flags.A | Flags.B),
    (enum.Enum("Listed", {"ONE": [1]}).ONE, enum.Enum("Listed", {"ONE": [2]}).ONE),
    (Point(1), Point(2)),
    (Point(1, [2]), Point(1, [3])),
    (Slotted(1), Slotted(2)),
    (Pair(1, 2), Pair(2, 1)),
    (Pair(1, 2), (1, 2)),
    (Box(1), Box(2)),
    (Box(1), Point(1)),
    (Awkward(a=1), Awkward(a=2)),
    (types.SimpleNamespace(a=1), types.SimpleNamespace(a=2)),
    (UserDict({"a": 1}), UserDict({"a": 2})),
    (Counter("ab"), Counter("abb")),
    (deque([1, 2]), deque([2, 1])),
    (defaultdict(list, a=1), defaultdict(dict, a=1)),
]


@pytest.mark.parametrize(("one", "other"), OF_CLASSES)
def test_objects_of_ordinary_classes_are_told_apart(one: Any, other: Any) -> None:
    assert digest(Holder(one)) == digest(Holder(one))
    assert digest(Holder(one)) != digest(Holder(other))


class WithState:
    __slots__ = ("seen",)

    def __init__(self, seen: Any) -> None:
        self.seen = seen


def test_slots_count() -> None:
    assert digest(Holder(WithState(1))) == digest(Holder(WithState(1)))
    assert digest(Holder(WithState(1))) != digest(Holder(WithState(2)))


@pytest.mark.parametrize(
    ("held", "said"),
    [
        (random.Random(1), "random.Random"),
        (io.BytesIO(b"x"), "BytesIO"),
        (iter([1]), "list_iterator"),
        (itertools.count(), "itertools.count"),
        ((n for n in range(3)), "generator"),
        ({object()}, "a set of objects"),
        (np.array([object()]), "an array of objects"),
        (torch.zeros(2).to_sparse(), "layout torch.sparse_coo"),
        (memoryview(b"x"), "memoryview"),
        (ValueError("x"), "ValueError"),
    ],
)
def test_what_has_no_stable_content_has_no_fingerprint(held: Any, said: str) -> None:
    why = refusal(Holder([held]))
    assert said in why
    assert "held.0" in why


def test_a_custom_operator_has_no_fingerprint() -> None:
    with torch.library._scoped_library("tmmu_test", "FRAGMENT") as library:
        library.define("twice(Tensor x) -> Tensor")
        assert "tmmu_test::twice" in refusal(function("def f(x): return torch.ops.tmmu_test.twice(x)"))
        assert "tmmu_test" in refusal(Holder(torch.ops.tmmu_test))


def test_a_tensor_with_a_history_has_none_in_training() -> None:
    x = torch.zeros(2, 4, requires_grad=True) * 2
    assert "history" in refusal(Net(), x, training=True)
    assert isinstance(look(Net(), x.detach(), training=True), Fingerprint)


def test_objects_nested_without_end_have_none() -> None:
    nested: list[Any] = []
    for _ in range(100_000):
        nested = [nested]
    assert "too deep" in refusal(Holder(nested))


HAZARDS = [
    ("def f(x): return x * len(linecache.getline('a', 1))", {"linecache": linecache}, "linecache.getline"),
    ("def f(x): return x * len(os.path.expandvars('$A'))", {"os": os}, "os.path.expandvars"),
    ("def f(x): return x * sys.getrecursionlimit()", {"sys": sys}, "sys.getrecursionlimit"),
    ("def f(x): return x * decimal.getcontext().prec", {"decimal": decimal}, "decimal.getcontext"),
    ("def f(x): return x * len(np.geterr())", {"np": np}, "np.geterr"),
    ("def f(x): return x if os.environ.get('A') else -x", {"os": os}, "os.environ.get"),
    ("def f(x): return x if env.get('A') else -x", {"env": os.environ}, "env"),
    ("def f(x): return x if getenv('A') else -x", {"getenv": os.getenv}, "getenv"),
    ("def f(x): return x * time.time()", {"time": time}, "time.time"),
    ("def f(x): return x * now()", {"now": time.time}, "now"),
    ("def f(x): return x * random.random()", {"random": random}, "random.random"),
    ("def f(x): return x * draw()", {"draw": random.random}, "draw"),
    ("def f(x): return x * len(open('a').read())", {}, "open"),
    ("def f(x): return eval('x')", {}, "eval"),
    ("def f(x): return x if os.path.exists('a') else -x", {"os": os}, "os.path.exists"),
    ("def f(x): return x if exists('a') else -x", {"exists": os.path.exists}, "exists"),
    ("def f(x):\n  import random\n  return x * random.random()", {}, "an import of random"),
    ("def f(x):\n  import os\n  return x if os.getenv('A') else -x", {}, "an import of os"),
    ("def f(x):\n  def g(): return open('a')\n  return x", {}, "open"),
    ("def f(x): return importlib.import_module('a').f(x)", {"importlib": importlib}, "importlib.import_module"),
    ("def f(x): return load('a').f(x)", {"load": import_module}, "load"),
    ("def f(x): return x * np.random.rand()", {"np": np}, "np.random.rand"),
    ("def f(x): return x if torch.get_num_threads() > 1 else -x", {}, "torch.get_num_threads"),
    ("def f(x): return torch.load('a')", {}, "torch.load"),
    ("def f(x): return x if P('a').read_text() else -x", {"P": Path}, "read_text"),
    ("def f(x): return x.is_file()", {}, "is_file"),
    ("def f(x): return x * helper.time.time()", {"helper": types.ModuleType("helper")}, "helper.time.time"),
    ("class A:\n  def __init__(self): self.a = open('a')\ndef f(x): return A()", {}, "open in A.__init__"),
]


HAZARDS[-2][1]["helper"].time = time


@pytest.mark.parametrize(("text", "scope", "said"), HAZARDS)
def test_code_that_looks_beyond_objects_has_no_fingerprint(text: str, scope: dict[str, Any], said: str) -> None:
    why = refusal(function(text, **scope))
    assert "depends on" in why
    assert said in why


@pytest.mark.parametrize(
    ("text", "scope"),
    [
        ("def f(x): return os.path.join('a', 'b')", {"os": os}),
        ("def f(x): return isinstance(x, int)", {}),
        ("def f(x): return x.open()", {}),
        ("def f(x): return x * np.sqrt(2)", {"np": np}),
        ("def f(x): return torch.relu(x)", {}),
    ],
)
def test_harmless_names_are_no_hazard(text: str, scope: dict[str, Any]) -> None:
    assert isinstance(look(function(text, **scope)), Fingerprint)


class Saving(nn.Module):
    def save(self, path: str) -> None:
        with open(path, "w") as file:  # noqa: PTH123
            file.write("x")

    def seldom(self) -> float:
        return random.random()

    def forward(self, x: Tensor) -> Tensor:
        return x


class Using(Saving):
    def forward(self, x: Tensor) -> Tensor:
        return x * self.seldom()


class Asking(Saving):
    def forward(self, x: Tensor) -> Tensor:
        method: Any = getattr(self, "seldom")  # noqa: B009
        return x * method()


def test_a_hazard_in_a_method_counts_where_its_name_is_said() -> None:
    assert isinstance(look(Saving(), torch.zeros(2)), Fingerprint)
    for net in (Using(), Asking()):
        assert "random.random in Saving.seldom" in refusal(net)


def test_a_hazard_in_a_hook_counts() -> None:
    net = Net()
    net.a.register_forward_hook(lambda module, args, result: result * random.random())
    assert "random.random" in refusal(net)
    net = Net()
    net.a.register_forward_hook(Saving.seldom)
    assert "random.random" in refusal(net)


# -- parts


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
