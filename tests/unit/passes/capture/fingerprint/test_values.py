import functools
import io
import itertools
import random
import threading
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from tests.unit.passes.nets import Config, Holder, Net, digest, function, look, refusal
from tmmu.passes.capture.fingerprint import Fingerprint


class Odd(OrderedDict[str, int]):
    """A map with attributes."""


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (np.zeros(3), np.ones(3)),
        (np.zeros(3), np.zeros(3, dtype=np.float32)),
        (np.float32(1), np.float64(1)),
        (np.ones((2, 2)), np.ones((2, 2)).view(np.matrix)),
        (np.dtype("f4", metadata={"k": 1}), np.dtype("f4", metadata={"k": 2})),
        (np.dtype([("a", "f4")]), np.dtype([("b", "f4")])),
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


def test_a_set_of_text_has_an_order_only_where_its_seed_is_fixed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTHONHASHSEED", raising=False)
    assert "PYTHONHASHSEED" in refusal(Holder({"a", "b"}))
    monkeypatch.setenv("PYTHONHASHSEED", "1")
    assert digest(Holder({"a", "b"})) != digest(Holder({"a", "c"}))
    assert "a set of objects" in refusal(Holder({None}))


def test_the_order_of_a_set_of_numbers_counts() -> None:
    assert digest(Holder({0, 8})) != digest(Holder({8, 0}))


def test_a_set_that_a_library_keeps_for_itself_is_told_without_order() -> None:
    found = [nn.Module(), nn.Module(), nn.Module()]
    for net, names in zip(found, ("ab", "ba", "ac"), strict=True):
        net._non_persistent_buffers_set.update(names)
    assert digest(found[0]) == digest(found[1]) != digest(found[2])


def test_what_is_shared_is_told_from_what_is_alike() -> None:
    one: list[int] = [1]
    assert digest(Holder([one, one])) != digest(Holder([[1], [1]]))
    other = [1]
    assert digest(Holder([one, other, one])) != digest(Holder([one, other, other]))
    text, array = bytearray(b"a"), np.zeros(2)
    assert digest(Holder([text, text])) != digest(Holder([text, bytearray(b"a")]))
    assert digest(Holder([array, array[:2]])) != digest(Holder([array, np.zeros(2)]))
    assert digest(Holder([array, array[:1]])) != digest(Holder([array, array[1:]]))
    assert digest(Holder([array, torch.from_numpy(array)])) != digest(
        Holder([array, torch.zeros(2, dtype=torch.float64)])
    )
    loop: list[Any] = []
    loop.append(loop)
    assert digest(Holder(loop)) != digest(Holder([[]]))


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
