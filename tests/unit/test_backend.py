"""The public face of the backend: what importing costs, what it offers, what it reports."""

import subprocess
import sys

import pytest

import tmmu


def test_importing_needs_no_torch() -> None:
    program = "import sys, tmmu, tmmu.backend; assert 'torch' not in sys.modules; assert tmmu.backend.reports() == ()"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_bind_is_the_runtimes_own() -> None:
    from tmmu.runtime.execute.bind import bind  # noqa: PLC0415 - as late as tmmu.bind itself

    assert tmmu.bind is bind
    assert "bind" in tmmu.__all__


def test_other_names_are_no_attributes() -> None:
    with pytest.raises(AttributeError, match="'tmmu' has no attribute 'nothing'"):
        _ = tmmu.nothing
