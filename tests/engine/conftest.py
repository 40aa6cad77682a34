from collections.abc import Iterator

import pytest

from tests.planned_steps import planned_once


@pytest.fixture(scope="session", autouse=True)
def _steps_planned_once() -> Iterator[None]:
    """Engines of equal models share the plans of their steps."""
    with planned_once():
        yield
