import io
import json
import sys

import pytest

from tmmu.cli.error_boundary import run_guarded
from tmmu.errors import ArenaTooSmall, CaptureFailed, TmmuError


def fail_with(error: BaseException) -> int:
    raise error


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (CaptureFailed("no such line", fix="look"), 2, "tmmu: CAPTURE_FAILED: no such line (look)\n"),
        (ArenaTooSmall("over\n  by 4", arena="state"), 3, "tmmu: ARENA_TOO_SMALL: over by 4\n"),
        (
            CaptureFailed("net.py: \x1b[2J\0 \u202e \udc80"),
            2,
            "tmmu: CAPTURE_FAILED: net.py: \\x1b[2J\\x00 \\u202e \\udc80\n",
        ),
        (KeyboardInterrupt(), 130, "tmmu: INTERRUPTED: stopped before the end\n"),
    ],
)
def test_error_is_one_line_and_its_exit_code(
    error: BaseException, code: int, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_guarded(lambda: fail_with(error), as_json=False) == code
    assert capsys.readouterr() == ("", line)


class Mute(Exception):
    """Its ``__str__`` raises."""

    def __str__(self) -> str:
        raise RuntimeError


class Beyond(BaseException):
    """Not an ``Exception``."""


@pytest.mark.parametrize(
    "error",
    [
        ValueError("a\nb"), RecursionError(), MemoryError(), AssertionError("x" * 10),
        Mute(), Beyond("far"), GeneratorExit(),
    ],
)  # fmt: skip
def test_unforeseen_exception_is_internal(error: BaseException, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_guarded(lambda: fail_with(error), as_json=False) == 70
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"tmmu: INTERNAL: {type(error).__name__}")
    assert "TMMU_TRACEBACK=1" in err
    assert err.count("\n") == 1


def test_traceback_is_printed_if_the_environment_asks_for_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMMU_TRACEBACK", "1")
    run_guarded(lambda: fail_with(ValueError("deep")), as_json=False)
    assert "Traceback" in capsys.readouterr().err


def test_json_error_is_the_record_on_stdout(capsys: pytest.CaptureFixture[str]) -> None:
    error: TmmuError = ArenaTooSmall("too small", fix="more", arena="state", needed=9)
    assert run_guarded(lambda: fail_with(error), as_json=True) == 3
    out, err = capsys.readouterr()
    assert json.loads(out) == {
        "code": "ARENA_TOO_SMALL",
        "exit": 3,
        "what": "too small",
        "fix": "more",
        "fields": {"arena": "state", "needed": 9},
    }
    assert err.count("\n") == 1


def test_every_failure_has_a_record(capsys: pytest.CaptureFixture[str]) -> None:
    for error in (Mute(), Beyond("far"), GeneratorExit()):
        assert run_guarded(lambda error=error: fail_with(error), as_json=True) == 70  # type: ignore[misc]
        assert json.loads(capsys.readouterr().out)["what"].startswith(type(error).__name__)


def test_system_exit_passes_through() -> None:
    with pytest.raises(SystemExit):
        run_guarded(lambda: fail_with(SystemExit(5)), as_json=False)


def test_streams_that_the_model_closed_are_no_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    closed = io.StringIO()
    closed.close()
    monkeypatch.setattr(sys, "stdout", closed)
    monkeypatch.setattr(sys, "stderr", closed)
    assert run_guarded(lambda: fail_with(CaptureFailed("x")), as_json=True) == 2


def test_code_of_a_step_that_succeeds_is_returned() -> None:
    assert run_guarded(lambda: 0, as_json=False) == 0


def test_error_of_the_system_names_its_file(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_guarded(lambda: fail_with(PermissionError(13, "Permission denied", "/there")), as_json=False) == 2
    assert capsys.readouterr().err.startswith("tmmu: INVALID_CONFIG: /there: Permission denied")
