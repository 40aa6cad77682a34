"""Files are whole or not at all."""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tmmu.codec.files import read_file, write_atomic, write_together
from tmmu.errors import InvalidConfig, PlanCorrupt


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_written_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "plan"
    write_atomic(path, b"one")
    write_atomic(str(path), b"two")
    assert read_file(path) == read_file(str(path)) == b"two"
    assert names(tmp_path) == ["plan"]


def test_permissions_are_those_of_any_new_file(tmp_path: Path) -> None:
    write_atomic(tmp_path / "one", b"")
    (tmp_path / "other").write_bytes(b"")
    assert (tmp_path / "one").stat().st_mode == (tmp_path / "other").stat().st_mode


def test_symbolic_link_is_followed_and_stays(tmp_path: Path) -> None:
    (tmp_path / "latest").symlink_to("plan")
    write_atomic(tmp_path / "latest", b"x")
    assert (tmp_path / "latest").is_symlink()
    assert (tmp_path / "plan").read_bytes() == b"x"


def test_devices_are_written_directly(terminal: str) -> None:
    write_atomic(terminal, b"x")
    assert Path(terminal).is_char_device()


@pytest.mark.parametrize("fails", ["fsync", "replace"])
def test_failure_leaves_the_old_contents_and_nothing_else(
    tmp_path: Path, fails: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "plan"
    path.write_bytes(b"old")

    def refuse(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", refuse) if fails == "fsync" else monkeypatch.setattr(Path, "replace", refuse)
    with pytest.raises(InvalidConfig, match="disk is full"):
        write_atomic(path, b"new")
    assert path.read_bytes() == b"old"
    assert names(tmp_path) == ["plan"]


def test_interrupted_write_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        write_atomic(tmp_path / "plan", b"new")
    assert names(tmp_path) == []


def test_killed_write_leaves_the_old_contents(tmp_path: Path) -> None:
    path = tmp_path / "plan"
    path.write_bytes(b"old")
    code = "import os, signal, sys; from tmmu.codec.files import write_atomic\n"
    code += "os.fsync = lambda _: os.kill(os.getpid(), signal.SIGKILL)\n"
    code += "write_atomic(sys.argv[1], b'new' * 100000)"
    done = subprocess.run([sys.executable, "-c", code, str(path)], check=False)
    assert done.returncode == -signal.SIGKILL
    assert path.read_bytes() == b"old"


def test_temporary_file_of_a_killed_process_is_no_obstacle(tmp_path: Path) -> None:
    for attempt in range(3):
        (tmp_path / f".tmmu-{os.getpid()}-{attempt}.tmp").write_bytes(b"leftover")
    write_atomic(tmp_path / "plan", b"x")
    assert (tmp_path / "plan").read_bytes() == b"x"


def refused_paths(folder: Path) -> dict[str, str]:
    (folder / "file").write_bytes(b"")
    return {
        str(folder): "it is a folder",
        str(folder / "absent" / "plan"): "no such file or folder",
        str(folder / "file" / "plan"): "part of the path is a file",
        str(folder / ("n" * 300)): "the name is too long",
        "a\0b": "null",
        "": "folder",
    }


def test_write_errors_say_why(tmp_path: Path) -> None:
    for path, why in refused_paths(tmp_path).items():
        with pytest.raises(InvalidConfig, match=why) as caught:
            write_atomic(path, b"x")
        assert caught.value.fix
        assert caught.value.fields["path"] == path


def test_read_errors_say_why(tmp_path: Path) -> None:
    for path, why in refused_paths(tmp_path).items():
        if path != str(tmp_path / ("n" * 300)):
            with pytest.raises(InvalidConfig, match=why):
                read_file(path)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_folder_without_permission_is_named(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(InvalidConfig, match="permission denied"):
        write_atomic(tmp_path / "plan", b"x")


def sparse_file(folder: Path) -> Path:
    path = folder / "sparse"
    path.touch()
    os.truncate(path, 1 << 40)
    return path


def test_file_above_the_limit_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "plan"
    path.write_bytes(bytes(100))
    assert len(read_file(path, limit=100)) == 100
    with pytest.raises(PlanCorrupt, match="more than 99 bytes"):
        read_file(path, limit=99)
    with pytest.raises(PlanCorrupt, match="more than"):
        read_file(sparse_file(tmp_path), limit=1000)


def test_files_written_together_are_all_there(tmp_path: Path, terminal: str) -> None:
    (tmp_path / "a").write_bytes(b"old")
    write_together([(tmp_path / "a", b"1"), (str(tmp_path / "b"), b"2"), (terminal, b"3")])
    assert ((tmp_path / "a").read_bytes(), (tmp_path / "b").read_bytes()) == (b"1", b"2")
    assert names(tmp_path) == ["a", "b"]


@pytest.mark.parametrize("second", ["absent/b", "folder", "full"])
@pytest.mark.parametrize("turn", [1, -1])
def test_failed_write_together_changes_no_file(tmp_path: Path, second: str, turn: int) -> None:
    (tmp_path / "a").write_bytes(b"old")
    (tmp_path / "folder").mkdir()
    (tmp_path / "full").symlink_to("/dev/full")
    with pytest.raises(InvalidConfig) as caught:
        write_together([(tmp_path / "a", b"new"), (tmp_path / second, b"new")][::turn])
    assert caught.value.fields["path"] == str(tmp_path / second), "the one that failed is named"
    assert (tmp_path / "a").read_bytes() == b"old"
    assert names(tmp_path) == ["a", "folder", "full"]


def test_contents_are_on_disk_before_any_rename(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    sync, rename = os.fsync, Path.replace

    def fsync(handle: int) -> None:
        calls.append("fsync")
        sync(handle)

    def replace(source: Path, target: Path) -> None:
        calls.append("replace")
        rename(source, target)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(Path, "replace", replace)
    write_together([(tmp_path / "a", b"1"), (tmp_path / "b", b"2")])
    assert calls[:4] == ["fsync", "fsync", "replace", "replace"]


def test_files_of_two_writers_do_not_mix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rename, others = Path.replace, list[threading.Thread]()

    def write(data: bytes) -> None:
        write_together([(tmp_path / name, data) for name in ("base", "graph", "plan")])

    def replace(source: Path, target: Path) -> None:
        rename(source, target)
        if not others:
            others.append(threading.Thread(target=write, args=(b"second",)))
            others[0].start()
            others[0].join(0.3)

    monkeypatch.setattr(Path, "replace", replace)
    write(b"first")
    others[0].join()
    assert {(tmp_path / name).read_bytes() for name in ("base", "graph", "plan")} == {b"second"}


def test_open_stream_by_name_is_appended_to(tmp_path: Path) -> None:
    code = "from tmmu.codec.files import write_atomic; write_atomic('/dev/stdout', b'data')"
    log = tmp_path / "log"
    shell = f'echo keep > {log}; {sys.executable} -c "{code}" >> {log}; {sys.executable} -c "{code}" | cat >> {log}'
    assert subprocess.run(["bash", "-c", shell], check=False).returncode == 0
    assert log.read_bytes() == b"keep\ndatadata"


def test_file_in_shared_memory_is_a_file(tmp_path: Path) -> None:
    """It lies below ``/dev``, where else devices and streams are."""
    folder = Path("/dev/shm")
    if not os.access(folder, os.W_OK):
        pytest.skip("there is no such folder")
    path = folder / f"{tmp_path.name}-{os.getpid()}"
    try:
        write_atomic(path, b"long before")
        write_atomic(path, b"now")
        assert path.read_bytes() == b"now"
    finally:
        path.unlink(missing_ok=True)


def test_what_a_killed_writer_left_is_removed_later(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, check=True)
    old, new, own = (tmp_path / f".tmmu-{number}-7.tmp" for number in (int(done.stdout), 999_999_999, os.getpid()))
    for path in (old, new, own):
        path.write_bytes(b"half")
    for path in (old, own):
        os.utime(path, (0, 0))
    (tmp_path / "below").mkdir()
    (tmp_path / "below" / old.name).write_bytes(b"half")
    os.utime(tmp_path / "below" / old.name, (0, 0))
    write_atomic(tmp_path / "plan", b"x")
    assert names(tmp_path) == sorted([".tmmu-999999999-7.tmp", own.name, "below", "plan"])
    assert (tmp_path / "below" / old.name).exists()


def test_pipe_is_no_ordinary_file_and_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InvalidConfig, match="it is no ordinary file"):
        read_file(tmp_path / "pipe")
    with pytest.raises(InvalidConfig, match="it is a folder"):
        read_file(tmp_path)
    (tmp_path / "file").write_bytes(b"content")
    assert read_file(tmp_path / "file") == b"content"
