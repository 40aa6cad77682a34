"""Functions of ``torch.compile`` while a model is traced, or run to be looked at: each runs as it was written.

Dynamo has a switch for that. But to import Dynamo takes longer than to plan a small model, and a model that compiles
nothing needs none of it: torch imports it to read options that nobody has set, and to keep it out of functions that it
is not there to compile. Where it is not imported yet, a module stands in for it that answers these questions alone, and
imports and switches it for any other.
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from threading import Lock
from types import ModuleType
from typing import Any

import torch

from tmmu.passes.capture.imports import outside_modes
from tmmu.torch_private import DYNAMO, DYNAMO_OF_TORCH, DYNAMO_PARTS, keep_disabled


@contextmanager
def compiled_as_written() -> Iterator[None]:
    """Block in which compiled functions run as eager, whoever imports Dynamo meanwhile; afterwards as before."""
    if DYNAMO not in sys.modules:
        stand_in = _DynamoToImport()
        try:
            with stand_in.in_place():
                yield
        finally:
            stand_in.end()
    elif isinstance(sys.modules[DYNAMO], _DynamoToImport):  # a block around this one sees to it
        yield
    else:
        with torch.compiler.set_stance("force_eager"):
            yield


class _DynamoToImport(ModuleType):
    """Dynamo as far as it can be known without an import of it; its attributes are those of torch's module."""

    def __init__(self) -> None:
        super().__init__(DYNAMO)
        parts = {name: _PartToImport(self, name) for name in DYNAMO_PARTS}
        vars(self).update(parts, _lock=Lock(), _stance=ExitStack(), _is_switched=False)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name != "__path__":
            raise AttributeError(name)  # what looks through all modules imports none
        return getattr(self.imported(), name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self.imported(), name, value)

    def imported(self) -> ModuleType:
        """Dynamo itself, which runs functions as they were written from its import to ``end``."""
        self._make_way()
        with outside_modes():
            module = import_module(DYNAMO)
        with self._lock:
            if not self._is_switched:
                vars(self)["_is_switched"] = True
                self._stance.enter_context(torch.compiler.set_stance("force_eager"))
        return module

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Block in which it stands where Dynamo will."""
        finder = _LoadedParts()
        sys.meta_path.insert(0, finder)
        sys.modules[DYNAMO] = self
        for name in DYNAMO_PARTS:
            sys.modules[f"{DYNAMO}.{name}"] = getattr(self, name)
        setattr(torch, DYNAMO_OF_TORCH, self)
        try:
            yield
        finally:
            self._make_way()
            sys.meta_path.remove(finder)

    def _make_way(self) -> None:
        if sys.modules.get(DYNAMO) is self:
            for name in (DYNAMO, *(f"{DYNAMO}.{part}" for part in DYNAMO_PARTS)):
                sys.modules.pop(name, None)  # another thread may import it too
        if vars(torch).get(DYNAMO_OF_TORCH) is self:
            delattr(torch, DYNAMO_OF_TORCH)

    def end(self) -> None:
        """Dynamo is as it was imported, from now on."""
        with self._lock:
            vars(self)["_is_switched"] = True
            self._stance.close()

    def disable(self, function: Any = None, recursive: Any = True, **options: Any) -> Any:  # noqa: FBT002 - as Dynamo's
        """The function, which Dynamo does not compile: as torch disables its own, or else as Dynamo says.

        FSDP's hooks, which say a ``reason``, are wrapped for each call: to import Dynamo inside of a step would keep
        what the frames around it hold.
        """
        if callable(function) and options.keys() == {"reason"}:
            return function
        if options != {"wrapping": False}:
            return self.imported().disable(function, recursive, **options)
        return _out_of_dynamo(function, recursive)

    def graph_break(self, *_: Any, **__: Any) -> None:
        """Ends a graph where functions are compiled, and nothing where they are not."""


def _out_of_dynamo(function: Callable[..., Any], recursive: object) -> Callable[..., Any]:
    """The function as it is while there is no Dynamo, and as disabled as torch's others once there is."""

    def call(*args: Any, **kwargs: Any) -> Any:
        dynamo = sys.modules.get(DYNAMO)
        if dynamo is None or isinstance(dynamo, _DynamoToImport) or not hasattr(dynamo, "disable"):
            return function(*args, **kwargs)
        disabled = dynamo.disable(function, recursive, wrapping=False)
        keep_disabled(function, disabled)
        return disabled(*args, **kwargs)

    return call


class _PartToImport(ModuleType):
    """A module of Dynamo's, of which some is known while nobody can have set it."""

    def __init__(self, dynamo: _DynamoToImport, name: str) -> None:
        super().__init__(f"{DYNAMO}.{name}")
        vars(self).update(_dynamo=dynamo, _name=name)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        known = DYNAMO_PARTS[self._name]
        is_untouched = name in known and sys.modules.get(DYNAMO) is self._dynamo
        return known[name]() if is_untouched else getattr(getattr(self._dynamo.imported(), self._name), name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(getattr(self._dynamo.imported(), self._name), name, value)


class _LoadedParts(MetaPathFinder):
    """Finds a part of Dynamo that came with Dynamo, while that was imported for the sake of the part.

    The import system asks a package for its path after it has looked whether the part is there.
    """

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,  # noqa: ARG002 - as the import system calls it
        target: ModuleType | None = None,
    ) -> ModuleSpec | None:
        """The part as it was loaded, and nothing else."""
        if target is None and fullname.startswith(f"{DYNAMO}.") and fullname in sys.modules:
            return ModuleSpec(fullname, _LoadedPart(sys.modules[fullname]))
        return None


class _LoadedPart(Loader):
    def __init__(self, module: ModuleType) -> None:
        self._module, self._spec = module, module.__spec__

    def create_module(self, spec: ModuleSpec) -> ModuleType:  # noqa: ARG002 - as the import system calls it
        """The module as it is."""
        return self._module

    def exec_module(self, module: ModuleType) -> None:
        """It has run."""
        vars(module)["__spec__"] = self._spec  # options take no attribute that is not theirs
