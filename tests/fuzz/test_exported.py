"""Exported programs from outside, of any bytes: read or refused, and nothing of them runs."""

import io
import random
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import pytest
import torch

from tests.fuzz.test_formats import damage_bytes
from tmmu.errors import InvalidConfig, TmmuError
from tmmu.passes.capture.targets.exported import read_exported

Damage: TypeAlias = Callable[[random.Random, bytes], bytes]


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The archive of a small program with weights, a buffer and a constant."""

    class Small(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.line = torch.nn.Linear(4, 3)
            self.register_buffer("shift", torch.ones(3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.line(x).relu() + self.shift + torch.tensor([1.0, 2.0, 3.0])

    path = tmp_path_factory.mktemp("exported") / "small.pt2"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.export.save(torch.export.export(Small(), (torch.zeros(2, 4),)), path)
    return path.read_bytes()


def damage_record(chance: random.Random, data: bytes) -> bytes:
    """The archive with one record damaged; its sums hold."""
    made = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as archive, zipfile.ZipFile(made, "w") as changed:
        records = archive.infolist()
        broken = chance.choice(records)
        for record in records:
            content = archive.read(record)
            changed.writestr(record.filename, damage_bytes(chance, content) if record is broken else content)
    return made.getvalue()


LONG_SHARDS = [pytest.param(1000, shard, marks=pytest.mark.long) for shard in range(1, 101)]
"""A hundred thousand files, in shards that run beside each other and, with ``--last-failed``, apart from each other."""


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("attempts", "shard"), [(20, 0), pytest.param(1000, 0, marks=pytest.mark.slow), *LONG_SHARDS])
@pytest.mark.parametrize(("damage", "least"), [(damage_bytes, 4), (damage_record, 10)], ids=["bytes", "record"])
def test_damaged_archive_is_read_or_refused(
    tmp_path: Path, program: bytes, damage: Damage, least: int, attempts: int, shard: int
) -> None:
    """One of ``least`` at the fewest is refused; undamaged, it is read."""
    path, chance, refused = tmp_path / "x.pt2", random.Random(attempts + shard * 1_000_003), 0
    path.write_bytes(program)
    read_exported(path, trust=False, weights=True)
    for _ in range(attempts):
        path.write_bytes(damage(chance, program))
        try:
            read_exported(path, trust=False, weights=True)
        except TmmuError:
            refused += 1
    assert refused > attempts // least


def test_archive_in_several_parts_is_refused(tmp_path: Path, program: bytes) -> None:
    path = tmp_path / "x.pt2"
    locator = program.rindex(b"PK\x06\x07")
    path.write_bytes(program[: locator + 4] + b"\x01" + program[locator + 5 :])
    with pytest.raises(InvalidConfig, match="is no exported program"):
        read_exported(path, trust=False, weights=True)
