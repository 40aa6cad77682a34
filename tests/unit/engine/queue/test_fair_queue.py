"""The fair queue in virtual time: shares of classes and clients, escalation, deadlines, and that nobody starves."""

from collections import Counter
from dataclasses import dataclass, field
from itertools import combinations, count
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tmmu.engine.queue.fair_queue import CREDIT_POSITIONS, STEP_POSITIONS, FairQueue, queue_of
from tmmu.engine.queue.terms import CLASSES, QueueTerms
from tmmu.errors import InvalidConfig

NUMBERS = count()


@dataclass(eq=False)
class Item:
    """A request that only counts."""

    terms: QueueTerms
    positions: int = 1
    is_prompt: bool = False
    since: float = 0.0
    due: float | None = None
    number: int = field(default_factory=lambda: next(NUMBERS))


def item(qos: str = "interactive", client: str = "", *, positions: int = 1, **rest: Any) -> Item:
    terms = {name: rest.pop(name) for name in ("weight", "priority") if name in rest}
    return Item(QueueTerms(qos=qos, client=client, **terms), positions, **rest)  # type: ignore[arg-type]


def anything(_: Item) -> bool:
    return True


class Load:
    """Clients that always have another request: each line is refilled as soon as it was served. Time is work."""

    def __init__(self, queue: FairQueue[Item], templates: list[Item]) -> None:
        self.queue, self.now = queue, 0.0
        self.work: Counter[tuple[str, str]] = Counter()
        self.waits: dict[str, list[float]] = {qos: [] for qos in CLASSES}
        for template in templates:
            queue.push(template)

    def serve(self, seconds: float = 0.0) -> Item:
        taken = self.queue.take_next(self.now, anything)
        assert taken is not None
        self.queue.charge_step([taken])
        self.waits[taken.terms.qos].append(self.now - taken.since)
        work = taken.positions + STEP_POSITIONS
        self.work[taken.terms.qos, taken.terms.client] += work
        self.now += seconds or work / 10_000
        self.queue.push(Item(taken.terms, taken.positions, taken.is_prompt, since=self.now))
        return taken

    def by_class(self) -> dict[str, int]:
        return {qos: sum(work for (each, _), work in self.work.items() if each == qos) for qos in CLASSES}


SIZES = st.integers(1, 512)


@given(st.tuples(SIZES, SIZES, SIZES), st.tuples(*[st.integers(1, 8)] * 3), st.sampled_from([None, 0.3]))
def test_classes_under_load_have_their_shares(
    sizes: tuple[int, ...], shares: tuple[int, ...], escalation: float | None
) -> None:
    queue: FairQueue[Item] = FairQueue(shares=shares, escalation=escalation)
    load = Load(queue, [item(qos, positions=size) for qos, size in zip(CLASSES, sizes, strict=True)])
    for _ in range(600):
        load.serve()
    largest = {qos: size + STEP_POSITIONS for qos, size in zip(CLASSES, sizes, strict=True)}
    had = {qos: work / share for (qos, work), share in zip(load.by_class().items(), shares, strict=True)}
    # out of turn: what it began with, what it may owe after one step, for one share of all
    owed = 0 if escalation is None else sum(shares) * (CREDIT_POSITIONS + max(largest.values()))
    for low, high in [(0, 1), (0, 2), (1, 2)]:
        one, two = CLASSES[low], CLASSES[high]
        bound = largest[one] / shares[low] + largest[two] / shares[high] + owed
        assert abs(had[one] - had[two]) <= bound


def test_shares_are_those_of_the_sources() -> None:
    load = Load(FairQueue(), [item(qos) for qos in CLASSES])
    for _ in range(800):
        load.serve()
    assert load.by_class() == {"realtime": 400 * 33, "interactive": 300 * 33, "batch": 100 * 33}


@given(st.lists(st.tuples(SIZES, st.integers(1, 4)), min_size=2, max_size=5), st.integers(1, 30))
def test_greedy_client_starves_nobody(clients: list[tuple[int, int]], greed: int) -> None:
    queue: FairQueue[Item] = FairQueue(escalation=None)
    templates = [
        item("interactive", str(number), positions=size, weight=weight) for number, (size, weight) in enumerate(clients)
    ]
    load = Load(queue, templates + [item("interactive", "greedy", positions=512) for _ in range(greed)])
    for _ in range(300):
        load.serve()
    weights = {str(number): (size, weight) for number, (size, weight) in enumerate(clients)} | {"greedy": (512, 1)}
    had = {client: load.work["interactive", client] / weight for client, (_, weight) in weights.items()}
    step = {client: (size + STEP_POSITIONS) / weight for client, (size, weight) in weights.items()}
    for one, two in combinations(had, 2):
        assert abs(had[one] - had[two]) <= step[one] + step[two]


@given(st.lists(st.tuples(st.sampled_from(CLASSES), st.sampled_from("abc"), SIZES), min_size=1, max_size=40))
def test_whatever_waits_is_served_once(rows: list[tuple[str, str, int]]) -> None:
    queue: FairQueue[Item] = FairQueue()
    items = [item(qos, client, positions=size) for qos, client, size in rows]
    for each in items:
        queue.push(each)
    assert len(queue) == len(items)
    served = []
    while (taken := queue.take_next(0.0, anything)) is not None:
        queue.charge_step([taken])
        served.append(taken.number)
    assert sorted(served) == sorted(each.number for each in items)
    assert not len(queue)


def test_who_comes_after_a_pause_is_next_and_brings_no_credit() -> None:
    queue: FairQueue[Item] = FairQueue(escalation=None)
    load = Load(queue, [item("batch"), item("interactive")])
    for _ in range(400):
        load.serve()
    queue.push(item("realtime", since=load.now))
    before = load.by_class()["realtime"]
    assert load.serve().terms.qos == "realtime"
    for _ in range(79):
        load.serve()
    assert load.by_class()["realtime"] - before == 40 * 33  # of 80 steps its half, and nothing for the time before


def test_class_whose_requests_may_not_run_saves_no_credit() -> None:
    queue: FairQueue[Item] = FairQueue(escalation=None)
    stuck = item("realtime")
    load = Load(queue, [stuck, item("interactive")])
    for _ in range(100):
        taken = queue.take_next(0.0, lambda each: each is not stuck)
        assert taken is not None
        queue.charge_step([taken])
        queue.push(taken)
    served = [load.serve().terms.qos for _ in range(70)]
    assert served.count("realtime") == 40


def test_client_whose_requests_may_not_run_saves_no_credit() -> None:
    queue: FairQueue[Item] = FairQueue(escalation=None)
    stuck = item(client="stuck")
    load = Load(queue, [stuck, item(client="other")])
    for _ in range(100):
        taken = queue.take_next(0.0, lambda each: each is not stuck)
        assert taken is not None
        queue.charge_step([taken])
        queue.push(taken)
    served = [load.serve().terms.client for _ in range(40)]
    assert served.count("stuck") == 20


def test_request_that_waited_goes_out_of_turn() -> None:
    """A batch of one long prompt waits for 4 * 544 positions of realtime by its share."""
    queue: FairQueue[Item] = FairQueue(escalation=0.3)
    load = Load(queue, [item("realtime"), item("batch", positions=512)])
    served = [load.serve(0.05).terms.qos for _ in range(20)]
    assert served == ["realtime"] * 6 + ["batch"] + ["realtime"] * 13
    assert queue.escalated == 1
    patient: FairQueue[Item] = FairQueue(escalation=None)
    load = Load(patient, [item("realtime"), item("batch", positions=512)])
    assert [load.serve(0.05).terms.qos for _ in range(66)] == ["realtime"] * 65 + ["batch"]


def test_work_out_of_turn_is_at_most_the_lowest_share() -> None:
    queue: FairQueue[Item] = FairQueue(escalation=0.1)
    load = Load(queue, [item("realtime"), item("interactive"), *(item("batch", positions=480) for _ in range(4))])
    for _ in range(4000):
        load.serve(0.2)  # everybody is late at once
    assert queue.escalated
    shares = load.by_class()
    assert abs(shares["batch"] / sum(shares.values()) - 1 / 8) < 0.02
    assert abs(shares["realtime"] / sum(shares.values()) - 4 / 8) < 0.02


def test_higher_class_waits_for_few_steps_out_of_turn() -> None:
    queue: FairQueue[Item] = FairQueue(escalation=0.1)
    load = Load(queue, [item("interactive"), item("batch")])
    for _ in range(500):
        load.serve(0.01)  # nobody is late, and credit is saved
    for _ in range(40):
        queue.push(item("batch", since=load.now))
        queue.push(item("interactive", since=load.now))
    load.now += 1
    queue.push(item("realtime", since=load.now))
    before = 0
    while load.serve(0.01).terms.qos != "realtime":
        before += 1
    assert before <= CREDIT_POSITIONS // STEP_POSITIONS


def test_steps_beside_which_nobody_waited_save_nothing_for_work_out_of_turn() -> None:
    queue: FairQueue[Item] = FairQueue(escalation=0.1)
    load = Load(queue, [item("interactive")])
    for _ in range(500):
        load.serve(0.01)
    for _ in range(9):
        queue.push(item("batch", since=load.now))
    load.now += 1
    queue.push(item("realtime", since=load.now))
    served = [load.serve(0.01).terms.qos for _ in range(3)]
    assert "realtime" in served
    assert queue.escalated <= 1


def test_rows_beside_come_from_all_classes_in_their_turn() -> None:
    queue: FairQueue[Item] = FairQueue()
    rows = [item("batch", "a"), item("interactive", "b"), item("interactive", "b"), item("realtime", "c")]
    for row in rows:
        queue.push(row)
    first = queue.take_next(0.0, anything)
    assert first is rows[3]
    assert queue.take_beside(1, anything) == [rows[1]]
    assert queue.take_beside(0, anything) == []
    assert queue.take_beside(9, lambda each: each.is_prompt) == []
    assert queue.take_beside(9, anything) == [rows[2], rows[0]]


def test_failing_predicate_loses_no_request() -> None:
    queue: FairQueue[Item] = FairQueue()
    rows = [item("batch"), item("interactive"), item("realtime")]
    for row in rows:
        queue.push(row)

    def fails(each: Item) -> bool:
        if each is rows[0]:
            raise ZeroDivisionError
        return True

    with pytest.raises(ZeroDivisionError):
        queue.take_beside(3, fails)
    with pytest.raises(ZeroDivisionError):
        queue.take_next(0.0, fails)
    assert len(queue) == 3


def test_priority_orders_the_requests_of_a_client_and_no_others() -> None:
    queue: FairQueue[Item] = FairQueue(patience=3)
    low, high, stranger = item(client="a"), item(client="a", priority=5), item(client="b", priority=9)
    for each in (low, high, stranger):
        queue.push(each)
    order = []
    while (taken := queue.take_next(0.0, anything)) is not None:
        queue.charge_step([taken])
        order.append(taken)
    assert order == [high, stranger, low]


def test_what_was_put_back_goes_on_before_others_of_its_kind() -> None:
    queue: FairQueue[Item] = FairQueue()
    begun, other = item(is_prompt=True), item(is_prompt=True, priority=9)
    queue.push(begun)
    assert queue.take_next(0.0, anything) is begun
    queue.push(other)
    queue.put_back(begun)
    token = item()
    queue.push(token)
    assert [queue.take_next(0.0, anything) for _ in range(3)] == [token, begun, other]


def test_higher_classes_that_may_run_outrank() -> None:
    queue: FairQueue[Item] = FairQueue()
    running = item("batch")
    assert not queue.outranks(running, anything)
    queue.push(item("batch"))
    assert not queue.outranks(running, anything)
    queue.push(item("interactive"))
    assert queue.outranks(running, anything)
    assert not queue.outranks(running, lambda each: each.terms.qos == "batch")
    assert not queue.outranks(item("interactive"), anything)


def test_requests_past_their_deadline_are_taken_out() -> None:
    queue: FairQueue[Item] = FairQueue()
    rows = [item(due=3.0), item("batch", due=1.0), item("realtime")]
    for row in rows:
        queue.push(row)
    assert queue.next_due == 1.0
    assert queue.take_late(0.5) == []
    assert queue.take_late(1.0) == [rows[1]]
    assert queue.next_due == 3.0
    assert {each.number for each in queue.clear()} == {rows[0].number, rows[2].number}
    assert (len(queue), queue.next_due) == (0, None)


def test_clients_that_are_gone_are_forgotten() -> None:
    queue: FairQueue[Item] = FairQueue()
    for number in range(500):
        queue.push(item(client=str(number)))
        taken = queue.take_next(0.0, anything)
        assert taken is not None
        queue.charge_step([taken])
    assert sum(len(group.lines) for group in queue._classes.values()) < 4


@pytest.mark.parametrize("shares", [(1, 2), (1, 0, 1), (1, True, 1), "432", 3, (1, 2, 2000)])
def test_what_are_no_shares_is_refused(shares: Any) -> None:
    with pytest.raises(InvalidConfig) as refusal:
        FairQueue(shares=shares)
    assert "realtime" in refusal.value.fix


def test_what_is_no_queue_is_refused() -> None:
    with pytest.raises(InvalidConfig):
        queue_of([])  # type: ignore[arg-type]
    queue: FairQueue[Item] = FairQueue()
    assert queue_of(queue) is queue


def test_endless_new_clients_do_not_hold_up_who_was_there() -> None:
    queue: FairQueue[Item] = FairQueue()
    old = item(client="old", positions=512)
    load = Load(queue, [old])
    load.serve()
    waited = 0
    for number in range(200):
        queue.push(item(client=f"new {number}"))
        taken = queue.take_next(load.now, anything)
        assert taken is not None
        queue.charge_step([taken])
        if taken.terms.client == "old":
            break
        waited += 1
    assert waited <= 544 // 33 + 1
