"""Settings of every test: generated examples are the same on each run, and none is failed by a slow machine."""

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile("repeatable", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("repeatable")


@pytest.fixture(autouse=True)
def _cache_of_its_own(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """No test finds a plan that another one, or whoever runs the tests, has kept."""
    monkeypatch.setenv("TMMU_CACHE_DIR", str(tmp_path_factory.getbasetemp() / f"cache-{next(_NUMBERS)}"))


_NUMBERS = iter(range(1 << 62))
