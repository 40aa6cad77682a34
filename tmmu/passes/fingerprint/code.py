"""Functions, classes and modules: a library's by name, the user's by all that their code says and reaches."""

import builtins
import dis
import sys
import types
from collections.abc import Iterator, Mapping
from importlib.machinery import PathFinder
from importlib.util import resolve_name
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any, Final

from torch._ops import HigherOrderOperator, OpOverload, OpOverloadPacket, _OpNamespace

from tmmu.passes.fingerprint.homes import PYTHON, home_of_code, home_of_file, home_of_module, home_of_named
from tmmu.passes.fingerprint.walker import Rule, Walker
from tmmu.passes.sources import display_name

_UNSEEN: Final = frozenset({
    "__dict__", "__weakref__", "__doc__", "__module__", "__qualname__", "__annotations__", "__abstractmethods__",
    "_abc_impl", "__firstlineno__", "__static_attributes__", "__parameters__", "__orig_bases__", "__match_args__",
    "__annotate__", "__annotate_func__", "__annotations_cache__",
})  # fmt: skip
"""Entries of a class that say nothing about what it does, or that stand elsewhere."""
_OPERATORS: Final = frozenset({"aten", "prim", "prims", "higher_order"})
"""Namespaces of operators that come with torch."""
_ATTRIBUTE: Final = ("LOAD_ATTR", "LOAD_METHOD")
_GLOBAL: Final = ("LOAD_GLOBAL", "LOAD_NAME")


def _module(w: Walker, value: ModuleType) -> None:
    """A library's module is its name; one of the user's is all that it holds."""
    if w.met(value):
        return
    home = home_of_module(value)
    if home is not None:
        w.library(home, "module", value.__name__, "")
        return
    w.emit("module")
    with w.sink.about("code"):
        w.items([(name, held) for name, held in vars(value).items() if not name.startswith("__")])


def _function(w: Walker, value: FunctionType) -> None:
    if w.met(value):
        return
    with w.sink.about("code"):
        home = home_of_code(value.__code__)
        if home is not None and home_of_named(value) == home:
            w.library(home, "function", value.__module__, value.__qualname__)
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
    w.emit("function", value.__qualname__, where)
    _code(w, value.__code__)
    read = tuple(chains(value.__code__))
    hazardous = w.hazards.enter(value, read)
    for chain in read:
        if chain in hazardous:
            w.emit("hazard", *chain)
        else:
            _meaning(w, value, chain)


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
    w.emit("code", code.co_name, code.co_code, code.co_linetable, code.co_exceptiontable, code.co_firstlineno)
    w.emit(code.co_flags, code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount)
    for names in (code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars):
        w.visit(names)
    w.emit(len(code.co_consts))
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            _code(w, constant)
        else:
            w.visit(constant)


def chains(code: CodeType) -> Iterator[tuple[str, ...]]:
    """The global names that code reads, each with the attributes that it takes of it at once; nested code included.

    An import while it runs is ``import``, the module, and the names that are taken of it.
    """
    chain: list[str] = []
    before: list[Any] = [0, None]
    for step in dis.get_instructions(code):
        if step.opname == "EXTENDED_ARG":
            continue
        if step.opname in _ATTRIBUTE and chain:
            chain.append(step.argval)
            continue
        if chain:
            yield tuple(chain)
        chain = [step.argval] if step.opname in _GLOBAL else []
        if step.opname == "IMPORT_NAME":
            level, names = before
            yield ("import", "." * level + step.argval, *(names or ()))
        before = [before[1], step.argval]
    if chain:
        yield tuple(chain)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from chains(constant)


def _meaning(w: Walker, function: FunctionType, chain: tuple[str, ...]) -> None:
    """What a chain of names leads to: modules on the way are passed through, the first other thing is visited, and of
    a library's class or function also what somebody may have put on it.
    """
    w.emit("name", *chain)
    if chain[0] == "import":
        _imported(w, function, chain[1], chain[2:])
        return
    scope, name, *rest = function.__globals__, *chain
    value: Any = scope.get(name, vars(builtins).get(name, _UNBOUND))
    for attribute in rest:
        if not isinstance(value, ModuleType):
            _put_on(w, value, attribute)
            break
        inner = _attribute(w, value, attribute)
        if isinstance(inner, ModuleType) or home_of_module(value) is None:
            w.emit(attribute)
        value = inner
    if value is _UNBOUND:
        w.emit("unbound")
    else:
        w.visit(value, ".".join(chain))


def _put_on(w: Walker, value: Any, name: str) -> None:
    """A plain value, or a function of the user's, that a library's class or function has under a name."""
    if not isinstance(value, (type, FunctionType)) or home_of_named(value) is None:
        return
    holders = value.__mro__ if isinstance(value, type) else (value,)
    found = next((vars(holder)[name] for holder in holders if name in vars(holder)), _UNBOUND)
    users = isinstance(found, FunctionType) and home_of_code(found.__code__) is None
    if users or type(found) in (bool, int, float, complex, str, bytes, type(None)):
        w.emit("put on", name)
        w.visit(found, name)


_UNBOUND: Final = object()


def _attribute(w: Walker, module: ModuleType, name: str) -> Any:
    try:
        return getattr(module, name, _UNBOUND)
    except Exception as error:  # noqa: BLE001 - a module may make what it has when asked
        w.refuse(f"{module.__name__}.{name}, which cannot be had: {type(error).__name__},")


def _imported(w: Walker, function: FunctionType, name: str, taken: tuple[str, ...]) -> None:
    """A module that a function imports while it runs: a library's by name, of the user's what is taken of it."""
    try:
        full = resolve_name(name, function.__globals__.get("__package__"))
    except ImportError:
        w.refuse(f"an import of {name}")
    module, home = sys.modules.get(full), _home_of_name(full)
    if home is not None:
        w.library(home, "module", full, "")
    elif module is None:
        w.refuse(f"an import of {full}, which is not loaded yet,")
    elif not taken or taken == ("*",):
        w.visit(module)
    if module is None:
        return
    for one in taken:
        inner = sys.modules.get(f"{full}.{one}") or _attribute(w, module, one)
        w.visit(None if inner is _UNBOUND else inner, one)


def _home_of_name(name: str) -> str | None:
    """Whose module it is, loaded or not."""
    top = name.partition(".")[0]
    if top in sys.stdlib_module_names:
        return PYTHON
    if top in sys.modules:
        return home_of_module(sys.modules[top])
    spec = PathFinder.find_spec(top)
    return home_of_file(spec.origin) if spec is not None and spec.origin else None


def _class(w: Walker, value: type) -> None:
    """A library's class by its name; one of the user's by its bases and all that it holds."""
    if w.met(value):
        return
    w.classes[value] = None
    with w.sink.about("code"):
        home = home_of_named(value)
        if home is not None:
            w.library(home, "class", value.__module__, value.__qualname__)
            return
        w.emit("class", value.__qualname__)
        w.visit(type(value), "metaclass")
        w.visit(value.__bases__, "bases")
        for name, held in vars(value).items():
            if name not in _UNSEEN and not isinstance(held, _DESCRIPTORS):
                w.emit(name)
                w.hazards.of_class(held)
                w.visit(held, name)


_DESCRIPTORS: Final = (types.MemberDescriptorType, types.GetSetDescriptorType)


def _builtin(w: Walker, value: Any) -> None:
    """Compiled code: whose it is, and its name; bound to an object, that object as well."""
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
    for name in sorted(sys.modules):
        module = sys.modules[name]
        filename = vars(module).get("__file__") if isinstance(module, ModuleType) else None
        if name != "__main__" and isinstance(filename, str) and home_of_module(module) is None:
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
