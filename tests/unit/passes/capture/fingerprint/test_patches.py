import argparse
import functools
import textwrap
import types
from importlib import import_module
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from tests.unit.passes import nets
from tests.unit.passes.nets import Config, Holder, Net, digest, function, refusal

BASE = digest(Net())


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
    "a function of torch with something given": (functional, "softmax", functools.partial(functional.softmax, dim=1)),
    "a function of torch with something else given": (
        functional,
        "silu",
        functools.partial(functional.silu, inplace=True),
    ),
    "a bound method": (functional, "linear", types.MethodType(lambda self, x: x, 2)),
    "a bound method in a class": (nn.Softmax, "more", types.MethodType(lambda self, x: x, 2)),
    "a method with something given": (nn.Linear, "forward", functools.partialmethod(lambda self, x, y: x, y=2)),
    "a method that remembers": (nn.Linear, "forward", functools.lru_cache(lambda self, x: x)),
    "a cached property": (nn.Linear, "more", functools.cached_property(lambda self: 2)),
    "other defaults of a function": (functional.softmax, "__defaults__", (None, 3, torch.float64)),
    "other defaults of a method": (nn.Linear.__init__, "__defaults__", (False, None, None)),
    "other defaults by name": (functional.softmax, "__kwdefaults__", {"x": 1}),
    "a tuple in a class of torch": (nn.Module, "options", (True,)),
    "a table in a class of torch": (nn.Linear, "options", {"a": [1, 2]}),
    "a list of functions": (functional, "steps", [lambda x: x]),
}


@pytest.mark.parametrize("name", GLOBALS)
def test_what_code_means_counts(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    owner, attribute, value = GLOBALS[name]
    monkeypatch.setattr(owner, attribute, value, raising=False)
    assert digest(Net()) == digest(Net()) != BASE


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
    "a tuple beside the model's classes": (MODELLING, "LIMITS", ("3",)),
    "a table beside the model's classes": (MODELLING, "TABLE", {"a": {1, 2}}),
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
