import abc
import functools
import logging
import os
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.unit.passes import nets
from tests.unit.passes.nets import Holder, Net, digest, function, look, refusal
from tmmu.passes.capture.fingerprint import Fingerprint
from tmmu.passes.capture.fingerprint.reads import Read, reads


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


def named(value: Any, name: str, said: str) -> Any:
    setattr(value, name, said)
    return value


@pytest.mark.parametrize("name", ["__name__", "__doc__", "__qualname__", "__module__"])
def test_how_functions_and_classes_are_called_counts(name: str) -> None:
    def both(said: str) -> list[Any]:
        return [named(lambda x: x, name, said), named(type("Same", (), {}), name, said)]

    assert digest(Holder(both("a"))) == digest(Holder(both("a"))) != digest(Holder(both("b")))


def test_who_is_registered_as_a_subclass_counts() -> None:
    def registered(*kinds: type) -> type:
        base = abc.ABCMeta("Base", (), {})
        for kind in kinds:
            base.register(kind)
        return base

    found = [digest(Holder(registered(*kinds))) for kinds in ((), (), (Net,), (Net, Holder), (Holder, Net))]
    assert found[0] == found[1]
    assert found[3] == found[4]
    assert len(set(found)) == 3


def module(**held: Any) -> types.ModuleType:
    made = types.ModuleType("a_user_s_own")
    vars(made).update(held)
    return made


def test_a_module_that_is_taken_whole_counts_with_all_that_it_holds() -> None:
    def asked(value: int) -> Callable[[str], int]:
        return lambda name: value

    found = [
        digest(Holder(module(**held)))
        for held in ({}, {"a": 1}, {"a": 2}, {"__deep__": 1}, {"__getattr__": asked(1)}, {"__getattr__": asked(2)})
    ]
    assert len(set(found)) == len(found)
    assert "the module os" in refusal(Holder(module(os=os)))


@pytest.mark.parametrize("text", ["import a_user_s.own", "import a_user_s.own as b"])
def test_an_import_of_a_part_counts_with_its_whole(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    def found(deep: int) -> bytes:
        whole = module(DEEP=deep, __path__=[])
        monkeypatch.setitem(sys.modules, "a_user_s", whole)
        monkeypatch.setitem(sys.modules, "a_user_s.own", module())
        return digest(function(f"def f(x):\n {text}\n return x * a_user_s.DEEP"))

    assert found(1) == found(1) != found(2)


def test_a_user_s_file_that_is_called_like_a_module_of_python_is_the_user_s(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "chunk", module(__file__=str(tmp_path / "chunk.py"), DEEP=1))
    before = digest(function("def f(x):\n import chunk\n return x"))
    monkeypatch.setitem(sys.modules, "chunk", module(__file__=str(tmp_path / "chunk.py"), DEEP=2))
    assert digest(function("def f(x):\n import chunk\n return x")) != before


def test_loggers_count_by_what_they_say() -> None:
    def found(level: int, **held: Any) -> bytes:
        logger = logging.Logger("tmmu.test", level)
        vars(logger).update(held)
        return digest(Holder(logger))

    assert found(10) == found(10)
    assert len({found(10), found(20), found(10, verbose=True), found(10, disabled=True)}) == 4
    logger = logging.Logger("tmmu.test")
    logger.addFilter(lambda record: True)
    assert "a filter" in refusal(Holder(logger))
