"""Values as text on a command line: Python literals, calls of named functions on such values, or else the text itself.

``GPTConfig(n_layer=4, sizes=[1, 2])`` is read by Python's parser and never evaluated: it becomes a ``NamedCall``, and
whoever knows the names makes it (``resolve``). Calls may stand among the arguments of another, in lists, in tuples
and as values of dictionaries; everything else in a text with a call is a literal.
"""

import ast
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from tmmu.errors import InvalidConfig

Maker: TypeAlias = Callable[[str, Sequence[object], Mapping[str, object]], object]
"""Called with a name, positional arguments and keywords; gives what the call makes."""
_FIX: Final = "call a name of the file on literals, as in GPTConfig(n_layer=4); in quotes it is a text"

_CALL: Final = re.compile(r"\s*[^\W\d][\w.]*\(.*\)\s*", re.DOTALL)
"""A text that can only be meant as a call, also where Python's parser refuses it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedCall:
    """``name(*arguments, **keywords)``, not made yet; its arguments may hold more of them."""

    name: str
    arguments: tuple[object, ...]
    keywords: tuple[tuple[str, object], ...]


def parse_value(text: str) -> object:
    """The value of a text; ``InvalidConfig`` for a Python expression with calls of any other form."""
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError, TypeError):
        pass
    try:
        node = ast.parse(text.strip(), mode="eval").body
        has_call = any(isinstance(part, ast.Call) for part in ast.walk(node))
    except (ValueError, SyntaxError, MemoryError, RecursionError) as error:
        if _CALL.fullmatch(text):
            reason = error.msg if isinstance(error, SyntaxError) else "too deep or too large"
            raise InvalidConfig(f"the call cannot be read: {reason}", fix=_FIX) from None
        return text
    return _value_of(node) if has_call else text


def _value_of(node: ast.expr) -> object:
    match node:
        case ast.Call(func=ast.Name(id=name), args=arguments, keywords=keywords):
            pairs = tuple((_keyword_name(keyword), _value_of(keyword.value)) for keyword in keywords)
            repeated = len(dict(pairs)) < len(pairs)  # Python's parser lets it pass; its compiler would not
            if repeated:
                raise InvalidConfig(f"{name}: an argument is there twice", fix="keep one of them")
            return NamedCall(name=name, arguments=tuple(map(_value_of, arguments)), keywords=pairs)
        case ast.List(elts=items):
            return list(map(_value_of, items))
        case ast.Tuple(elts=items):
            return tuple(map(_value_of, items))
        case ast.Dict(keys=keys, values=values):
            return {_key(key): _value_of(value) for key, value in zip(keys, values, strict=True)}
        case _:
            return _literal(node)


def _keyword_name(keyword: ast.keyword) -> str:
    if keyword.arg is None:
        raise InvalidConfig(f"**{ast.unparse(keyword.value)} is no literal", fix=_FIX)
    return keyword.arg


def _key(node: ast.expr | None) -> object:
    key = _literal(node)
    try:
        hash(key)
    except TypeError:
        raise InvalidConfig(f"{key!r} is no key of a dictionary", fix="use a number, a text or a tuple") from None
    return key


def _literal(node: ast.expr | None) -> object:
    try:
        return ast.literal_eval(node or "**")
    except (ValueError, SyntaxError, TypeError):
        text = "**" if node is None else ast.unparse(node)
        raise InvalidConfig(f"{text} is no literal", fix=_FIX) from None


def resolve(value: object, make: Maker) -> object:
    """The value with what ``make`` gives in place of each call, inner calls first."""
    match value:
        case NamedCall(name=name, arguments=arguments, keywords=keywords):
            positional = [resolve(argument, make) for argument in arguments]
            return make(name, positional, {key: resolve(argument, make) for key, argument in keywords})
        case list():
            return [resolve(item, make) for item in value]
        case tuple():
            return tuple(resolve(item, make) for item in value)
        case dict():
            return {key: resolve(item, make) for key, item in value.items()}
        case _:
            return value
