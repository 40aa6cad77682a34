"""The GPU benchmark runs on the CPU too: every variant equals the module, and no wait is missing."""

import json

import pytest
import torch

from benchmarks import gpu_ring


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    """The program in this process, whose imports are made."""
    monkeypatch.setattr("sys.argv", ["gpu_ring", *arguments])
    with torch.random.fork_rng(devices=()):
        return gpu_ring.main()


def test_variants_equal_the_module_bit_for_bit(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "--device", "cpu", "--small", "--json") == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [row["name"] for row in rows] == [variant.name for variant in gpu_ring.VARIANTS]
    assert all(row["wrong"] == row["races"] == 0 and row["share_ppm"] > 0 for row in rows)
    moved = {row["name"]: row["pass_bytes"] for row in rows}
    assert moved["cyclic"] < moved["double"]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_benchmark_without_a_gpu_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch) == 2
    assert "--device cpu runs the same rows there" in capsys.readouterr().err
