"""Objects of Python's own classes that are more than data: wrappers of functions, annotations, loggers, locks."""

import enum
import functools
import logging
import re
import threading
import types
import typing
import weakref
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any, Final

import torch

from tmmu.passes.capture.fingerprint.homes import home_of_code, home_of_named
from tmmu.passes.capture.fingerprint.outside import ENVIRONMENT
from tmmu.passes.capture.fingerprint.walker import Rule, Walker, attributes, state


def _enum(w: Walker, value: enum.Enum) -> None:
    if not w.met(value):
        w.emit("member", value.name or "")
        w.visit(type(value))
        state(w, value)


def _path(w: Walker, value: PurePath) -> None:
    """Its text, and what a class of the user's adds; what Python's own remember of it is made of the text."""
    w.emit("path", str(value))
    w.visit(type(value))
    attributes(w, value)


def _environment(w: Walker, value: Any) -> None:
    w.emit("environment")
    w.visit(value._data)


def _lock(w: Walker, value: Any) -> None:
    if not w.met(value):
        held: bool = getattr(value, "_is_owned" if isinstance(value, _REENTRANT) else "locked")()
        w.emit("lock", type(value).__name__, int(held))


def _generator(w: Walker, value: torch.Generator) -> None:
    """What it draws, nothing that is traced depends on; to ask for its state shows."""
    if not w.met(value):
        w.emit("generator", str(value.device))


def _logger(w: Walker, value: logging.Logger) -> None:
    """What decides whether it speaks, which code may ask; who hears it must be a library's."""
    if w.met(value):
        return
    w.emit("logger", value.name, value.level, value.getEffectiveLevel(), value.manager.disable, int(value.propagate))
    w.emit(int(value.disabled), int(value.hasHandlers()))
    w.visit(type(value))
    w.items([(name, held) for name, held in vars(value).items() if name not in _OF_LOGGERS])
    for handler in value.handlers:
        _handler(w, handler)
    if value.filters:
        w.refuse("a filter of a logger")
    if value.parent is not None:
        w.visit(value.parent)


def _handler(w: Walker, value: logging.Handler) -> None:
    if home_of_named(type(value)) is None or value.filters:
        w.refuse("a handler of a logger that is not a library's")
    w.emit("handler", type(value).__qualname__, value.level)


def _pattern(w: Walker, value: re.Pattern[Any]) -> None:
    w.emit("pattern", value.flags)
    w.visit(value.pattern)


def _weak(w: Walker, value: Any) -> None:
    w.emit("weak")
    w.visit(value())


def _method(w: Walker, value: types.MethodType) -> None:
    w.emit("method")
    w.visit(value.__func__, "")
    w.visit(value.__self__, "")


def _partial(w: Walker, value: functools.partial[Any]) -> None:
    if w.met(value):
        return
    w.emit("partial")
    w.visit(type(value))
    w.visit(value.func, "func")
    w.visit(value.args, "args")
    w.visit(value.keywords, "keywords")
    state(w, value)


def _property(w: Walker, value: property) -> None:
    w.emit("property")
    for part in (value.fget, value.fset, value.fdel, value.__doc__):
        w.visit(part)


def _bound(w: Walker, value: Any) -> None:
    w.emit(type(value).__name__)
    w.visit(value.__func__)


def _cached(w: Walker, value: functools.cached_property[Any]) -> None:
    w.emit("cached_property", value.attrname or "")
    w.visit(value.func)


def _remembering(w: Walker, value: Any) -> None:
    """The function is read; what it returned before, perhaps of other things than today's, nobody can."""
    code = getattr(value.__wrapped__, "__code__", None)
    if value.cache_info().currsize and code is not None and home_of_code(code) is None:
        w.refuse("what a function remembers")
    w.emit("lru_cache")
    w.visit(value.__wrapped__)
    attributes(w, value, known=("__wrapped__", "cache_parameters", "__annotations__"))


def _annotation(w: Walker, value: Any) -> None:
    w.emit("annotation", str(value))


def _applied(w: Walker, value: Any) -> None:
    """A generic type with its arguments, which may be any objects."""
    if not w.met(value):
        w.emit("applied", type(value).__name__)
        for name in ("__origin__", "__args__", "__metadata__"):
            w.visit(getattr(value, name, None), name)


def _variable(w: Walker, value: typing.TypeVar) -> None:
    if not w.met(value):
        w.emit("variable", value.__name__)
        w.visit(value.__bound__)
        w.visit(value.__constraints__)


_LOCK: Final = type(threading.Lock())
_REENTRANT: Final = type(threading.RLock())
_OF_LOGGERS: Final = frozenset({*vars(logging.Logger("")), "manager"})
"""Attributes that every logger has."""

EXACT: Final[Mapping[type, Rule]] = {
    re.Pattern: _pattern,
    weakref.ReferenceType: _weak,
    types.MethodType: _method,
    property: _property,
    staticmethod: _bound,
    classmethod: _bound,
    type(functools.lru_cache(len)): _remembering,
    types.GenericAlias: _applied,
    types.UnionType: _applied,
    typing.TypeVar: _variable,
    typing.ForwardRef: _annotation,
    type(typing.Any): _annotation,
}

DERIVED: Final[Mapping[type, Rule]] = {
    PurePath: _path,
    ENVIRONMENT: _environment,
    enum.Enum: _enum,
    _LOCK: _lock,
    _REENTRANT: _lock,
    torch.Generator: _generator,
    logging.Logger: _logger,
    logging.Handler: _handler,
    functools.partial: _partial,
    functools.cached_property: _cached,
    typing._GenericAlias: _applied,  # type: ignore[attr-defined]
    typing._BaseGenericAlias: _annotation,  # type: ignore[attr-defined]
    typing._SpecialForm: _annotation,
}
