"""``tmmu bandwidth``: reports with and without a GPU."""

import json

import pytest

from tests.unit.cli.graphs import Shell
from tmmu.cli.commands.bandwidth import lines, record
from tmmu.runtime.device.bandwidth import Bandwidth, CopyRate, PciLink

LINK = PciLink(address="0000:3b:00.0", speed="16.0 GT/s PCIe", width="8", max_speed="32.0 GT/s PCIe", max_width="16")
GPU = Bandwidth(
    device="cuda:0",
    name="a GPU",
    rates=(
        CopyRate(source="pinned", target="device", bytes=1 << 28, best_ns=11_000_000, small_ns=9_870),
        CopyRate(source="pageable", target="device", bytes=1 << 28, best_ns=99_000_000, small_ns=12_000),
    ),
    link=LINK,
    unpinned="",
)


def test_gpu_report_has_copies_and_link() -> None:
    assert list(lines(GPU)) == [
        "cuda:0: a GPU",
        "",
        "from      to          bytes       rate  one of 4 KiB",
        "pinned    device  256.0 MiB  24.4 GB/s        9.9 us",
        "pageable  device  256.0 MiB   2.7 GB/s       12.0 us",
        "",
        "link 0000:3b:00.0: 16.0 GT/s PCIe, 8 lanes, at most 32.0 GT/s PCIe, 16 lanes",
    ]


def test_memory_that_cannot_be_pinned_is_reported() -> None:
    refused = Bandwidth(device="cuda:0", name="a GPU", rates=GPU.rates[1:], link=None, unpinned="no room")
    assert list(lines(refused))[-1] == "memory cannot be pinned: no room; raise the limit of locked memory (ulimit -l)"


def test_record_has_every_field() -> None:
    report = record(GPU)
    assert json.loads(json.dumps(report)) == report
    assert report["rates"][0]["bytes_per_second"] == (1 << 28) * 10**9 // 11_000_000
    assert report["link"]["width"] == "8"


def test_bandwidth_without_a_gpu_measures_the_host_and_says_so(shell: Shell) -> None:
    done = shell.tmmu("bandwidth", "--device", "cpu", "--size", "64KiB", "--tries", "1")
    assert done.code == 0
    assert done.out.splitlines()[0] == "cpu: the host's memory"
    assert done.out.splitlines()[-1].startswith("no GPU: copies within the host's memory")


def test_json_is_one_object(shell: Shell) -> None:
    done = shell.tmmu("bandwidth", "--device", "cpu", "--size", "64KiB", "--tries", "1", "--json")
    report = json.loads(done.out)
    assert report["device"] == "cpu"
    assert all(rate["bytes"] == 1 << 16 and rate["bytes_per_second"] > 0 for rate in report["rates"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--size", "1KiB"), "measure nothing"),
        (("--size", "much"), "--size"),
        (("--tries", "0"), "--tries"),
        (("--device", "tpu"), "is no device"),
        (("--device", "meta"), "DEVICE_MISSING"),
        (("--size", "900TiB", "--device", "cpu"), "DEVICE_MEMORY"),
    ],
)
def test_options_that_make_no_sense_are_one_line(shell: Shell, arguments: tuple[str, ...], message: str) -> None:
    done = shell.tmmu("bandwidth", *arguments)
    assert done.code in (2, 3)
    assert message in done.err
    assert len(done.err.splitlines()) == 1
