"""What code of the user's may read without a call that shows: it is asked of each function that runs."""

import sys
from collections.abc import Mapping
from importlib.util import resolve_name
from types import BuiltinFunctionType, CodeType, FunctionType
from typing import Any, Final

from tmmu.passes.capture.fingerprint.outside import ENVIRONMENT, is_pure, outside
from tmmu.passes.capture.fingerprint.reads import Read, led_to, own_reads, steps

_NAMES: Final = frozenset({
    *("__globals__", "__builtins__", "__hash__", "__subclasshook__", "f_globals", "f_builtins", "f_back", "tb_frame"),
    *("gi_frame", "cr_frame", "__loader__", "__spec__", "__annotations__"),
})  # fmt: skip
"""Attributes through which code reaches what no name of its own says."""
_ADDING: Final = ("BUILD_SET", "SET_ADD", "SET_UPDATE")
_ORDER: Final = "the order of a set"
STEADY: Final = (int, bool, float)
"""Members of sets whose order is the same in every process."""


def unseen(code: CodeType, scope: Mapping[str, Any]) -> str:
    """What a code object with these globals may read unseen, its nested code aside; empty if nothing."""
    for name in (*code.co_names, *code.co_consts):
        if isinstance(name, str) and name in _NAMES:
            return name
    for read in own_reads(code):
        said = _imported(read.names[1], scope) if read.names[0] == "import" else _named(read, scope)
        if said:
            return said
    return _ORDER if _has_sets(code) else ""


def _imported(name: str, scope: Mapping[str, Any]) -> str:
    """A module that looks outside and is imported here: what is done with it shows nowhere."""
    full = resolve_name(name, scope.get("__package__"))
    top = full.partition(".")[0]
    if top not in sys.modules:
        return full if top in sys.stdlib_module_names and not is_pure(top) else ""
    return outside(sys.modules[top]) or outside(sys.modules.get(full))


def _named(read: Read, scope: Mapping[str, Any]) -> str:
    """What looks outside and is not called at once; a set that is more than asked what it holds."""
    value, rest = led_to(read.names, scope)
    if value is set or value is frozenset:
        return _ORDER if read.called else ""
    if type(value) in (set, frozenset):
        return "" if read.tested or all(type(member) in STEADY for member in value) else _ORDER
    if read.called and isinstance(value, ENVIRONMENT if rest else (FunctionType, BuiltinFunctionType)):
        return ""  # the call shows
    if isinstance(value, type) and rest and not read.called:
        return outside(value) or outside(getattr(value, rest[0], None))
    return outside(value)


def _has_sets(code: CodeType) -> bool:
    """Whether the code makes a set, or has a constant one that is more than asked what it holds."""
    constant = False
    for step in steps(code):
        if step.opname in _ADDING or (constant and step.opname != "CONTAINS_OP"):
            return True
        held = step.argval if step.opname == "LOAD_CONST" else None
        constant = isinstance(held, frozenset) and not all(type(member) in STEADY for member in held)
    return False
