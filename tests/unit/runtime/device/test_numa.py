"""Pages come from the GPU's node if it is known, else from all nodes in turn; on one node from anywhere."""

import os
from pathlib import Path

import pytest

from tmmu.runtime.device.numa import bind_thread, device_node, first_touch_cpus, node_cpus, parse_cpus

TWO = {0: (0, 1), 2: (4, 5)}


def machine(root: Path, nodes: dict[str, str]) -> Path:
    for name, cpus in nodes.items():
        (root / name).mkdir()
        (root / name / "cpulist").write_text(cpus)
    return root


@pytest.mark.parametrize(
    ("text", "cpus"), [("0-3,8\n", (0, 1, 2, 3, 8)), ("", ()), ("\n", ()), ("7", (7,)), ("0-0", (0,))]
)
def test_cpu_list_is_parsed(text: str, cpus: tuple[int, ...]) -> None:
    assert parse_cpus(text) == cpus


def test_nodes_without_cpus_are_left_out_and_order_is_by_number(tmp_path: Path) -> None:
    root = machine(tmp_path, {"node10": "4-5\n", "node2": "0-1\n", "node3": "\n"})
    assert list(node_cpus(root).items()) == [(2, (0, 1)), (10, (4, 5))]


def test_unreadable_nodes_are_no_nodes(tmp_path: Path) -> None:
    assert node_cpus(tmp_path / "none") == {}
    assert node_cpus(machine(tmp_path, {"node0": "0-x"})) == {}


def test_nodes_of_this_machine_hold_this_process() -> None:
    nodes = node_cpus()
    assert not nodes or os.sched_getaffinity(0) <= {cpu for cpus in nodes.values() for cpu in cpus}


def test_node_of_a_device_is_its_own_or_unknown(tmp_path: Path) -> None:
    (tmp_path / "0000:3b:00.0").mkdir()
    (tmp_path / "0000:3b:00.0" / "numa_node").write_text("1\n")
    assert device_node("0000:3B:00.0", tmp_path) == 1
    assert device_node("0000:3c:00.0", tmp_path) == -1


def test_workers_touch_on_the_given_node_or_on_all_in_turn() -> None:
    assert [first_touch_cpus(n, TWO, 2) for n in range(3)] == [(4, 5)] * 3
    assert [first_touch_cpus(n, TWO, -1) for n in range(3)] == [(0, 1), (4, 5), (0, 1)]
    assert [first_touch_cpus(n, TWO, 1) for n in range(2)] == [(0, 1), (4, 5)]
    assert first_touch_cpus(0, {0: (0, 1)}, 0) == ()


def test_thread_is_bound_to_allowed_cpus_only() -> None:
    allowed = sorted(os.sched_getaffinity(0))
    try:
        assert bind_thread(allowed[:1])
        assert os.sched_getaffinity(0) == {allowed[0]}
        assert not bind_thread([])
        assert not bind_thread([1 << 20])
        assert os.sched_getaffinity(0) == {allowed[0]}
    finally:
        os.sched_setaffinity(0, allowed)
