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
    *("linecache", "configparser", "runpy", "fileinput", "decimal", "locale", "resource", "zipimport"),
)
"""Modules of Python that have nothing to say of objects alone."""
SYSTEM: Final = (
    *("environ", "getenv", "environb", "getenvb", "listdir", "scandir", "walk", "stat", "urandom", "getpid", "getcwd"),
    *("cpu_count", "open", "popen", "system", "sched_getaffinity", "uname"),
)
FILES: Final = ("exists", "isfile", "isdir", "islink", "getsize", "getmtime", "expandvars", "expanduser", "realpath")
BUILTINS: Final = ("open", "input", "eval", "exec", "compile", "__import__", "globals")
METHODS: Final = ("read_text", "read_bytes", "iterdir", "is_file", "is_dir")
"""Methods of paths, by whatever object they are called."""
OF_LIBRARIES: Final = {
    "numpy": ("random", "load", "loadtxt", "genfromtxt", "fromfile", "memmap", "geterr", "get_printoptions"),
    "sys": ("getrecursionlimit", "getswitchinterval"),
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
        said = [_shown(chain) for chain in found] + [one for one in METHODS if one in function.__code__.co_names]
        if said:
            self._found.setdefault(name, said[0])
        return frozenset(found)

    def live(self) -> str:
        """The first hazard in a function that may run, and where; empty if there is none."""
        running: dict[str, None] = {}
        said = set(_CALLED)
        more = list(self._says)
        while more:
            more = [name for name in self._says if name not in running and self._runs(name, said)]
            running |= dict.fromkeys(more)
            for name in more:
                said |= self._says[name]
        return next((f"{self._found[name]} in {name}" for name in sorted(self._found) if name in running), "")

    def _runs(self, name: str, said: set[str]) -> bool:
        """Held, or called by a name that is said: a constructor by its class's, what Python itself calls by none."""
        *_, owner, last = ("", *name.split("."))
        if last == "__init__":
            return name in self._held or owner in said
        return name in self._held or last in said or last.startswith("__")


def _shown(chain: Chain) -> str:
    return f"an import of {chain[1]}" if chain[0] == "import" else ".".join(chain)


def _names(code: CodeType) -> set[str]:
    found = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            found |= _names(constant)
        elif isinstance(constant, str):
            found.add(constant)  # getattr(self, "name")
    return found


def _is_hazard(function: FunctionType, chain: Chain, names: set[str]) -> bool:
    """Whether the chain leads through anything that looks at more than objects."""
    if chain[0] == "import":
        module = chain[1].partition(".")[0]
        return module in OUTSIDE or (module == "os" and bool(names & {*SYSTEM, *FILES}))
    if chain[0] not in function.__globals__:
        return chain[0] in BUILTINS
    value = function.__globals__[chain[0]]
    for at in range(len(chain)):
        if any(_reaches(module.partition(".")[0], value, chain[at:]) for module in _modules_of(value)):
            return True
        if not isinstance(value, ModuleType) or at + 1 == len(chain):
            return False
        value = vars(value).get(chain[at + 1])
    return False


def _modules_of(value: object) -> tuple[str, str]:
    """The modules that a value is, or is from, and that what it is bound to is from."""
    own = value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", None)
    return (own if isinstance(own, str) else "", type(getattr(value, "__self__", None)).__module__)


def _reaches(module: str, value: object, chain: Chain) -> bool:
    """Whether a value of this top-level module, or what the chain takes of it, looks at more than objects."""
    if module in OUTSIDE or type(value).__name__ == "_Environ":
        return True
    whole = isinstance(value, ModuleType)
    names = chain[1:] if whole else (getattr(value, "__name__", chain[0]),)
    if module in _OS:
        return not names or any(name in SYSTEM or name in FILES for name in names)
    return bool(names) and names[0] in OF_LIBRARIES.get(module, ()) and (whole or module != "numpy")
