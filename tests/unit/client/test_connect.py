import subprocess
import sys
from typing import Any

import pytest

import tmmu
from tmmu.errors import InvalidConfig, ServerGone


def test_connecting_imports_no_torch_and_says_that_nobody_is_there() -> None:
    code = (
        "import sys, tmmu\n"
        "try:\n    tmmu.connect('127.0.0.1:9', deadline=5)\n"
        "except tmmu.TmmuError as error:\n    print(error.code, 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "SERVER_GONE False\n"


def test_what_is_not_installed_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tmmu.client.connect.find_spec", lambda _: None)
    with pytest.raises(InvalidConfig, match=r"tmmu\[serve\]"):
        tmmu.connect("127.0.0.1:9")


@pytest.mark.parametrize(
    "options",
    [
        *({"deadline": deadline} for deadline in (0, -1, True, 1e9, float("nan"))),
        *({"key": key} for key in (7, "\udcff")),
        {"address": 9},
    ],
)
def test_arguments_that_are_none_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidConfig):
        tmmu.connect(**{"address": "127.0.0.1:9", **options})


def test_a_unix_socket_at_which_nobody_listens(tmp_path: Any) -> None:
    for path in (tmp_path / "nothing", tmp_path / ("long" * 60)):
        with pytest.raises(ServerGone):
            tmmu.connect(f"unix:{path}", deadline=5)
