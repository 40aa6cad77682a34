"""Functions, classes and modules: a library's by name, the user's by all that their code says and reaches."""

import abc
import sys
import types
from collections.abc import Mapping
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any, Final

from torch._ops import HigherOrderOperator, OpOverload, OpOverloadPacket, _OpNamespace

from tmmu.passes.capture.fingerprint.data import named_set
from tmmu.passes.capture.fingerprint.homes import home_of_code, home_of_module, home_of_named
from tmmu.passes.capture.fingerprint.meanings import meaning
from tmmu.passes.capture.fingerprint.outside import outside
from tmmu.passes.capture.fingerprint.reads import reads
from tmmu.passes.capture.fingerprint.scan import described
from tmmu.passes.capture.fingerprint.walker import Rule, Walker
from tmmu.passes.capture.sources import display_name

_UNSEEN: Final = frozenset({
    "__dict__", "__weakref__", "__qualname__", "__annotations__", "__abstractmethods__",
    "_abc_impl", "__firstlineno__", "__static_attributes__", "__parameters__", "__orig_bases__", "__match_args__",
    "__annotate__", "__annotate_func__", "__annotations_cache__",
})  # fmt: skip
"""Entries of a class that say nothing about what it does, or that stand elsewhere."""
_OF_MODULES: Final = frozenset({
    *("__name__", "__doc__", "__package__", "__loader__", "__spec__", "__path__", "__file__", "__cached__"),
    *("__builtins__", "__annotations__", "__warningregistry__"),
})  # fmt: skip
"""Names that the interpreter puts into every module."""
_OPERATORS: Final = frozenset({"aten", "prim", "prims", "higher_order"})
"""Namespaces of operators that come with torch."""


def _held(w: Walker, value: Any) -> None:
    """What looks outside may be named where it is called, which shows, and held nowhere."""
    said = outside(value)
    if said:
        w.refuse(f"{said}, which looks at more than objects,")


def _module(w: Walker, value: ModuleType) -> None:
    """A library's module is its name; one of the user's is all that it holds."""
    _held(w, value)
    if w.met(value):
        return
    home = home_of_module(value)
    if home is not None:
        w.library(home, "module", value.__name__, "")
        return
    w.emit("module")
    with w.sink.about("code"):
        w.visit(type(value))
        w.items([(name, held) for name, held in vars(value).items() if name not in _OF_MODULES])


def _function(w: Walker, value: FunctionType) -> None:
    _held(w, value)
    if w.met(value):
        return
    with w.sink.about("code"):
        home = home_of_code(value.__code__)
        if home is not None and home_of_named(value) == home:
            w.library(home, "function", value.__module__, value.__qualname__)
            w.emit(described(value))
            return
        if home is None:
            _users(w, value)
        else:
            w.library(home, "inner function", value.__module__, value.__qualname__)
            _code(w, value.__code__)
        _closure(w, value)


def _users(w: Walker, value: FunctionType) -> None:
    """A function of the user's: its code, and what the names in it mean now."""
    filename = value.__code__.co_filename
    where = "" if filename.startswith("<") else display_name(filename, w.folder)  # generated code is numbered at will
    w.emit("function", value.__qualname__, where, value.__name__, str(value.__doc__), str(value.__module__))
    _code(w, value.__code__)
    for read in reads(value.__code__):
        meaning(w, value, read)


def _closure(w: Walker, value: FunctionType) -> None:
    """What a function brings along: defaults, cells, attributes."""
    w.visit(value.__defaults__, "defaults")
    w.visit(value.__kwdefaults__, "defaults")
    for name, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=True):
        w.emit("cell", name)
        try:
            w.visit(cell.cell_contents, name)
        except ValueError:  # empty: the function is still being made
            w.emit("empty")
    w.items(value.__dict__.items())


def _code(w: Walker, code: CodeType) -> None:
    """All of a code object but where its file lies: what it does, and at which lines."""
    w.codes.append(code)
    w.emit("code", code.co_name, code.co_code, code.co_linetable, code.co_exceptiontable, code.co_firstlineno)
    w.emit(code.co_flags, code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount)
    for names in (code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars):
        w.visit(names)
    w.emit(len(code.co_consts))
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            _code(w, constant)
        elif isinstance(constant, frozenset):
            named_set(w, constant)
        else:
            w.visit(constant)


def _class(w: Walker, value: type) -> None:
    """A library's class by its name; one of the user's by its bases and all that it holds."""
    _held(w, value)
    if w.met(value):
        return
    w.classes[value] = None
    with w.sink.about("code"):
        home = home_of_named(value)
        if home is not None:
            w.library(home, "class", value.__module__, value.__qualname__)
            _registered(w, value)
            return
        w.emit("class", value.__qualname__, value.__name__)
        _registered(w, value)
        w.visit(type(value), "metaclass")
        w.visit(value.__bases__, "bases")
        for name, held in vars(value).items():
            if name not in _UNSEEN and not isinstance(held, _DESCRIPTORS):
                w.emit(name)
                w.visit(held, name)


def _registered(w: Walker, value: type) -> None:
    """The user's classes that were registered as subclasses, though they are none."""
    if "_abc_impl" in vars(value):
        registry = abc._get_dump(value)[0]  # type: ignore[attr-defined]
        known = [held() for held in registry]
        users = [kind for kind in known if kind is not None and home_of_named(kind) is None]
        for kind in sorted(users, key=lambda one: (one.__module__, one.__qualname__)):
            w.emit("registered")
            w.visit(kind)


_DESCRIPTORS: Final = (types.MemberDescriptorType, types.GetSetDescriptorType)


def _builtin(w: Walker, value: Any) -> None:
    """Compiled code: whose it is, and its name; bound to an object, that object as well."""
    _held(w, value)
    bound = value.__self__
    if bound is not None and not isinstance(bound, ModuleType) and not _is_pybind(bound):
        w.emit("bound", value.__name__)
        w.visit(bound)
        return
    module = bound.__name__ if isinstance(bound, ModuleType) else value.__module__ or ""
    torchs = value.__qualname__.startswith("_VariableFunctionsClass.")
    home = "torch" if torchs else home_of_module(sys.modules.get(module))
    if home is None:
        w.refuse(f"the compiled function {module}.{value.__qualname__}")
    w.library(home, "compiled", module, value.__qualname__)


def _is_pybind(bound: Any) -> bool:
    """Whether a function is bound to nothing but its own record, as pybind11 does it."""
    return type(bound).__name__ == "PyCapsule" or type(bound).__module__ == "pybind11_builtins"


def _descriptor(w: Walker, value: Any) -> None:
    w.emit("descriptor", value.__name__)
    w.visit(value.__self__ if isinstance(value, types.MethodWrapperType) else value.__objclass__)


def _operator(w: Walker, value: Any) -> None:
    _torchs_own(w, value.namespace, str(value))


def _packet(w: Walker, value: Any) -> None:
    name = value._qualified_op_name
    _torchs_own(w, name.partition("::")[0], name)


def _namespace(w: Walker, value: Any) -> None:
    _torchs_own(w, value.name, value.name)


def _torchs_own(w: Walker, namespace: str, name: str) -> None:
    """An operator is code that no object shows; only torch's own is told by its name."""
    if namespace not in _OPERATORS:
        w.refuse(f"the operator {name}, which is not torch's own,")
    w.library("torch", "operator", "", name)


def _bare_code(w: Walker, value: CodeType) -> None:
    if not w.met(value):
        _code(w, value)


def files(w: Walker) -> None:
    """The files of all the user's modules that are loaded: what they did when they were read shows nowhere else."""
    start = sys.modules.get("__main__")  # also called __mp_main__: how the program was started decides nothing
    for name in sorted(sys.modules):
        module = sys.modules[name]
        filename = vars(module).get("__file__") if isinstance(module, ModuleType) else None
        if module is not start and isinstance(filename, str) and home_of_module(module) is None:
            path = Path(filename)
            w.emit("file", name, display_name(filename, w.folder), path.read_bytes() if path.is_file() else b"")


EXACT: Final[Mapping[type, Rule]] = {
    ModuleType: _module,
    FunctionType: _function,
    type: _class,
    types.BuiltinFunctionType: _builtin,
    types.MethodDescriptorType: _descriptor,
    types.WrapperDescriptorType: _descriptor,
    types.ClassMethodDescriptorType: _descriptor,
    types.MethodWrapperType: _descriptor,
    types.MemberDescriptorType: _descriptor,
    types.GetSetDescriptorType: _descriptor,
    CodeType: _bare_code,
}

DERIVED: Final[Mapping[type, Rule]] = {
    ModuleType: _module,
    type: _class,
    OpOverload: _operator,
    HigherOrderOperator: _operator,
    OpOverloadPacket: _packet,
    _OpNamespace: _namespace,
}
