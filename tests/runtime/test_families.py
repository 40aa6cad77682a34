"""The benchmark over all of transformers' architectures: a hundredth of it, and its bookkeeping."""

import json
from pathlib import Path

import pytest

from benchmarks.families import FAULTS, families, run, summary

FEW = ("gpt2", "llama", "m2m_100", "whisper")
"""One of each kind: a decoder, one with rotary positions, an encoder with a decoder, one that hears."""


@pytest.mark.slow
def test_a_hundredth_of_the_families_has_no_fault() -> None:
    rows = run(FEW)
    assert {row["family"] for row in rows} == set(FEW)
    assert not [row for row in rows if row["outcome"] in FAULTS]
    assert sum(row["outcome"] in ("equal", "near") for row in rows) >= 6


@pytest.mark.long
def test_all_families_have_no_fault() -> None:
    rows = run(list(families()))
    assert not [row for row in rows if row["outcome"] in FAULTS]
    ran = {row["family"] for row in rows if row["mode"] == "inference" and row["outcome"] in ("equal", "near")}
    assert len(ran) >= 100


def test_families_that_are_done_are_not_run_again(tmp_path: Path) -> None:
    kept = tmp_path / "rows.jsonl"
    row = {"family": "gpt2", "mode": "inference", "outcome": "other bits", "reason": "as it was"}
    kept.write_text(json.dumps({"family": "gpt2", "rows": [row]}) + "\n" + '{"family": "llam')
    assert run(["gpt2"], resume=kept) == [row]
    assert kept.read_text().count("\n") == 1
    assert "gpt2 inference: other bits: as it was" in summary([row])
