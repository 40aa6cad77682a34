import contextlib
import datetime as dt
import functools
import io
import linecache
import logging
import operator
import os
import random
import sys
import threading
import time
import types
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.unit.passes.nets import Net, function, look
from tmmu.passes.capture.fingerprint import Fingerprint
from tmmu.passes.capture.fingerprint.watch import Watch

SCOPE: dict[str, Any] = {
    "os": os, "env": os.environ, "getenv": os.getenv, "time": time, "now": time.time, "random": random, "sys": sys,
    "np": np, "Path": Path, "io": io, "linecache": linecache, "load": import_module, "functools": functools,
    "datetime": dt, "operator": operator, "threading": threading, "logging": logging,
    "log": logging.getLogger("tmmu.test"), "names": {"a", "b"}, "numbers": {1, 2},
    "partial": functools.partial(os.getenv),
}  # fmt: skip


def seen(body: str, **scope: Any) -> str:
    """What is seen of a function with this body while it runs."""
    f = function(f"def f(x):\n {body}\n return x", **SCOPE, **scope)
    with Watch("") as watch, contextlib.suppress(OSError):
        f(3)
    return watch.seen


OUTSIDE = {
    "os.getenv('A')": "os.getenv",
    "os.environ.get('A')": "os._Environ.__getitem__",
    "env.get('A')": "os._Environ.__getitem__",
    "env['HOME']": "os.environ",
    "'A' in env": "os.environ",
    "getenv('A')": "os.getenv",
    "partial('A')": "os.getenv",
    "time.time()": "time.time",
    "now()": "time.time",
    "list(map(time.sleep, []))": "time.sleep",
    "y = time; y.time()": "time",
    "getattr(time, 'time')()": "time",
    "operator.methodcaller('now')(datetime.datetime)": "datetime",
    "random.random()": "random",
    "np.random.rand()": "numpy.random",
    "np.random.default_rng(0).random()": "numpy.random",
    "np.geterr()": "geterr",
    "np.fromfile('nowhere')": "fromfile",
    "torch.get_num_threads()": "get_num_threads",
    "torch.initial_seed()": "initial_seed",
    "torch.Generator().initial_seed()": "initial_seed",
    "torch.load('nowhere')": "torch.serialization",
    "open('nowhere')": "io.open",
    "io.FileIO('nowhere')": "io.FileIO",
    "y = open; y('nowhere')": "io.open",
    "Path('nowhere').exists()": "pathlib.Path",
    "Path('nowhere').read_text()": "pathlib.Path",
    "os.path.exists('nowhere')": "genericpath.exists",
    "os.getcwd()": "posix.getcwd",
    "linecache.getline('nowhere', 1)": "linecache.getline",
    "load('os')": "importlib.import_module",
    "import random": "random",
    "import os.path": "os",
    "from time import time": "time",
    "eval('x')": "eval",
    "globals()": "globals",
    "__import__('os')": "__import__",
    "id(x)": "id",
    "hash('a')": "hash",
    "sorted([x], key=id)": "id",
    "object.__subclasses__()": "__subclasses__",
    "(lambda: 0).__globals__": "__globals__",
    "getattr(lambda: 0, '__globals__')": "__globals__",
    "sys.getrecursionlimit()": "sys.getrecursionlimit",
    "threading.active_count()": "threading.active_count",
    "logging.getLogger('a').level": "logging.getLogger",
    "[y for y in {'a', 'b'}]": "order of a set",
    "[y for y in names]": "order of a set",
    "[y for y in set('ab')]": "order of a set",
    "y = {str(y) for y in 'ab'}": "order of a set",
    "(lambda: time.time())()": "time.time",
}


@pytest.mark.parametrize("body", OUTSIDE)
def test_what_looks_outside_is_seen_with_its_line(body: str) -> None:
    assert OUTSIDE[body] in seen(body)
    assert " at <test>:" in seen(body)


INSIDE = [
    "os.path.join('a', 'b')",
    "isinstance(x, int)",
    "np.sqrt(np.ones(2).sum())",
    "torch.relu(torch.zeros(2)).sum().item()",
    "'a' in {'a', 'b'}",
    "x in names",
    "[y for y in numbers]",
    "[y for y in {1, 2}]",
    "len(str(x)) + max([1, x]) + sum(range(x))",
    "functools.reduce(operator.add, [1, 2])",
    "print(end='', file=sys.stdout)",
    "log.debug('x'); log.isEnabledFor(3); logging.debug('x')",
    "import math; math.sqrt(2)",
    "from collections import OrderedDict; OrderedDict(a=1).items()",
    "Path('a') / 'b'",
    "y = 2 if x else time.time()",
    "y = 2 if x else os.environ.get('A')",
    "torch.cuda.is_available(); torch.is_grad_enabled()",
    "(lambda: x)()",
]


@pytest.mark.parametrize("body", INSIDE)
def test_what_depends_on_objects_alone_is_not(body: str) -> None:
    assert seen(body) == ""


class Env:
    def __get__(self, one: object, kind: type) -> Any:
        return os.environ.get("A")


class Reading:
    gate = Env()

    def __add__(self, other: int) -> int:
        return len(os.environ["HOME"]) + other

    def __iter__(self) -> Any:
        yield time.time()

    def __getattr__(self, name: str) -> Any:
        return time.time()


@pytest.mark.parametrize("body", ["one.gate", "one + 1", "list(one)", "one.any"])
def test_methods_that_python_calls_by_itself_are_seen(body: str) -> None:
    assert seen(body, one=Reading())


def test_a_function_that_is_not_called_does_no_harm() -> None:
    text = "def g(): return open('a')\ndef f(x): return x"
    f = function(text)
    with Watch("") as watch:
        f(1)
    assert watch.seen == ""


def test_a_library_that_opens_a_file_is_seen(tmp_path: Path) -> None:
    path = tmp_path / "a.npy"
    np.save(path, np.zeros(2))
    helper = types.ModuleType("json.helper")
    code = compile("def load(path): return open(path)", library_file(), "exec")
    exec(code, vars(helper))
    assert str(path) in seen("reader(path).close()", reader=helper.load, path=str(path))


def test_what_a_library_reads_for_itself_is_not_looked_at() -> None:
    helper = types.ModuleType("json.helper")
    code = compile("import os\ndef ask(): return os.environ.get('A'), os.getcwd()", library_file(), "exec")
    exec(code, vars(helper))
    assert seen("ask()", ask=helper.ask) == ""


def library_file() -> str:
    """A file that counts as a library's."""
    return str(Path(np.__file__).parent / "helper.py")


def test_a_module_that_is_imported_while_the_model_runs_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "imported_late.py").write_text("A = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert "imported only now at imported_late.py:" in seen("import imported_late")
    assert seen("import imported_late") == ""


def test_a_profiler_stays_and_nothing_is_said() -> None:
    calls: list[str] = []

    def profile(frame: Any, event: str, argument: Any) -> None:
        calls.append(event)

    sys.setprofile(profile)
    try:
        with Watch("") as watch:
            assert sys.getprofile() is profile
    finally:
        sys.setprofile(None)
    assert "profiler" in watch.seen
    assert calls


def test_nothing_is_watched_afterwards() -> None:
    with Watch("") as watch:
        assert sys.getprofile() is not None
    assert sys.getprofile() is None
    seen_by_nobody = function("def f(x): return open('/dev/null')")
    seen_by_nobody(1).close()
    assert watch.seen == ""


@pytest.mark.parametrize("body", ["sys.setprofile(None)", "sys.setprofile(None); open('/dev/null').close()"])
def test_who_turns_the_watch_off_is_seen(body: str) -> None:
    assert "sys.setprofile" in seen(body)


def test_what_looks_outside_may_be_named_and_not_held() -> None:
    def fingerprinted(made: Callable[..., Any]) -> bool:
        return isinstance(look(made, torch.zeros(2)), Fingerprint)

    assert fingerprinted(function("def f(x): return time.time()", **SCOPE))
    assert fingerprinted(function("def f(x): return x if x in names else map(now, x)", **SCOPE))
    assert not fingerprinted(functools.partial(os.getenv))
    assert not fingerprinted(function("def f(x, y=now): return x", **SCOPE))
    assert not fingerprinted(function("def f(x): return held[0]", held=[os]))
    assert fingerprinted(Net())


def test_code_that_no_fingerprint_covers_is_seen() -> None:
    text = "def f(x):\n def g(y): return y + 1\n return sum(g(z) for z in [x])"
    f, other = function(text), function(text)
    found = look(f, torch.zeros(2))
    assert isinstance(found, Fingerprint)
    for run, said in ((f, ""), (other, "the model reads f, to which no object leads at <test>:1")):
        with Watch("", found.codes) as watch:
            run(1)
        assert watch.seen == said


def test_names_that_cannot_be_had_are_seen() -> None:
    def fails(name: str) -> None:
        raise ValueError(name)

    helper = types.ModuleType("helper")
    vars(helper)["__getattr__"] = fails
    assert "names that cannot be had: ValueError" in seen("x or helper.any", helper=helper)


def test_a_library_that_turns_the_watch_off_is_seen() -> None:
    helper = types.ModuleType("json.helper")
    exec(compile("import sys\ndef off(): sys.setprofile(None)", library_file(), "exec"), vars(helper))
    assert "the watch was turned off" in seen("off()", off=helper.off)
