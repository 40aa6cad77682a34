"""Figures of lifetimes: the peak by hand, who holds what at it, cycles, and what torch's allocator reserves."""

from dataclasses import replace

from tests.unit.ir.samples import described_graph, eager_run, edit, graph
from tmmu.eager.peak import eager_figures, live_levels
from tmmu.ir.graph import Graph
from tmmu.ir.lifetimes import CYCLE


def with_storages(**columns: object) -> Graph:
    run = eager_run()
    return edit(described_graph(), "notes.eager", replace(run, storages=replace(run.storages, **columns)))


def test_live_bytes_are_those_between_birth_and_death() -> None:
    assert live_levels(eager_run().storages, 6) == [64, 320, 320, 256, 272, 256]


def test_peak_is_the_fullest_call_and_names_what_it_makes() -> None:
    found = eager_figures(described_graph())
    assert found is not None
    assert (found.stack_bytes, found.total_bytes, found.position) == (320, 448, 1)
    assert (found.maker, found.source, found.python) == ("aten.relu.default", "net.py:4", "3.12")
    assert (found.holdings, found.collected_bytes) == ((), None)


def test_holders_at_the_peak_are_named_most_bytes_first() -> None:
    found = eager_figures(with_storages(bytes=(64, 256, 512), death=(6, 6, 5), last_use=(1, 3, 4)))
    assert found is not None
    assert found.position == 4
    assert [(row.holder, row.bytes, row.storages) for row in found.holdings] == [
        (CYCLE, 256, 1),
        ("forward of net.py:3 until it returns", 64, 1),
    ]


def test_stack_without_garbage_is_said_where_a_cycle_holds_some_at_the_peak() -> None:
    found = eager_figures(with_storages(bytes=(64, 256, 512), death=(6, 6, 5), last_use=(1, 3, 4)))
    assert found is not None
    assert (found.stack_bytes, found.collected_bytes) == (832, 576)


def test_what_is_used_at_the_peak_is_held_by_nobody() -> None:
    found = eager_figures(with_storages(last_use=(1, 4, 4), death=(3, 6, 5), bytes=(64, 256, 512)))
    assert found is not None
    assert (found.position, found.holdings) == (4, ())


def test_allocator_takes_whole_segments_for_weights_state_and_step() -> None:
    on_card = replace(described_graph(), target="cuda")
    found, on_cpu = eager_figures(on_card), eager_figures(replace(on_card, target="cpu"))
    assert found is not None
    assert on_cpu is not None
    assert (found.reserved_bytes, on_cpu.reserved_bytes) == (3 * (2 << 20), None), "one for each stream of the step"
    one_stream = eager_figures(edit(on_card, "notes.eager.storages.stream", ()))
    assert one_stream is not None
    assert one_stream.reserved_bytes == 2 << 20
    large = eager_figures(edit(on_card, "buffers.bytes", 3 << 20, 1))
    assert large is not None
    assert large.reserved_bytes == 3 * (2 << 20) + (20 << 20)


def test_graph_of_version_1_has_no_figure() -> None:
    assert eager_figures(graph()) is None
