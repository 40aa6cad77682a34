"""Settings of every test: generated examples are the same on each run, and none is failed by a slow machine.

Tests run side by side, one process a core, so torch in each process and in each command that it starts has one thread:
two processes of two threads on two cores wait for each other most of their time. A test of what threads do sets their
number itself. Modules are compiled once, whatever the environment says, and not by each process of the tests.

Torch writes all that it compiles to a log as JSON where anybody listens, and pytest listens to each logger that does
not propagate: that log takes no listener.
"""

import gc
import logging
import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # read when torch is loaded, and inherited by each process of the tests
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

import sys
from collections.abc import Generator, Iterator

import pytest
from hypothesis import HealthCheck, settings

from tests.warm_server import WarmPython

sys.dont_write_bytecode = False
logging.getLogger("torch.__trace").addHandler = lambda hdlr: None  # type: ignore[method-assign]
settings.register_profile("repeatable", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("repeatable")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect tests, and garbage once, behind them: what is made stays, and to look through it takes a third."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.collect()


@pytest.fixture(autouse=True)
def _cache_of_its_own(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """No test finds a plan that another one, or whoever runs the tests, has kept."""
    monkeypatch.setenv("TMMU_CACHE_DIR", str(tmp_path_factory.getbasetemp() / f"cache-{next(_NUMBERS)}"))


@pytest.fixture(scope="session")
def warm_python() -> Iterator[WarmPython]:
    """Programs that start with all modules imported, for tests whose subject is not how Python starts."""
    server = WarmPython()
    yield server
    server.close()


@pytest.fixture
def terminal() -> Iterator[str]:
    """The path of a character device that is the test's own.

    No file can be made or renamed beside it: an error in what is tested replaces no device of the machine.
    """
    handles = os.openpty()
    yield os.ttyname(handles[1])
    for handle in handles:
        os.close(handle)


_NUMBERS = iter(range(1 << 62))
