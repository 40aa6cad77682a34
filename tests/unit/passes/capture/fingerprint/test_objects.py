import enum
import functools
import threading
import types
from abc import ABC
from collections import Counter, OrderedDict, UserDict, defaultdict, deque
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import PurePosixPath
from typing import Annotated, Any, ClassVar, Generic, NamedTuple, TypeVar

import numpy as np
import pytest
import torch
from torch import nn

from tests.unit.passes.nets import Holder, digest


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


class Trail(PurePosixPath):
    """A path with attributes."""


class Column(np.ndarray[Any, Any]):
    """An array with attributes."""


class Partial(functools.partial[Any]):
    """A partial that is another class."""


class SlottedModule(nn.Module):
    __slots__ = ("deep",)

    def __init__(self, deep: int) -> None:
        super().__init__()
        self.deep = deep


def with_attribute(value: Any, deep_memo: int) -> Any:
    """The same, or for members a copy of another class, with an attribute that is named as torch's caches are."""
    held = enum.Enum("Color", {"RED": 1}).RED if isinstance(value, enum.Enum) else value
    held.deep_memo = deep_memo
    return held


def held_lock() -> Any:
    lock = threading.Lock()
    lock.acquire()
    return lock


def twin(value: int) -> type:
    class Twin:
        number = value

    return Twin


twins = twin(1), twin(2)

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
    (deque(maxlen=0), deque()),
    (with_attribute(Color.RED, 1), Color.RED),
    (with_attribute(functools.partial(len), 1), with_attribute(functools.partial(len), 2)),
    (functools.partial(len), Partial(len)),
    (with_attribute(OrderedDict(), 1), with_attribute(OrderedDict(), 2)),
    (with_attribute(Trail("a"), 1), with_attribute(Trail("a"), 2)),
    (with_attribute(np.ones(2).view(Column), 1), with_attribute(np.ones(2).view(Column), 2)),
    (with_attribute(nn.Parameter(torch.zeros(2)), 1), with_attribute(nn.Parameter(torch.zeros(2)), 2)),
    (list[twins[0]], list[twins[1]]),  # type: ignore[valid-type]
    (twins[0] | None, twins[1] | None),
    (Annotated[int, 1], Annotated[int, 2]),
    (held_lock(), threading.Lock()),
    (SlottedModule(1), SlottedModule(2)),
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
