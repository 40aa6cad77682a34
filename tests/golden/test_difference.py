"""The first buffer that differs between two plans, with new and old contents."""

from dataclasses import replace

from tests.unit.ir.samples import A0, A2, edit, fitted, graph, plan
from tmmu.codec.text import print_plan
from tmmu.golden.difference import first_difference
from tmmu.ir.plan import Plan

NAMED = replace(graph(), notes=replace(graph().notes, buffers=tuple(f"n{b}" for b in range(12))))


def with_changes(column: str, row: int, value: int) -> Plan:
    rows = list(getattr(plan().buffers, column))
    rows[row] = value
    return replace(plan(), buffers=replace(plan().buffers, **{column: tuple(rows)}))


def row_of(buffer: int) -> int:
    return plan().buffers.id.index(buffer)


def test_each_kind_has_new_and_old_contents() -> None:
    row = row_of(A2)
    birth, death = plan().buffers.birth[row], plan().buffers.death[row]
    assert first_difference(NAMED, "spans", plan(), with_changes("death", row, 40)) == (
        f"buffer {A2} (n{A2}) is live in [{birth}, 40), was live in [{birth}, {death})"
    )
    assert first_difference(NAMED, "slots", plan(), with_changes("slot", row, 0)) == (
        f"buffer {A2} (n{A2}) is in slot 0 of activations, of 192 bytes, was in slot 1 of activations, of 448 bytes"
    )
    assert f"in place of buffer {A0}" in first_difference(NAMED, "slots", plan(), with_changes("takes_over", row, A0))
    assert "at offset 64000 of activations, was" in first_difference(
        NAMED, "plan", plan(), with_changes("offset", row, 64000)
    )


def test_address_is_named_by_its_buffer() -> None:
    slots = plan().slots
    moved = replace(plan(), slots=replace(slots, address=(1 << 20, *slots.address[1:])))
    told = first_difference(NAMED, "addresses", plan(), moved)
    assert told == f"buffer 1 (n1) has address 0x0000000000100000, was address {slots.address[0]:#018x}"


def test_buffer_that_only_one_places_is_a_difference() -> None:
    rows = plan().buffers
    less = replace(plan(), buffers=replace(rows, **{name: getattr(rows, name)[:-1] for name in type(rows).__slots__}))
    last = rows.id[-1]
    assert first_difference(NAMED, "spans", plan(), less).startswith(
        f"buffer {last} (n{last}) is not placed, was live in"
    )
    assert first_difference(NAMED, "spans", less, plan()).endswith("), was not placed")


def test_rewrite_is_a_difference() -> None:
    assert first_difference(NAMED, "plan", plan(), fitted()).startswith("fit is {'version': 1, 'base_hash': b'")
    other = edit(fitted(), "fit.budget_bytes", 7)
    assert first_difference(NAMED, "plan", fitted(), other) == "fit.budget_bytes is 7, was 17179869184"


def test_first_field_is_named_if_no_buffer_differs() -> None:
    arenas = replace(plan().arenas, page=(4096,) * 4)
    assert first_difference(NAMED, "plan", plan(), replace(plan(), arenas=arenas)) == (
        "arenas.page is (4096, 4096, 4096, 4096), was (0, 0, 0, 0)"
    )
    remeasured = replace(plan(), metrics=dict(plan().metrics) | {"max_live": 99})
    assert first_difference(NAMED, "plan", plan(), remeasured).startswith("metrics.max_live is 99, was ")
    assert first_difference(NAMED, "plan", plan(), replace(plan(), mode="forward")) == "mode is forward, was inference"
    assert first_difference(NAMED, "plan", plan(), plan()) == "nothing that a plan file holds"
    assert print_plan(plan())
