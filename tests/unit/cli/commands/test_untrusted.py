"""Every command that takes a model refuses an exported program that could run code, and runs none of it."""

import io
import zipfile
from pathlib import Path

import pytest
import torch

from tests.unit.cli.graphs import Shell

TARGET = "hostile.pt2"


class _Payload:
    def __reduce__(self) -> object:
        return Path.touch, (Path("ran"),)


@pytest.fixture
def hostile(shell: Shell) -> Shell:
    """A folder with an archive whose constants hold an object that makes the file ``ran`` when it is unpickled."""
    torch.export.save(torch.export.export(torch.nn.Linear(8, 2), (torch.zeros(2, 8),)), "program.pt2")
    buffer = io.BytesIO()
    torch.save(_Payload(), buffer)
    with zipfile.ZipFile("program.pt2") as source, zipfile.ZipFile(TARGET, "w") as archive:
        for record in source.infolist():
            hidden = "sample_inputs" in record.filename
            archive.writestr(record.filename, buffer.getvalue() if hidden else source.read(record))
        root = source.infolist()[0].filename.partition("/")[0]
        archive.writestr(f"{root}/data/constants/custom_obj_0", buffer.getvalue())
    return shell


@pytest.mark.parametrize(
    "words",
    [
        ("plan", TARGET, "-o", "out.plan.cbor"),
        ("run", TARGET, "--device", "cpu"),
        ("run", TARGET, "--device", "cpu", "--check"),
        ("diff", "program.pt2", TARGET),
    ],
    ids=" ".join,
)
def test_no_command_runs_code_of_an_archive(hostile: Shell, words: tuple[str, ...]) -> None:
    done = hostile.tmmu(*words)
    assert done.code == 2
    assert done.err.startswith("tmmu: INVALID_CONFIG")
    assert done.err.count("\n") == 1
    assert hostile.files() == (TARGET, "program.pt2")


def test_asking_the_cache_reads_bytes_and_runs_nothing(hostile: Shell) -> None:
    done = hostile.tmmu("cache", "why", TARGET)
    assert (done.code, done.out.startswith("not found: ")) == (0, True)
    assert hostile.files() == (TARGET, "program.pt2")
