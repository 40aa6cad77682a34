"""What is the user's in modules of libraries, and what their functions take where a caller says nothing."""

import functools
from collections.abc import Iterable, Mapping
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any, Final

import torch

from tmmu.passes.capture.fingerprint.homes import home_of_code, home_of_module, innermost, module_called

NAMED_TUPLE: Final = "namedtuple_"
"""How Python calls the module of a function that it writes for a named tuple."""
_PLAIN: Final = (bool, int, float, complex, str, bytes, type(None), torch.dtype)
_REMEMBERING: Final = type(functools.lru_cache(len))
_MEMBERS: Final = 4096
"""Values of a table beyond which nobody tells it."""


class Scan:
    """Looks through modules of libraries, one by one; remembers which classes are the user's, while it lasts."""

    def __init__(self) -> None:
        self._of_library: dict[type, bool] = {}

    def foreign(self, module: ModuleType) -> list[tuple[str, Any]]:
        """(name, value) for the user's functions, classes and objects in a module, in its classes and its tables."""
        own, top = module.__name__, module.__name__.partition(".")[0]
        found: list[tuple[str, Any]] = []
        for name, held in list(vars(module).items()):
            if isinstance(held, type):
                if held.__module__ == own:
                    self._all(found, name, vars(held))
                elif not self._is_library_class(held):
                    found.append((name, held))
            elif type(held).__module__.partition(".")[0] == top:
                self._all(found, name, getattr(held, "__dict__", {}))
            else:
                self._look(found, name, held)
        return found

    def _all(self, found: list[tuple[str, Any]], name: str, held: Mapping[str, Any]) -> None:
        for inner, one in list(held.items()):
            self._look(found, f"{name}.{inner}", one)

    def _look(self, found: list[tuple[str, Any]], name: str, held: Any) -> None:
        kind = type(held)
        if kind is FunctionType:
            if _is_users(held):
                found.append((name, held))
        elif kind is dict or kind is list or kind is tuple:
            self._table(found, name, held.items() if kind is dict else enumerate(held))
        elif kind is staticmethod or kind is classmethod:
            self._look(found, name, held.__func__)
        elif kind is property:
            self._look(found, name, held.fget)
        elif kind in _WRAPPERS:
            if self._is_users_part(held):
                found.append((name, held))
        elif not self._is_library_class(kind):
            found.append((name, held))

    def _table(self, found: list[tuple[str, Any]], name: str, pairs: Iterable[tuple[Any, Any]]) -> None:
        for key, one in list(pairs):
            if type(one) in _CALLABLE and self._is_users_part(one):
                found.append((f"{name}[{key!s:.80}]", one))

    def _is_users_part(self, part: Any) -> bool:
        """Whether something that a wrapper holds is the user's."""
        kind = type(part)
        if kind is FunctionType:
            return _is_users(part)
        if kind in _WRAPPERS:
            return any(self._is_users_part(inner) for inner in _WRAPPERS[kind](part))
        return not self._is_library_class(part if isinstance(part, type) else kind)

    def _is_library_class(self, kind: type) -> bool:
        """Whether the class is of a module that is not the user's, or that nobody can name."""
        known = self._of_library.get(kind)
        if known is None:
            module = module_called(kind.__module__)
            nameless = module is None or (not hasattr(module, "__file__") and module.__name__ != "__main__")
            known = self._of_library[kind] = nameless or home_of_module(module) is not None
        return known


_WRAPPERS: Final[Mapping[type, Any]] = {
    MethodType: lambda held: (held.__func__, held.__self__),
    functools.partial: lambda held: (held.func, *held.args, *held.keywords.items()),
    functools.partialmethod: lambda held: (held.func, *held.args, *held.keywords.items()),
    functools.cached_property: lambda held: (held.func,),
    _REMEMBERING: lambda held: (held.__wrapped__,),
}
"""What is put around functions, and what it holds."""
_CALLABLE: Final = (FunctionType, *_WRAPPERS)
CODE: Final = (BuiltinFunctionType, *_CALLABLE)
"""Types of functions and of what is put around them."""


def _is_users(held: FunctionType) -> bool:
    """Whether the function is the user's, or decorates one of the user's."""
    if home_of_code(held.__code__) is not None and "__wrapped__" not in held.__dict__:
        return False
    inner = innermost(held)
    if inner.__code__.co_filename.startswith("<") and not inner.__code__.co_filename.startswith("<frozen "):
        made_in = inner.__module__ or ""
        return not made_in.startswith(NAMED_TUPLE) and home_of_module(module_called(made_in)) is None
    return home_of_code(inner.__code__) is None


def identity(held: Any) -> str:
    """How a function or class is called, whoever asks."""
    return f"{getattr(held, '__module__', '')} {getattr(held, '__qualname__', type(held).__name__)}"


def described(held: Any) -> str:
    """How a function is called, and what it takes where a caller says nothing; of a wrapper, what it is put around."""
    if isinstance(held, FunctionType):
        return f"{identity(held)} {spelled(held.__defaults__)} {spelled(held.__kwdefaults__)}"
    around = _WRAPPERS.get(type(held))
    return f"{identity(held)} {spelled(around(held)) if around else ''}"


def spelled(value: Any) -> str:
    """A plain value, or one that is made of plain ones, as text that tells it; of others which kind it is, inside."""
    if type(value) in _PLAIN:
        return repr(value)
    if isinstance(value, (tuple, list)):
        return _joined(value, [_inside(one) for one in value[:_MEMBERS]])
    if isinstance(value, (set, frozenset)):
        return _joined(value, sorted(_inside(one) for one in value))
    if isinstance(value, dict):
        return _joined(value, [f"{_inside(key)}: {_inside(one)}" for key, one in list(value.items())[:_MEMBERS]])
    return ""


def _inside(value: Any) -> str:
    return spelled(value) or identity(value)


def _joined(value: Any, members: list[str]) -> str:
    return f"{type(value).__name__} {len(value)} ({', '.join(members)})"
