"""The benchmark that fuses all of transformers' architectures: a hundredth of it."""

import pytest

from benchmarks.families import families
from benchmarks.fuse import FAULTS, run, summary

FEW = ("gpt2", "llama", "whisper", "resnet")


@pytest.mark.slow
def test_a_hundredth_of_the_families_is_fused_without_a_fault() -> None:
    rows = run(FEW)
    assert not [row for row in rows if row["outcome"] in FAULTS]
    assert sum(row["outcome"] == "fused" for row in rows) >= 6
    assert "families" in next(summary(rows))


@pytest.mark.long
def test_all_families_are_fused_without_a_fault() -> None:
    rows = run(list(families()), seconds=900, runs=("fused", "inductor"))
    assert not [row for row in rows if row["outcome"] in FAULTS]
