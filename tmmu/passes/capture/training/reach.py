"""What a step of the user's reaches, by name: tensors, Python's numbers, random generators, modules, optimizers.

From the function one goes to what its code names (closure, ``self``, defaults, globals, functions that it calls), and
on through containers, attributes, hooks and gradients. Order and names follow from the program alone, so that the same
file, loaded on tensors with and without bytes, has the same names for the same things. Nothing is called or changed.

Names: weights and buffers by their path in their module, behind the name of the module where there are several;
gradients ``grad.PATH``; an optimizer's state ``optimizer.KEY.PATH``; all else by the path of attributes and keys.
"""

import sys
import sysconfig
import types
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from types import CodeType
from typing import Any, Final

import torch
from torch import nn

from tmmu.passes.capture.record.unknown_numbers import UnknownNumber
from tmmu.passes.capture.tree import is_wrapper, plain_tensors
from tmmu.torch_private import MODULE_TABLES, SHARDED_STATE, TENSOR_HOOKS, cpp_address

_NUMBERS: Final = (bool, int, float, complex)
_INSTALLED: Final = tuple(sysconfig.get_path(name) for name in ("purelib", "platlib"))
_LONG: Final = 4096
"""Items from which on a container is data: its numbers are no state of a step."""
_FAKE_ATTRIBUTES: Final = ("constant", "real_tensor")
"""Of fake tensors, where torch keeps tensors of its own."""


@dataclass(frozen=True, slots=True)
class Reach:
    """All that a step reaches. It holds everything that it names: a run must not see one from before it."""

    modules: dict[str, nn.Module] = field(default_factory=dict)
    """Those that lie in no other."""
    tensors: dict[str, torch.Tensor] = field(default_factory=dict)
    """Strided ones, each object once."""
    numbers: dict[str, Any] = field(default_factory=dict)
    generators: dict[str, torch.Generator] = field(default_factory=dict)
    optimizers: dict[str, torch.optim.Optimizer] = field(default_factory=dict)

    def storage_names(self) -> dict[int, str]:
        """By address of its storage, the first name of a tensor on it."""
        names: dict[int, str] = {}
        for name, tensor in self.tensors.items():
            names.setdefault(cpp_address(tensor.untyped_storage()), name)
        return names


def reach_of(step: Callable[..., Any]) -> Reach:
    """What the step reaches now. Linear in what there is."""
    walk = _Walk()
    walk.visit_all(walk.roots(step))
    walk.name_tensors()
    return walk.reach


def numbers_in(value: Any, name: str) -> dict[str, Any]:
    """Python's numbers in a result, by path."""
    walk = _Walk()
    walk.visit_all([(name, value)])
    return walk.reach.numbers


def prefix_of(modules: Mapping[str, nn.Module], name: str) -> str:
    """What stands before the paths in a module: its name, where there is more than one."""
    return name if len(modules) > 1 else ""


def weights_in(module: nn.Module, prefix: str) -> Iterator[tuple[str, str, torch.Tensor]]:
    """(role, path, tensor) of each weight and buffer of a module, as it lies in memory."""
    for role, tensors in (("parameter", module.named_parameters(prefix)), ("constant", module.named_buffers(prefix))):
        for named in tensors:
            for path, tensor in plain_tensors(*named):
                if tensor.layout is torch.strided:
                    yield role, path, tensor


_PASSED_OVER: Final = (*weakref.ProxyTypes, UnknownNumber)
"""Types of what has nothing of its own that a step could reach."""


class _Walk:
    """One walk. ``_plain`` has tensors in order, with their paths; ``_names`` those that have one, by id.

    ``_seen`` has what was visited by id, and holds it: no other object has that id meanwhile.
    """

    def __init__(self) -> None:
        self.reach = Reach()
        self._plain: list[tuple[str, torch.Tensor]] = []
        self._seen: dict[int, Any] = {}
        self._names: dict[int, str] = {}
        self._functions: set[int] = set()
        self._pending: list[tuple[str, Any, bool]] = []

    def roots(self, step: Callable[..., Any]) -> list[tuple[str, Any]]:
        """Where the walk begins."""
        return list(_roots_of(step, self._functions).items())

    def visit_all(self, named: Any) -> None:
        """Goes through these and all that they hold, depth first and in order."""
        self._pending += [(name, value, False) for name, value in reversed(list(named))]
        while self._pending:
            path, value, is_inner = self._pending.pop()
            if type(value) in _NUMBERS:
                self.reach.numbers.setdefault(path, value)
            elif id(value) not in self._seen and type(value) not in _PASSED_OVER:
                self._seen[id(value)] = value
                self._visit(path, value, is_inner=is_inner)

    def _visit(self, path: str, value: Any, *, is_inner: bool) -> None:
        if isinstance(value, torch.Tensor):
            self._plain.append((path, value))
            self._push_hooks(path, value)
        elif isinstance(value, torch.Generator):
            self.reach.generators[path] = value
        elif isinstance(value, nn.Module):
            if not is_inner:
                self.reach.modules[path] = value
            if not _is_of_library(type(value)):  # torch.compile numbers what it wraps, in each process anew
                self._push(path, [item for item in vars(value).items() if _is_of_user(item[0])])
            self._pending += [(f"{path}.{key}", inner, True) for key, inner in reversed([*value.named_children()])]
            self._push_methods(type(value))
            for key, parameter in value.named_parameters(recurse=False):
                self._push_hooks(f"{path}.{key}", parameter)
        elif isinstance(value, torch.optim.Optimizer):
            self.reach.optimizers[path] = value
            self._push(path, [item for item in vars(value).items() if item[0] not in ("state", "param_groups")])
            groups = [{key: item for key, item in group.items() if key != "params"} for group in value.param_groups]
            self._push(f"{path}.param_groups", _items(groups))
        else:
            self._push(path, self._items(value))
            self._push_methods(type(value))

    def _push(self, path: str, items: list[tuple[str, Any]]) -> None:
        prefix = f"{path}." if path else ""
        self._pending += [(f"{prefix}{key}", item, False) for key, item in reversed(items)]

    def _push_hooks(self, path: str, tensor: torch.Tensor) -> None:
        """Functions that run when its gradient is there."""
        tables = [getattr(tensor, name, None) for name in TENSOR_HOOKS]
        self._push(f"{path}.hooks", [item for table in tables for item in _items(table or {})])

    def _push_methods(self, kind: type) -> None:
        """What the methods of a user's class read of their module."""
        if id(kind) in self._seen:
            return
        self._seen[id(kind)] = kind
        owners = [] if _is_of_library(kind) else [owner for owner in kind.__mro__ if not _is_of_library(owner)]
        for function in (member for owner in owners for member in vars(owner).values()):
            if isinstance(function, types.FunctionType) and not _is_outside_user(function):
                self._push("", list(_roots_of(function, self._functions).items()))

    def _items(self, value: Any) -> list[tuple[str, Any]]:
        if not isinstance(value, (types.FunctionType, types.MethodType)):
            return _items(value)
        return [] if _is_outside_user(value) else list(_roots_of(value, self._functions).items())

    def name_tensors(self) -> None:
        """Names for all tensors: weights first, then what lies anywhere, gradients, and the state of optimizers."""
        weights: dict[int, str] = {}
        modules = self.reach.modules
        wrappers: dict[str, torch.Tensor] = {}
        for name, module in modules.items():
            for _, path, tensor in weights_in(module, prefix_of(modules, name)):
                weights[id(tensor)] = self._note(path, tensor)
            wrappers |= {
                path: weight for path, weight in module.named_parameters(prefix_of(modules, name)) if is_wrapper(weight)
            }
        weights |= {id(weight): path for path, weight in wrappers.items()}
        for path, tensor in self._plain:
            for plain_path, plain in plain_tensors(path, tensor) if _is_readable(tensor) else ():
                weights.setdefault(id(plain), self._note(plain_path, plain))
        for name, tensor in list(self.reach.tensors.items()):
            if tensor.is_leaf and tensor.grad is not None:
                self._note(f"grad.{name}", tensor.grad)
        for name, wrapper in wrappers.items():
            if wrapper.grad is not None:
                self._note_parts(f"grad.{name}", wrapper.grad)
        for path, optimizer in self.reach.optimizers.items():
            self._name_state(path, optimizer, weights)

    def _name_state(self, path: str, optimizer: torch.optim.Optimizer, weights: Mapping[int, str]) -> None:
        before = len(self._plain)
        for index, (trained, state) in enumerate(optimizer.state.items()):
            name = weights.get(id(trained), f"{path}.{index}")
            for key, value in _items(state):
                self.visit_all([(f"optimizer.{key}.{name}", value)])
        for name, tensor in self._plain[before:]:
            self._note_parts(name, tensor)

    def _note_parts(self, name: str, tensor: torch.Tensor) -> None:
        """Names for it, or for what it wraps."""
        for path, part in plain_tensors(name, tensor) if _is_readable(tensor) else ():
            self._note(path, part)

    def _note(self, name: str, tensor: torch.Tensor) -> str:
        """The name under which a tensor is kept, its first; so is what hangs on it."""
        if tensor.layout is not torch.strided:
            return name
        if id(tensor) in self._names:
            return self._names[id(tensor)]
        while name in self.reach.tensors:
            name += "'"
        self._names[id(tensor)] = name
        self.reach.tensors[name] = tensor
        for key, value in vars(tensor).items():
            if isinstance(value, torch.Tensor) and key not in _FAKE_ATTRIBUTES:
                self._note(f"{name}.{key}", value)
        return name


def _is_readable(tensor: torch.Tensor) -> bool:
    """Whether it is plain, or says what it wraps."""
    return not is_wrapper(tensor) or hasattr(tensor, "__tensor_flatten__")


def _roots_of(step: Callable[..., Any], seen: set[int]) -> dict[str, Any]:
    """What the step reaches by name: closure, ``self``, defaults, and globals that it or what it calls names.

    Functions whose ids were ``seen`` are passed over, and seen from then on.
    """
    roots: dict[str, Any] = {}
    pending = [step]
    while pending:
        function = pending.pop()
        if id(function) in seen:
            continue
        seen.add(id(function))
        if isinstance(function, partial):
            pending.append(function.func)
            named = {f"argument{place}": value for place, value in enumerate(function.args)} | function.keywords
        else:
            owner, function = getattr(function, "__self__", None), getattr(function, "__func__", function)
            named = ({} if owner is None else {"self": owner}) | _names_in(function)
        for name, value in named.items():
            if _has_code(value):
                pending += [] if _is_outside_user(value) else [value]
            elif not issubclass(type(value), type | types.ModuleType):  # of a dead proxy too
                roots.setdefault(name, value)
    return roots


def _has_code(value: Any) -> bool:
    try:
        return callable(value) and hasattr(value, "__code__")
    except Exception:  # noqa: BLE001 - a class of the user's may raise anything for an attribute, a dead proxy does
        return False


def _names_in(function: Any) -> dict[str, Any]:
    """What a function's code may read: its closure, its defaults, globals by name.

    Globals of installed packages are left alone: every load of the user's file shares them.
    """
    code = getattr(function, "__code__", None)
    if code is None:
        return {}
    cells = getattr(function, "__closure__", None) or ()
    named = {name: cell.cell_contents for name, cell in zip(code.co_freevars, cells, strict=True) if _full(cell)}
    defaults = getattr(function, "__defaults__", None) or ()
    named |= dict(zip(code.co_varnames[code.co_argcount - len(defaults) : code.co_argcount], defaults, strict=True))
    named |= getattr(function, "__kwdefaults__", None) or {}
    known = {} if _is_installed(code) else getattr(function, "__globals__", {})
    return named | {name: known[name] for name in sorted(global_names(code)) if name in known}


def is_outside(function: Any) -> bool:
    """Whether it is a function of torch or of numpy, which reaches nothing of the user's by name."""
    return str(getattr(function, "__module__", "")).partition(".")[0] in ("torch", "numpy", "builtins")


def _is_installed(code: CodeType) -> bool:
    """Whether it is code of an installed package, and not of the user's files."""
    return code.co_filename.startswith(_INSTALLED)


def _is_outside_user(function: Any) -> bool:
    """Whether it is a function of a library that reaches nothing of the user's, Python's own among them."""
    return is_outside(function) or str(getattr(function, "__module__", "")).partition(".")[0] in sys.stdlib_module_names


def _full(cell: Any) -> bool:
    try:
        _ = cell.cell_contents
    except ValueError:
        return False
    return True


def global_names(code: CodeType) -> set[str]:
    """Names that a function's code, or code inside it, looks up outside of it; attributes are among them."""
    names = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            names |= global_names(constant)
    return names


def _items(value: Any) -> list[tuple[str, Any]]:
    """What a container or an object of the user's holds; nothing of what belongs to a library's inside."""
    if isinstance(value, dict):
        return [
            (_key_text(key, index), item) for index, (key, item) in enumerate(value.items()) if _counts(item, value)
        ]
    if isinstance(value, (list, tuple, deque)):
        return [(str(index), item) for index, item in enumerate(value) if _counts(item, value)]
    if isinstance(value, types.BuiltinMethodType):
        return [("self", value.__self__)]
    if isinstance(value, partial):
        return [("func", value.func), ("args", value.args), ("keywords", value.keywords)]
    if isinstance(value, type | types.ModuleType) or _is_of_library(type(value)):
        return []
    slots = [name for kind in type(value).__mro__ for name in _slots_of(kind) if not name.startswith("__")]
    attributes = [(name, getattr(value, name)) for name in slots if hasattr(value, name)]
    return [*attributes, *getattr(value, "__dict__", {}).items()]


def _counts(item: Any, container: Any) -> bool:
    return len(container) <= _LONG or type(item) not in (str, *_NUMBERS)


def _slots_of(kind: type) -> tuple[str, ...]:
    slots = vars(kind).get("__slots__", ())
    return (slots,) if isinstance(slots, str) else tuple(slots)


def _is_of_user(attribute: str) -> bool:
    """Whether an attribute of a module is neither torch's table nor what torch keeps beside a sharded module."""
    return attribute not in MODULE_TABLES and not attribute.startswith(SHARDED_STATE)


def _is_of_library(kind: type) -> bool:
    """Whether objects of a class hold nothing of the user's: those of Python, numpy, and the inside of torch."""
    module = str(kind.__module__)
    top, _, rest = module.partition(".")
    return top in sys.stdlib_module_names or top == "numpy" or (top == "torch" and (not rest or rest.startswith("_")))


def _key_text(key: Any, index: int) -> str:
    """Of a key that is another each time, such as an object's id, its position."""
    return key if isinstance(key, str) else str(index)
