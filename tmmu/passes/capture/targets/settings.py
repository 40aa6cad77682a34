"""Values of ``--set`` for a Python model: literals, text, and what names of its own file make of literals."""

import inspect
from collections.abc import Mapping, Sequence
from functools import partial
from types import ModuleType
from typing import Any, Final

from tmmu.codec.value_text import parse_value, resolve
from tmmu.errors import InvalidConfig
from tmmu.passes.capture.activities import Activity, in_activity

_MAX_NAMES: Final = 8
"""Names of a file that a refusal lists."""


def setting_of(key: str, text: str, module: ModuleType) -> Any:
    """The value of ``--set key=text``. Names that it calls are those that the module defines or imports, no others."""
    with in_activity(Activity.BUILDING):
        return resolve(parse_value(text), partial(_make, key, module))


def _make(key: str, module: ModuleType, name: str, arguments: Sequence[object], keywords: Mapping[str, object]) -> Any:
    callables = {own: value for own, value in vars(module).items() if callable(value) and not own.startswith("__")}
    if name not in callables:
        classes = [own for own, value in callables.items() if isinstance(value, type)] or list(callables)
        fix = f"it has {', '.join(classes[:_MAX_NAMES])}" if classes else "define it in the file"
        raise InvalidConfig(f"--set {key}: the file of the model defines and imports no {name}", fix=fix)
    _require_fitting(key, name, callables[name], arguments, keywords)
    return callables[name](*arguments, **keywords)


def _require_fitting(
    key: str, name: str, maker: Any, arguments: Sequence[object], keywords: Mapping[str, object]
) -> None:
    """``InvalidConfig`` for arguments that the callable does not take, where it says what it takes."""
    try:
        signature = inspect.signature(maker)
    except (TypeError, ValueError):
        return
    try:
        signature.bind(*arguments, **keywords)
    except TypeError as error:
        names = ", ".join(signature.parameters) or "nothing"
        raise InvalidConfig(f"--set {key}: {name}: {error}", fix=f"it takes {names}") from error
