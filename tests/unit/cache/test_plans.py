from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from threading import Barrier, Thread

import pytest

from tests.unit.cache.cached import TOKEN, CountingMaker, key, program
from tmmu.cache import Buckets, InputShape, LookupCounts, MissReason, PlanCache, inputs_part, pad_inputs, store
from tmmu.cache.entry import encode_entry
from tmmu.cache.miss import Miss
from tmmu.errors import CaptureFailed, PlanMismatch, PlanUnsound
from tmmu.ir.graph import Graph
from tmmu.ir.key import NoKey
from tmmu.ir.plan import Plan
from tmmu.judge.check import judge


def under(token: bytes) -> Callable[[Graph, Plan], None]:
    return lambda graph, plan: judge(graph, plan, token=token)


def never() -> tuple[Graph, Plan]:
    raise AssertionError("the plan is there already")


def test_lookup_is_cold_then_table_then_disk(tmp_path: Path) -> None:
    make, cache = CountingMaker(), PlanCache(tmp_path)
    cold, table = cache.get_or_make(key(), make), cache.get_or_make(key(), never)
    disk = PlanCache(tmp_path).get_or_make(key(), never)
    assert [answer.origin for answer in (cold, table, disk)] == ["cold", "table", "disk"]
    assert {answer.plan.digest for answer in (cold, table, disk)} == {program()[1].digest}
    assert all(answer.graph == program()[0] for answer in (cold, table, disk))
    assert cold.miss == Miss(MissReason.ABSENT)
    assert (table.miss, disk.miss, cold.store_error) == (None, None, "")
    assert make.calls == 1
    assert cache.counts == LookupCounts(table=1, disk=0, cold=1)


def test_disk_hit_fills_the_table(tmp_path: Path) -> None:
    PlanCache(tmp_path).get_or_make(key(), CountingMaker())
    cache = PlanCache(tmp_path)
    assert [cache.get_or_make(key(), never).origin for _ in range(3)] == ["disk", "table", "table"]


def test_decode_loop_of_a_thousand_steps_plans_once(tmp_path: Path) -> None:
    make, cache = CountingMaker(), PlanCache(tmp_path)
    for step in range(1000):
        inputs = (InputShape(name="ids", dtype="int64", shape=(1, 1 + step % 16)),)
        padded = pad_inputs(inputs, Buckets(lengths=(16, 32), axes={"ids": (1,)}))
        cache.get_or_make(key().with_parts(inputs_part(padded.inputs)), make)
    assert make.calls == 1
    assert cache.counts == LookupCounts(table=999, disk=0, cold=1)


def test_table_serves_without_a_folder(tmp_path: Path) -> None:
    make, cache = CountingMaker(), PlanCache(None)
    cold = cache.get_or_make(key(), make)
    assert cold.miss == Miss(MissReason.OFF)
    assert cache.get_or_make(key(), never).origin == "table"


def test_plan_without_a_key_is_made_each_time(tmp_path: Path) -> None:
    make, cache = CountingMaker(), PlanCache(tmp_path)
    for _ in range(2):
        cached = cache.get_or_make(NoKey("a library without code"), make)
        assert cached.miss == Miss(MissReason.NO_KEY, "a library without code")
    assert make.calls == 2
    assert store.entries(tmp_path) == ()


def test_keys_have_plans_of_their_own(tmp_path: Path) -> None:
    make, cache = CountingMaker(), PlanCache(tmp_path)
    for number in (1, 2, 1, 2):
        cache.get_or_make(key(number), make)
    assert make.calls == 2


def flip_middle_bit(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (flip_middle_bit, MissReason.DAMAGED),
        (lambda path: path.write_bytes(path.read_bytes()[:-1]), MissReason.CUT_OFF),
        (lambda path: path.write_bytes(b""), MissReason.CUT_OFF),
        (lambda path: path.write_bytes(b"x" * 1000), MissReason.FOREIGN),
        (lambda path: path.write_bytes(encode_entry(key(1), *program())), MissReason.FOREIGN),
        (lambda path: path.write_bytes(path.read_bytes().replace(b" 1\n", b" 0\n", 1)), MissReason.VERSION),
        (lambda path: path.unlink(), MissReason.ABSENT),
    ],
)
def test_damaged_entry_is_a_miss_and_is_written_again(
    tmp_path: Path, spoil: Callable[[Path], object], reason: MissReason
) -> None:
    PlanCache(tmp_path).get_or_make(key(), CountingMaker())
    spoil(store.entry_path(tmp_path, key()))
    cached = PlanCache(tmp_path).get_or_make(key(), CountingMaker())
    assert cached.origin == "cold"
    assert cached.miss is not None
    assert cached.miss.reason is reason
    assert PlanCache(tmp_path).get_or_make(key(), never).origin == "disk"


def unsound() -> tuple[Graph, Plan]:
    """A plan whose last buffer overlaps its neighbour, under a right digest."""
    graph, plan = program()
    offsets = (*plan.buffers.offset[:-1], plan.buffers.offset[-1] + 1)
    return graph, replace(plan, buffers=replace(plan.buffers, offset=offsets))


def test_unsound_plan_is_refused_and_not_stored(tmp_path: Path) -> None:
    with pytest.raises(PlanUnsound):
        PlanCache(tmp_path).get_or_make(key(), unsound)
    assert store.entries(tmp_path) == ()


def test_plan_under_another_token_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PlanMismatch):
        PlanCache(tmp_path).get_or_make(key(), program, under(bytes(64)))
    assert PlanCache(tmp_path).get_or_make(key(), program, under(TOKEN)).origin == "cold"


def test_reverify_judges_stored_plans(tmp_path: Path) -> None:
    """An entry of an unsound plan under a right digest is a miss."""
    store.save(tmp_path, key(), encode_entry(key(), *unsound()), limit=1 << 20)
    cached = PlanCache(tmp_path, reverify=True).get_or_make(key(), CountingMaker())
    assert cached.origin == "cold"
    assert cached.miss is not None
    assert cached.miss.reason is MissReason.UNSOUND
    assert PlanCache(tmp_path, reverify=True).get_or_make(key(), never, under(TOKEN)).origin == "disk"


def test_reverify_checks_the_token(tmp_path: Path) -> None:
    PlanCache(tmp_path).get_or_make(key(), CountingMaker())
    with pytest.raises(PlanMismatch):
        PlanCache(tmp_path, reverify=True).get_or_make(key(), CountingMaker(), under(bytes(64)))


def test_failure_is_not_remembered(tmp_path: Path) -> None:
    cache = PlanCache(tmp_path)

    def fails() -> tuple[Graph, Plan]:
        raise CaptureFailed("no")

    for _ in range(2):
        with pytest.raises(CaptureFailed):
            cache.get_or_make(key(), fails)
    assert cache.get_or_make(key(), CountingMaker()).origin == "cold"
    assert cache.counts == LookupCounts(table=0, disk=0, cold=1)


def test_folder_that_cannot_be_written_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    cache = PlanCache(tmp_path / "file")
    cached = cache.get_or_make(key(), CountingMaker())
    assert cached.origin == "cold"
    assert cached.miss is not None
    assert cached.miss.reason is MissReason.UNREADABLE
    assert cached.store_error
    assert cache.get_or_make(key(), never).origin == "table"


def test_threads_that_miss_one_key_make_its_plan_once(tmp_path: Path) -> None:
    make, cache, start = CountingMaker(), PlanCache(tmp_path), Barrier(8)
    origins: list[str] = []

    def ask() -> None:
        start.wait()
        origins.append(cache.get_or_make(key(), make).origin)

    threads = [Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert make.calls == 1
    assert sorted(origins) == ["cold", *["table"] * 7]
    assert cache._key_locks == {}


def test_make_may_ask_for_another_plan(tmp_path: Path) -> None:
    cache, make = PlanCache(tmp_path), CountingMaker()

    def outer() -> tuple[Graph, Plan]:
        inner = cache.get_or_make(key(2), make)
        return inner.graph, inner.plan

    assert cache.get_or_make(key(1), outer).origin == "cold"
    assert make.calls == 1


def test_table_is_bounded(tmp_path: Path) -> None:
    cache, make = PlanCache(None, rows=2), CountingMaker()
    for number in (1, 2, 3, 1):
        cache.get_or_make(key(number), make)
    assert make.calls == 4


def test_graph_is_found_under_keys_that_plan_it_in_other_ways(tmp_path: Path) -> None:
    cache = PlanCache(tmp_path)
    assert cache.find_graph(key(token=2)) is None
    cache.get_or_make(key(token=1), program)
    assert PlanCache(tmp_path).find_graph(key(token=2)) == program()[0]
    assert PlanCache(tmp_path).find_graph(key(mode=2)) is None
    assert PlanCache(None).find_graph(key(token=2)) is None


def test_malformed_graph_is_not_found(tmp_path: Path) -> None:
    graph, plan = program()
    broken = replace(graph, buffers=replace(graph.buffers, bytes=(-1,) * len(graph.buffers)))
    store.save(tmp_path, key(token=1), encode_entry(key(token=1), broken, plan), limit=1 << 20)
    assert PlanCache(tmp_path).find_graph(key(token=2)) is None


def test_lookup_makes_nothing(tmp_path: Path) -> None:
    cache = PlanCache(tmp_path)
    assert cache.lookup(key()) == Miss(MissReason.ABSENT)
    cache.get_or_make(key(), CountingMaker())
    cached = PlanCache(tmp_path).lookup(key())
    assert not isinstance(cached, Miss)
    assert cached.origin == "disk"


def test_specification_lists_every_miss_reason() -> None:
    page = (Path(__file__).parents[3] / "docs" / "spec" / "cache.md").read_text()
    rows = [line.split("`")[1] for line in page.splitlines() if line.startswith("| `") and line.split("`")[1].isupper()]
    assert rows == [reason.name for reason in MissReason]
