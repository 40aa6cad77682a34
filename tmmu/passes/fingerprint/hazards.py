"""What a function reaches that no object shows: files, the environment, clocks, chance.

Models are made anew for each lookup, so what their making reads is seen in what it made. What matters is code that
runs later, in the trace: functions that are reached by being held or called by name from there. Methods whose
names nothing says are not counted, or a ``save`` beside a ``forward`` would keep a model from being cached.
"""

from types import CodeType, FunctionType, ModuleType
from typing import Final, TypeAlias

OUTSIDE: Final = (
    *("time", "random", "secrets", "uuid", "datetime", "socket", "subprocess", "tempfile", "glob", "shutil", "ctypes"),
    *("importlib", "pkgutil", "inspect", "platform", "multiprocessing", "urllib", "http", "sqlite3", "pickle"),
)
"""Modules of Python that have nothing to say of objects alone."""
SYSTEM: Final = (
    *(
        "environ",
        "getenv",
        "environb",
        "getenvb",
        "listdir",
        "scandir",
        "walk",
        "stat",
        "urandom",
        "getpid",
        "cpu_count",
    ),
    *("getcwd", "open", "popen", "system", "sched_getaffinity", "uname"),
)
FILES: Final = ("exists", "isfile", "isdir", "islink", "getsize", "getmtime")
BUILTINS: Final = ("open", "input", "eval", "exec", "compile", "__import__", "globals")
METHODS: Final = ("read_text", "read_bytes", "iterdir", "is_file", "is_dir")
"""Methods of paths, by whatever object they are called."""
OF_LIBRARIES: Final = {
    "numpy": ("random", "load", "loadtxt", "genfromtxt", "fromfile", "memmap"),
    "torch": ("load", "from_file", "initial_seed", "get_num_threads", "get_num_interop_threads", "hub"),
}
"""What of a library's top level looks beyond objects."""
_OS: Final = ("os", "posix", "nt", "posixpath", "ntpath", "genericpath")
Chain: TypeAlias = tuple[str, ...]
"""A global name and the attributes that are taken of it at once; or ``import`` and a module."""

_CALLED: Final = ("forward", "__call__")


class Hazards:
    """The user's functions, the names that they say, and what is hazardous in them."""

    def __init__(self) -> None:
        self._says: dict[str, set[str]] = {}
        self._found: dict[str, str] = {}
        self._held: set[str] = set()
        self._methods: set[int] = set()

    def of_class(self, held: object) -> None:
        """A class holds this under a name: if it is a function, it runs only where that name is said."""
        inner = held.__func__ if isinstance(held, (staticmethod, classmethod)) else held
        parts = (inner.fget, inner.fset, inner.fdel) if isinstance(inner, property) else (inner,)
        self._methods.update(id(part) for part in parts if isinstance(part, FunctionType))

    def enter(self, function: FunctionType, chains: tuple[Chain, ...]) -> frozenset[Chain]:
        """The function is one of the user's, and reads these chains of names; those that are hazardous."""
        name, names = function.__code__.co_qualname, _names(function.__code__)
        self._says.setdefault(name, set()).update(names)
        if id(function) not in self._methods:
            self._held.add(name)
        found = [chain for chain in chains if _is_hazard(function, chain, names)]
        for method in METHODS:
            if method in function.__code__.co_names:
                self._found.setdefault(name, method)
        for chain in found:
            self._found.setdefault(
                name, " ".join(("an import of", *chain[1:])) if chain[0] == "import" else ".".join(chain)
            )
        return frozenset(found)

    def live(self) -> str:
        """The first hazard in a function that may run, and where; empty if there is none."""
        running: set[str] = set()
        said = set(_CALLED)
        while True:
            more = {name for name in self._says if name not in running and self._runs(name, said)}
            if not more:
                break
            running |= more
            for name in more:
                said |= self._says[name]
        return next((f"{self._found[name]} in {name}" for name in sorted(self._found) if name in running), "")

    def _runs(self, name: str, said: set[str]) -> bool:
        last = name.rpartition(".")[2]
        return name in self._held or last in said or (last.startswith("__") and last != "__init__")


def _names(code: CodeType) -> set[str]:
    found = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            found |= _names(constant)
        elif isinstance(constant, str):
            found.add(constant)  # getattr(self, "name")
    return found


def _is_hazard(function: FunctionType, chain: Chain, names: set[str]) -> bool:
    """Whether the chain looks at more than objects."""
    if chain[0] == "import":
        module = chain[1].partition(".")[0]
        return module in OUTSIDE or (module == "os" and bool(names & {*SYSTEM, *FILES}))
    value = function.__globals__.get(chain[0])
    if value is None:
        return chain[0] in BUILTINS
    bound = type(getattr(value, "__self__", None)).__module__
    return any(_reaches(module.partition(".")[0], value, chain) for module in (_module_of(value), bound))


def _module_of(value: object) -> str:
    return value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", None) or ""


def _reaches(module: str, value: object, chain: Chain) -> bool:
    """Whether a global of this top-level module, or what the chain takes of it, looks at more than objects."""
    if module in OUTSIDE or type(value).__name__ == "_Environ":
        return True
    whole = isinstance(value, ModuleType)
    names = chain[1:] if whole else (getattr(value, "__name__", chain[0]),)
    if module in _OS:
        return not names or any(name in SYSTEM or name in FILES for name in names)
    return bool(names) and names[0] in OF_LIBRARIES.get(module, ()) and (whole or module != "numpy")
