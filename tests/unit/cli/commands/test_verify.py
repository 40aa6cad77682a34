from dataclasses import replace
from pathlib import Path

import pytest

from tests.unit.cli.graphs import Shell, leaving_its_buffer, nothing_to_do, small
from tmmu.codec.load import load_plan
from tmmu.ir.plan import encode_plan


def test_plan_that_was_just_made_is_sound(shell: Shell) -> None:
    done = shell.tmmu("verify", shell.plan())
    assert (done.code, done.out, done.err) == (0, "sound: small.plan.cbor, 5 ops, 7 buffers\n", "")


def test_json_says_what_was_checked(shell: Shell) -> None:
    plan = shell.plan()
    assert shell.tmmu("verify", plan, "--json").record == {
        "sound": True,
        "addresses_checked": True,
        "digest": load_plan(plan).digest.hex(),
        "ops": 5,
        "buffers": 7,
        "meaning_checked": None,
    }


def test_graph_may_lie_elsewhere(shell: Shell) -> None:
    plan = shell.plan()
    Path("small.ir.cbor").rename("elsewhere")
    assert shell.tmmu("verify", plan).code == 2
    assert shell.tmmu("verify", plan, "--ir", "elsewhere").code == 0


def test_plan_without_its_token_is_judged_except_for_addresses(shell: Shell) -> None:
    plan = shell.plan("--seed", "7")
    done = shell.tmmu("verify", plan)
    assert (
        done.out
        == "sound: small.plan.cbor, 5 ops, 7 buffers; addresses not checked: give --seed, --token or --token-file\n"
    )
    assert shell.tmmu("verify", plan, "--seed", "7").out == "sound: small.plan.cbor, 5 ops, 7 buffers\n"


def test_another_token_is_a_mismatch(shell: Shell) -> None:
    done = shell.tmmu("verify", shell.plan(), "--seed", "1")
    assert done.code == 3
    assert done.err.startswith("tmmu: PLAN_MISMATCH: ")


def test_addresses_of_another_token_under_the_same_prefix_are_faults(shell: Shell) -> None:
    plan = load_plan(shell.plan())
    moved = replace(plan, slots=replace(plan.slots, address=tuple(address ^ 4096 for address in plan.slots.address)))
    Path("small.plan.cbor").write_bytes(encode_plan(moved))
    done = shell.tmmu("verify", "small.plan.cbor", "--seed", "0")
    assert done.code == 3
    assert done.err.startswith("tmmu: PLAN_UNSOUND: ")


def test_faults_are_counted_in_one_line_and_listed_in_json(shell: Shell) -> None:
    plan = load_plan(shell.plan())
    broken = replace(plan, buffers=replace(plan.buffers, offset=(0,) * 7))
    Path("small.plan.cbor").write_bytes(encode_plan(broken))
    done = shell.tmmu("verify", "small.plan.cbor", "--json")
    assert done.code == 3
    assert done.record["code"] == "PLAN_UNSOUND"
    assert len(done.record["fields"]["faults"]) > 1
    assert done.err.count("\n") == 1


@pytest.mark.parametrize("keep", [0, 1, 100, -1])
def test_cut_file_is_corrupt(shell: Shell, keep: int) -> None:
    plan = shell.plan()
    plan.write_bytes(plan.read_bytes()[:keep])
    done = shell.tmmu("verify", plan)
    assert (done.code, done.out) == (3, "")
    assert done.err.startswith("tmmu: PLAN_CORRUPT: ")
    assert done.err.count("\n") == 1


def test_smaller_graph_of_another_plan_is_a_mismatch(shell: Shell) -> None:
    """The plan names buffers that the graph lacks."""
    plan = shell.plan()
    shell.graph(nothing_to_do(), "less")
    done = shell.tmmu("verify", plan, "--ir", "less.ir.cbor")
    assert done.code == 3
    assert done.err.startswith("tmmu: PLAN_MISMATCH: small.plan.cbor on less.ir.cbor: [ir-hash] ")


def test_illegal_graph_is_refused_for_what_it_is(shell: Shell) -> None:
    plan = shell.plan()
    shell.graph(leaving_its_buffer(), "illegal")
    done = shell.tmmu("verify", plan, "--ir", "illegal.ir.cbor")
    assert done.code == 2
    assert done.err.startswith("tmmu: INVALID_IR_SHAPES: illegal.ir.cbor: ")


def test_graph_where_a_plan_should_be_is_corrupt(shell: Shell) -> None:
    shell.graph(small())
    assert shell.tmmu("verify", "small.ir.cbor", "--ir", "small.ir.cbor").err.startswith("tmmu: PLAN_CORRUPT: ")


@pytest.mark.parametrize("name", ["none.plan.cbor", "."])
def test_file_that_cannot_be_read_is_named(shell: Shell, name: str) -> None:
    done = shell.tmmu("verify", name)
    assert done.code == 2
    assert done.err.startswith("tmmu: INVALID_CONFIG: ")
    assert name in done.err
