import sys
from typing import Any

import pytest

from tmmu.passes.capture.watched import WATCHES, Unwatched


def test_a_watch_rests_and_wakes_again_also_after_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []

    def watch(frame: Any, event: str, argument: Any) -> None:
        seen.append(event)

    def resting() -> list[Any]:
        found = []
        with Unwatched():
            found.append(sys.getprofile())
            with Unwatched():
                found.append(sys.getprofile())
            raise ValueError(found)

    monkeypatch.setattr("tmmu.passes.capture.watched.WATCHES", [watch])
    sys.setprofile(watch)
    try:
        with pytest.raises(ValueError, match="None, None"):
            resting()
        assert sys.getprofile() is watch
    finally:
        sys.setprofile(None)


@pytest.mark.parametrize("profile", [None, lambda frame, event, argument: None])
def test_nobody_else_s_profile_function_rests(profile: Any) -> None:
    assert WATCHES == []
    sys.setprofile(profile)
    try:
        with Unwatched():
            assert sys.getprofile() is profile
        assert sys.getprofile() is profile
    finally:
        sys.setprofile(None)
