"""What the doctor says of machines of either kind."""

import resource
from pathlib import Path

import pytest
import torch

from tmmu.server import doctor

HEADING = "Filename Type Size Used Priority\n"


def test_swap_is_off_or_so_large(tmp_path: Path) -> None:
    swaps = tmp_path / "swaps"
    assert doctor.check_swap(swaps).status == "pass"
    swaps.write_text(HEADING)
    assert doctor.check_swap(swaps).status == "pass"
    swaps.write_text(f"{HEADING}/a partition 1048576 0 -2\n/b file 1048576 5 -3\n")
    finding = doctor.check_swap(swaps)
    assert (finding.status, finding.state, finding.fix) == ("warn", "on, 2.0 GiB", "swapoff -a")


def test_locked_memory_is_limited_where_something_is_pinned() -> None:
    assert doctor.check_locked_memory("cuda", resource.RLIM_INFINITY).status == "pass"
    assert doctor.check_locked_memory("cpu", 8 << 20).status == "pass"
    finding = doctor.check_locked_memory("cuda", 8 << 20)
    assert (finding.status, finding.state) == ("warn", "limited to 8.0 MiB")


@pytest.mark.parametrize(
    ("cpus", "memory", "status"),
    [({0, 1}, (0,), "pass"), ({2}, (1,), "pass"), ({0}, (1,), "warn"), ({0, 2}, (0,), "warn"), ({0}, (0, 1), "warn"),
     (set(), (0,), "warn")],
)  # fmt: skip
def test_threads_and_memory_are_of_one_node(cpus: set[int], memory: tuple[int, ...], status: str) -> None:
    finding = doctor.check_binding({0: (0, 1), 1: (2, 3)}, cpus, memory)
    assert finding.status == status
    assert ("numactl" in finding.fix) == (status == "warn")
    assert doctor.check_binding({0: (0, 1)}, cpus, memory).status == "pass"


def test_compiler_is_there_or_not(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert doctor.check_compiler(None).state == "no C compiler"
    compiler = tmp_path / "gcc"
    compiler.write_text("")
    compiler.chmod(0o755)
    assert doctor.check_compiler(None).state == str(compiler)
    for named in ("gcc", "gcc -m64", " "):
        assert doctor.check_compiler(named).status == "pass"
    assert doctor.check_compiler("other-cc").state == "no other-cc"


def test_flash_attention_is_on_or_switched_off() -> None:
    def found() -> str:
        return next(f.status for f in doctor.examine_machine("cpu") if f.name == "flash attention")

    assert found() == "pass"
    torch.backends.cuda.enable_flash_sdp(False)
    try:
        assert found() == "warn"
    finally:
        torch.backends.cuda.enable_flash_sdp(True)


def test_pinned_copies_are_faster_or_something_is_wrong() -> None:
    fast = doctor.judge_rates({"pinned": 55 * 10**9, "pageable": 12 * 10**9}, "")
    assert (fast.status, fast.state) == ("pass", "pinned 55.0 GB/s, pageable 12.0 GB/s")
    assert doctor.judge_rates({"pinned": 10**9, "pageable": 2 * 10**9}, "").status == "warn"
    refused = doctor.judge_rates({"pageable": 10**9}, "error 2")
    assert (refused.status, refused.fix) == ("warn", "ulimit -l unlimited")
