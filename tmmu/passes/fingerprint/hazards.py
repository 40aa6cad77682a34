"""What a function reaches that no object shows: files, the environment, clocks, chance.

Models are made anew for each lookup, so what their making reads is seen in what it made. What matters is code that
runs later, in the trace: functions that are reached by being held or called by name from there. Methods whose
names nothing says are not counted, or a ``save`` beside a ``forward`` would keep a model from being cached.
"""

from types import CodeType, FunctionType, ModuleType
from typing import Final

CLOCKS_AND_CHANCE: Final = ("time", "random", "secrets", "uuid", "datetime", "socket", "subprocess", "tempfile", "glob")
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
BUILTINS: Final = ("open", "input", "eval", "exec", "compile", "__import__", "globals", "id", "hash")
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

    def enter(self, function: FunctionType, chains: tuple[tuple[str, ...], ...]) -> None:
        """The function is one of the user's, and reads these chains of names."""
        name, names = function.__code__.co_qualname, _names(function.__code__)
        self._says.setdefault(name, set()).update(names)
        if id(function) not in self._methods:
            self._held.add(name)
        found = next((hazard for hazard in (_hazard(function, chain, names) for chain in chains) if hazard), "")
        if found:
            self._found.setdefault(name, found)

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


def _hazard(function: FunctionType, chain: tuple[str, ...], names: set[str]) -> str:
    """What is hazardous in the chain, as a person would call it; empty if nothing is."""
    said = ".".join(chain)
    if chain[0] == "import":
        module = chain[1].partition(".")[0]
        hazardous = module in CLOCKS_AND_CHANCE or (module == "os" and names & {*SYSTEM, *FILES})
        return f"an import of {chain[1]}" if hazardous else ""
    value = function.__globals__.get(chain[0])
    if value is None:
        return said if chain[0] in BUILTINS else ""
    module = value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", None) or ""
    return said if _reaches(module.partition(".")[0], value, chain) else ""


def _reaches(module: str, value: object, chain: tuple[str, ...]) -> bool:
    """Whether a global of this top-level module, or one named after it in the chain, looks at more than objects."""
    if module in CLOCKS_AND_CHANCE or type(value).__name__ == "_Environ":
        return True
    if module not in ("os", "posix", "nt", "posixpath", "ntpath", "genericpath"):
        return False
    names = chain[1:] if isinstance(value, ModuleType) else (getattr(value, "__name__", chain[0]),)
    return not names or any(name in SYSTEM or name in FILES for name in names)
