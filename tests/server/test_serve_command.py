"""``tmmu serve`` as a process: it says when it is ready, ends by SIGTERM, and refuses in one line."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread

import httpx
import pytest

import tmmu
from tests.docs.commands import ROOT
from tests.server.running import RunningServer
from tests.unit.cli.graphs import Shell
from tests.waiting import wait_for
from tmmu.cli.commands.service import serve as command
from tmmu.cli.commands.service.serve import _print_ready
from tmmu.cli.output import render
from tmmu.errors import ServerBusy, ServerGone, TmmuError

PROGRAM = (sys.executable, "-P", "-c", "from tmmu.cli.main import main; main()")
"""A process of its own: it is to get the signals itself."""


@contextmanager
def serving(*arguments: object) -> Iterator[tuple["subprocess.Popen[str]", str]]:
    """A server that is ready, and its address."""
    command = [*PROGRAM, "serve", "--listen", "127.0.0.1:0", *map(str, arguments)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"}
    ) as process:
        assert process.stdout is not None
        try:
            line = process.stdout.readline()
            assert line.startswith("ready at http://127.0.0.1:"), process.communicate()
            yield process, line.split()[2].removesuffix(":")
        finally:
            process.kill()


def ask_until_refused(url: str, asked: list[object]) -> None:
    """A client over the wire that asks again at once, so that a thread of the server stays with it."""
    with tmmu.connect(url.removeprefix("http://"), deadline=60) as remote:
        while True:
            try:
                asked.append(remote.models()[0].name)
            except TmmuError as error:
                asked.append(error)
                return


@pytest.mark.slow
def test_sigterm_lets_requests_end_and_takes_no_more(folder: Path) -> None:
    with serving("--model", f"text={folder}", "--budget", "4MiB") as (process, url):
        body = {"model": "text", "prompt": [1, 2], "max_tokens": 200, "seed": 1, "stream": True}
        asked: list[object] = []
        asker = Thread(target=ask_until_refused, args=(url, asked))
        asker.start()
        wait_for(lambda: len(asked) > 200)
        with (
            httpx.Client(base_url=url, timeout=60) as client,
            client.stream("POST", "/v1/completions", json=body) as answer,
        ):
            parts = answer.iter_lines()
            first = next(parts)
            process.send_signal(signal.SIGTERM)
            lines = [first, *parts]
        assert lines[-2] == "data: [DONE]" or lines[-1] == "data: [DONE]"
        _, log = process.communicate(timeout=60)
        assert process.returncode == 0
        asker.join(60)
        *answers, last = asked
        assert set(answers) == {"text"}
        assert isinstance(last, ServerBusy | ServerGone), last
        besides = ("doctor", "wire_opened", "wire_closed")
        events = [event for event in map(json.loads, log.splitlines()) if event["event"] not in besides]
        assert [event["event"] for event in events] == ["loaded", "ready", "draining", "request", "ended"]
        assert events[3]["status"] == 200
        with pytest.raises(httpx.ConnectError):
            httpx.get(f"{url}/health")


@pytest.mark.slow
def test_second_signal_waits_for_nobody(folder: Path) -> None:
    with serving("--model", f"text={folder}", "--budget", "4MiB") as (process, url):
        address = url.removeprefix("http://").split(":")
        with socket.create_connection((address[0], int(address[1]))) as silent:
            silent.sendall(
                b"POST /v1/completions HTTP/1.1\r\nContent-Type: application/json\r\nContent-Length: 9\r\n\r\n"
            )
            process.send_signal(signal.SIGINT)
            assert process.stderr is not None
            while json.loads(process.stderr.readline())["event"] != "draining":
                pass
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=60)
        assert process.returncode == 0


def test_model_that_cannot_be_loaded_ends_the_server_in_one_line(shell: Shell, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "bare").mkdir()
    (tmp_path / "bare/config.json").write_text((folder / "config.json").read_text())
    done = shell.tmmu("serve", "--model", f"bare={tmp_path / 'bare'}", "--listen", "127.0.0.1:0", "--budget", "8MiB")
    (line,) = [line for line in done.err.splitlines() if not line.startswith("{")]
    assert (done.code, "safetensors" in line) == (2, True)


def test_budget_that_is_too_small_says_what_is_needed(shell: Shell, folder: Path) -> None:
    for budget in ("100KiB", "560KiB"):
        done = shell.tmmu("serve", "--model", f"a={folder}", "--listen", "127.0.0.1:0", "--budget", budget)
        (line,) = [line for line in done.err.splitlines() if not line.startswith("{")]
        assert (done.code, line.split(":")[1].strip()) == (3, "DEVICE_MEMORY")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "give --model NAME=FOLDER"),
        (("--model", "a"), "names no model"),
        (("--model", "a=x", "--model", "a=y"), "two models are called 'a'"),
        (("--model", "a b=x"), "no space"),
        (("--model", "a=missing"), "no config.json"),
        (("--model", "a={folder}", "--listen", "0.0.0.0:0"), "there are no keys"),
        (("--model", "a={folder}", "--listen", "here"), "no address to listen at"),
        (("--model", "a={folder}", "--listen", "127.0.0.1:99999"), "no address to listen at"),
        (("--model", "a={folder}", "--budget", "much"), "--budget"),
        (("--model", "a={folder}", "--keys", "missing"), "missing"),
        (("--model", "a={folder}", "--settings", "missing"), "missing"),
    ],
)
def test_bad_calls_are_one_line(shell: Shell, folder: Path, arguments: tuple[str, ...], words: str) -> None:
    done = shell.tmmu("serve", *(argument.format(folder=folder) for argument in arguments))
    assert (done.code, done.err.count("\n")) == (2, 1), done.err
    assert words in done.err


def test_port_of_another_program_is_refused_before_anything_is_loaded(folder: Path) -> None:
    say = "import atexit, sys; atexit.register(lambda: print('torch' in sys.modules)); "
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        options = ("serve", "--model", f"a={folder}", "--listen", f"127.0.0.1:{port}", "--json")
        program = [*PROGRAM[:-1], say + PROGRAM[-1], *options]
        done = subprocess.run(program, capture_output=True, text=True, check=False)
    refusal, is_torch_there = done.stdout.splitlines()
    assert (done.returncode, json.loads(refusal)["code"], is_torch_there) == (2, "PORT_TAKEN", "False"), done.stderr
    assert json.loads(refusal)["fields"] == {"port": port}


def test_line_of_a_server_that_is_ready_may_be_an_object(
    server: RunningServer, capsys: pytest.CaptureFixture[str]
) -> None:
    _print_ready(server.service, as_json=True)
    models = {"text": {"max_tokens": 256}, "ids": {"max_tokens": 256}}
    assert json.loads(capsys.readouterr().out) == {"address": server.url, "models": models}
    _print_ready(server.service, as_json=False)
    size = render.size(sum(usage.capacity for usage in server.engine("ids").usage.values()))
    out = capsys.readouterr().out
    assert out.startswith(f"ready at {server.url}: text (")
    assert out.endswith(f", ids ({size}, 256 tokens)\n")


def test_what_is_not_installed_is_said(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "find_spec", lambda name: None if name == "uvicorn" else name)
    done = shell.tmmu("serve", "--model", "a=x")
    assert (done.code, "uvicorn is not installed" in done.err, "tmmu[serve]" in done.err) == (2, True, True)


def test_packages_are_those_of_the_extra() -> None:
    extra = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    brought = {re.split(r"[^\w-]", entry)[0].replace("-", "_") for entry in (*extra["serve"], *extra["hf"])}
    assert set(command.PACKAGES) <= brought
