"""The GPU check of fused kernels runs on the CPU too; a row without all of its kernels fails."""

import pytest

from benchmarks import gpu_fused
from benchmarks.gpu_check import CASES, Case
from tests.compiler import needs_compiler


@needs_compiler
@pytest.mark.slow
def test_a_language_model_is_near_with_all_of_its_kernels_on_the_cpu() -> None:
    row = gpu_fused.row_of(CASES[0], "cpu", small=True)
    assert row.fault == ""
    assert row.fused == row.compiled > 0
    assert row.near == 1
    assert 0 < row.difference < 1e-4
    assert min(row.fused_ms, row.plain_ms, row.eager_ms) > 0


def test_a_row_whose_ops_run_their_members_has_a_fault(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def row(case: Case, device: str, *, small: bool) -> gpu_fused.FusedRow:
        del device, small
        ran = SimpleRun(fused=3, compiled=2 if case.name == "vision" else 3)
        return gpu_fused.FusedRow(name=case.name, fault=gpu_fused.fault_of(ran))  # type: ignore[arg-type]

    monkeypatch.setattr(gpu_fused, "row_of", row)
    monkeypatch.setattr("sys.argv", ["gpu_fused", "--device", "cpu"])
    assert gpu_fused.main() == 1
    out = capsys.readouterr().out
    assert "FAULT 1 of 3 fused ops run their members: no kernel" in out
    assert out.count("FAULT") == 1


class SimpleRun:
    """What ``fault_of`` asks of a report."""

    def __init__(self, *, fused: int, compiled: int) -> None:
        self.fused, self.compiled, self.grown, self.unfused = fused, compiled, 0, "no kernel"
