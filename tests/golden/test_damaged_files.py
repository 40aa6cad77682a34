"""Golden files that are damaged, edited, missing or too many: every change is found and named."""

import random
import shutil
from dataclasses import replace

import pytest

from tests.golden.files import GOLDEN
from tests.unit.cli.graphs import Shell, leaving_its_buffer
from tmmu.codec.read import read_graph, read_plan
from tmmu.errors import PlanCorrupt, TmmuError
from tmmu.golden import store
from tmmu.golden.cases import PlanConfig, read_cases
from tmmu.golden.check import check_files
from tmmu.ir.encoding import cbor
from tmmu.ir.graph import encode_graph
from tmmu.ir.plan import encode_plan

pytestmark = pytest.mark.slow


def flip_bit(data: bytes, bit: int) -> bytes:
    changed = bytearray(data)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


def is_found() -> bool:
    """Whether the check of files alone finds a fault."""
    try:
        return bool(tuple(check_files(GOLDEN, read_cases(GOLDEN))))
    except TmmuError:
        return True


def test_every_bit_of_a_file_is_guarded(little: Shell) -> None:
    text = (GOLDEN / "cases.toml").read_text()
    (GOLDEN / "cases.toml").write_text(text[: text.index("[mixed")])
    for path in ("formats", "mixed-roles.ir.cbor", "mixed-roles.digests.txt", "mixed-roles.plans.cbor"):
        shutil.rmtree(GOLDEN / path) if path == "formats" else (GOLDEN / path).unlink()
    (GOLDEN / "mixed-roles.plan.txt").unlink()
    resum()
    assert not is_found()
    path = GOLDEN / "diamond.ir.cbor"
    data = path.read_bytes()
    for bit in range(8 * len(data)):
        path.write_bytes(flip_bit(data, bit))
        assert is_found(), f"bit {bit}"


def test_random_bits_of_every_file_are_guarded(shell: Shell) -> None:
    draw = random.Random(5)
    assert not is_found()
    for path in sorted(path for path in GOLDEN.rglob("*") if path.is_file()):
        data = path.read_bytes()
        for _ in range(2):
            path.write_bytes(flip_bit(data, draw.randrange(8 * len(data))))
            assert is_found(), path
        path.write_bytes(data)


@pytest.mark.parametrize("name", ["diamond.digests.txt", "diamond.plans.cbor", "SUMS", "cases.toml"])
def test_file_cut_short_or_emptied_is_found(little: Shell, name: str) -> None:
    data = (GOLDEN / name).read_bytes()
    for short in (data[:-1], data[: len(data) // 2], b""):
        (GOLDEN / name).write_bytes(short)
        assert little.tmmu("golden", "check").code in (2, 3)


def resum() -> None:
    """Write sums of the files as they are, as an update would."""
    sums = {name: store.checksum_of((GOLDEN / name).read_bytes()) for name in store.list_files(GOLDEN)}
    (GOLDEN / store.SUMS).write_text(store.print_sums(sums))


def test_digest_that_is_edited_with_its_sum_is_found_by_planning(little: Shell) -> None:
    path = GOLDEN / "diamond.digests.txt"
    lines = path.read_text().splitlines()
    head, _, last = lines[-1].rpartition(" ")
    lines[-1] = f"{head} {'f' * len(last)}"
    path.write_text("\n".join(lines) + "\n")
    resum()
    done = little.tmmu("golden", "check")
    assert done.code == 3
    assert (
        done.out == "diamond: remat_enabled/backward: plan moved: which buffer is not told by digests alone (seed 7)\n"
    )


@pytest.mark.parametrize("name", ["diamond.plan.txt", "diamond.plans.cbor", "diamond.digests.txt"])
def test_file_that_an_update_would_write_otherwise_is_found(little: Shell, name: str) -> None:
    data = (GOLDEN / name).read_bytes()
    edited = store.encode_plans({}) if name.endswith(".cbor") else data.replace(b"# diamond", b"# Diamond")
    (GOLDEN / name).write_bytes(edited)
    resum()
    done = little.tmmu("golden", "check")
    assert (done.code, done.out) == (3, f"diamond: stale: {name} is not what an update would write\n")
    assert f"wrote golden/{name}" in little.tmmu("golden", "update").out
    assert (GOLDEN / name).read_bytes() == data


def test_row_that_is_gone_or_too_much_is_found(little: Shell) -> None:
    path = GOLDEN / "diamond.digests.txt"
    text = path.read_text()
    last = text.splitlines()[-1]
    path.write_text(text.replace(last + "\n", "9" + last[1:] + "\n"))
    resum()
    done = little.tmmu("golden", "check")
    assert "diamond: remat_enabled/backward: missing: is asked for and not recorded (seed 7)" in done.out
    assert "diamond: remat_enabled/backward: orphan: is recorded and no longer asked for (seed 9)" in done.out


@pytest.mark.parametrize("name", ["diamond.ir.cbor", "diamond.digests.txt", "diamond.plans.cbor", "diamond.plan.txt"])
def test_missing_file_is_named(little: Shell, name: str) -> None:
    (GOLDEN / name).unlink()
    done = little.tmmu("golden", "check")
    assert done.code == 3
    assert f"files: missing: {name} is not there\n" in done.out


def test_orphan_is_named_and_not_removed(little: Shell) -> None:
    (GOLDEN / "forgotten.ir.cbor").write_bytes(b"\x00")
    assert "files: orphan: forgotten.ir.cbor belongs to no case" in little.tmmu("golden", "check").out
    done = little.tmmu("golden", "update")
    assert done.err.startswith("tmmu: GOLDEN_MISMATCH: golden/forgotten.ir.cbor belongs to no case")
    assert (GOLDEN / "forgotten.ir.cbor").exists()


def test_file_of_an_old_format_is_never_rewritten(little: Shell) -> None:
    path = GOLDEN / "formats" / "plan-v1" / "mixed-roles.plan.cbor"
    data = path.read_bytes()
    path.write_bytes(flip_bit(data, 77))
    out = little.tmmu("golden", "check").out
    assert "files: damaged: formats/plan-v1/mixed-roles.plan.cbor is not as it was written" in out
    assert "files: unreadable: formats/plan-v1/mixed-roles.plan.cbor: " in out
    assert "is not as it was written (restore it from version control)" in little.tmmu("golden", "update").err
    path.unlink()
    assert "is not as it was written (restore it from version control)" in little.tmmu("golden", "update").err
    assert not path.exists()


def test_kept_plan_that_is_no_longer_sound_is_found(little: Shell) -> None:
    graph_file = GOLDEN / "formats" / "ir-v1" / "mixed-roles.ir.cbor"
    shutil.copy(GOLDEN / "diamond.ir.cbor", graph_file)
    assert read_graph(graph_file)
    resum()
    assert "its graph mixed-roles.ir.cbor is not there" in little.tmmu("golden", "check").out


def test_kept_plan_that_the_judge_refuses_is_found(little: Shell) -> None:
    path = GOLDEN / "formats" / "plan-v1" / "mixed-roles.plan.cbor"
    plan = read_plan(path)
    path.write_bytes(encode_plan(replace(plan, buffers=replace(plan.buffers, offset=(0,) * len(plan.buffers)))))
    resum()
    out = little.tmmu("golden", "check").out
    assert out.startswith("files: unreadable: formats/plan-v1/mixed-roles.plan.cbor: [")


def test_illegal_graph_is_found(little: Shell) -> None:
    (GOLDEN / "diamond.ir.cbor").write_bytes(encode_graph(leaving_its_buffer()))
    done = little.tmmu("golden", "check")
    assert done.code == 3
    assert "diamond: unreadable: [window] " in done.out
    assert little.tmmu("golden", "update").err.startswith("tmmu: INVALID_IR_SHAPES: [window] ")


@pytest.mark.parametrize(
    "content",
    [
        [],
        {"format": "tmmu.golden.plans", "version": 2, "plans": {}},
        {"format": "tmmu.plan", "version": 1, "plans": {}},
        {"format": "tmmu.golden.plans", "version": 1},
        {"format": "tmmu.golden.plans", "version": 1, "plans": []},
        {"format": "tmmu.golden.plans", "version": 1, "plans": {"fast/inference": b""}},
        {"format": "tmmu.golden.plans", "version": 1, "plans": {"inference/inference": b"\xa0"}},
        {"format": "tmmu.golden.plans", "version": 1, "plans": {"inference/inference": 7}},
    ],
)
def test_malformed_file_of_plans_is_refused(content: object) -> None:
    with pytest.raises(PlanCorrupt):
        store.decode_plans(cbor.encode(content))


def test_digests_of_any_spelling_are_read_or_left_out() -> None:
    text = "# head\n\n1 a b c\n" + "9" * 5000 + " a b c\n-1 a b c\n1 a b\n\u0662 a b c\n2 x y z w\n"
    assert store.parse_digests(text) == {
        (1, PlanConfig(preset="a", mode="b")): ("c",),
        (2, PlanConfig(preset="x", mode="y")): ("z", "w"),
    }
