import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.unit.passes import nets
from tests.unit.passes.nets import digest, function, look
from tmmu.passes.fingerprint import Fingerprint
from tmmu.passes.fingerprint.reads import Read, reads


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
    found = list(reads(function(text).__code__))
    assert found == [Read(("import", ".a", "b")), Read(("torch", "nn", "inner"), called=True)]


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
