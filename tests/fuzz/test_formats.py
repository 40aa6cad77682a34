"""Every format that is read, under damage: a value or one clear error, never a crash, a hang or an unsound plan.

A run of the default tests tries some hundred damaged files of each format, ``slow`` a thousand, ``long`` a hundred
thousand.
"""

import json
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.fuzz.test_cache import damage_bytes
from tests.unit.cache.cached import key, program
from tests.unit.ir.samples import fitted, graph, plan
from tmmu.cache.entry import EntryRefused, decode_entry, encode_entry, open_entry
from tmmu.codec.json_text import decode_json
from tmmu.codec.read import read_graph, read_plan
from tmmu.errors import TmmuError
from tmmu.golden.cases import MANIFEST, read_cases
from tmmu.golden.store import SUMS, print_sums, read_sums
from tmmu.ir.graph import encode_graph
from tmmu.ir.plan import encode_plan
from tmmu.judge.check import check_plan
from tmmu.judge.rules import check_graph
from tmmu.planner.intervals import read_intervals
from tmmu.runtime.weights.safetensors_files import stored_tensors

Read = Callable[[Path], object]


def read_entry(path: Path) -> None:
    try:
        found, planned = open_entry(decode_entry(path.read_bytes()))
    except EntryRefused:
        return
    assert (found, planned) == program()


def judge_graph(path: Path) -> None:
    check_graph(read_graph(path))


def judge_plan(path: Path) -> None:
    assert read_plan(path) == plan() or check_plan(graph(), read_plan(path))


def judge_fitted_plan(path: Path) -> None:
    assert read_plan(path) == fitted() or check_plan(graph(), read_plan(path))


def safetensors_file() -> bytes:
    header = json.dumps({"w": {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]}}).encode()
    return len(header).to_bytes(8, "little") + header + bytes(16)


FORMATS: dict[str, tuple[str, bytes, Read]] = {
    "graph": ("x.ir.cbor", encode_graph(graph()), judge_graph),
    "plan": ("x.plan.cbor", encode_plan(plan()), judge_plan),
    "plan of a rewritten graph": ("x.fit.plan.cbor", encode_plan(fitted()), judge_fitted_plan),
    "cache entry": ("x.entry", encode_entry(key(), *program()), read_entry),
    "golden cases": (
        MANIFEST,
        b'[a-case]\nreason = "why"\narenas = ["activations=layout:packed"]\nseeds = [0, 1]\nring = "2MiB"\n',
        lambda path: read_cases(path.parent),
    ),
    "golden checksums": (
        SUMS,
        print_sums({"a": "0" * 64, "b": "1" * 64}).encode(),
        lambda path: read_sums(path.parent),
    ),
    "intervals": ("x.csv", b"id,lower,upper,size,alignment,offset\na,0,4,16,8,\nb,2,5,16,8,32\n", read_intervals),
    "safetensors": ("x.safetensors", safetensors_file(), stored_tensors),
    "configuration": (
        "config.json",
        b'{"architectures": ["A"], "hidden_size": 64, "rope": {"a": [1, 2.5, null, true]}}',
        lambda path: decode_json(path.read_bytes()),
    ),
}


@pytest.mark.parametrize(
    "attempts",
    [200, pytest.param(1000, marks=pytest.mark.slow), pytest.param(100_000, marks=pytest.mark.long)],
)
@pytest.mark.parametrize("name", FORMATS)
def test_damaged_file_is_read_or_refused(tmp_path: Path, name: str, attempts: int) -> None:
    file, data, read = FORMATS[name]
    path, chance, refused = tmp_path / file, random.Random(attempts), 0
    path.write_bytes(data)
    read(path)
    for _ in range(attempts):
        path.write_bytes(damage_bytes(chance, data))
        try:
            read(path)
        except TmmuError:
            refused += 1
    assert name == "cache entry" or refused > attempts // 4


def test_numbers_and_keys_of_a_manifest_that_cost_much_are_refused(tmp_path: Path) -> None:
    path = tmp_path / MANIFEST
    for text in (
        "[a]\nseeds = [0x" + "f" * 20_000 + "]",
        "[" * 5000,
        "a." * 5000 + "b = 1",
        "[a]\nx = " + "[" * 50_000,
    ):
        path.write_text(text)
        with pytest.raises(TmmuError):
            read_cases(tmp_path)
