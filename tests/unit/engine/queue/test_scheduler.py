"""The scheduler on requests that only count: turns of prompts and decoding, batches, failures, threads."""

from collections.abc import Sequence
from concurrent.futures import CancelledError
from threading import Barrier, Event, Thread, get_ident
from time import monotonic
from typing import Any

import pytest

from tmmu.engine.queue.fair_queue import FairQueue
from tmmu.engine.queue.scheduler import Request, Scheduler
from tmmu.engine.queue.terms import QueueTerms
from tmmu.errors import DeadlineExceeded, InvalidConfig

Item = Request[str, int]


class Recorded:
    """A scheduler whose steps are noted: a prompt's parts have two tokens, and owners of one letter share steps."""

    def __init__(self, max_batch: int = 4, stacks: int = 1) -> None:
        self.log: list[tuple[str, ...]] = []
        self.threads: set[int] = set()
        self.gate: Event | None = None
        self.now = 0.0
        self.scheduler: Scheduler[str, int] = Scheduler(
            read_part=self.read_part,
            decode=self.decode,
            can_join=lambda first, other: first.owner[0] == other.owner[0],
            max_batch=max_batch,
            queue=FairQueue(),
            clock=lambda: self.now,
            stacks=stacks,
        )

    def read_part(self, request: Item, stack: int) -> int | None:
        self.threads.add(get_ident())
        self.log.append((f"prompt {request.owner}",))
        if request.owner == "bad":
            raise ValueError("bad prompt")
        request.done = min(request.done + 2, len(request.tokens))
        return None if request.done < len(request.tokens) else request.done

    def decode(self, requests: Sequence[Item], stack: int) -> list[int | Exception]:
        self.threads.add(get_ident())
        self.log.append(tuple(request.owner for request in requests))
        if self.gate is not None:
            self.gate.wait(30)
        if any(request.tokens[0] < 0 for request in requests):
            raise ValueError("bad token")
        return [
            KeyError(request.owner) if request.owner.endswith("!") else request.tokens[0] + 1 for request in requests
        ]

    def wait(self, *requests: Item) -> list[int]:
        self.scheduler.submit(requests)
        return self.scheduler.wait(requests)


def decode(owner: str, token: int = 0) -> Item:
    return Request(owner=owner, tokens=[token], is_prompt=False)


def prompt(owner: str, tokens: int) -> Item:
    return Request(owner=owner, tokens=[0] * tokens, is_prompt=True)


def test_prompts_and_decoding_take_turns() -> None:
    recorded = Recorded()
    requests = [prompt("p", 5), decode("a1"), decode("b1"), prompt("q", 1)]
    assert recorded.wait(*requests) == [5, 1, 1, 1]
    assert recorded.log == [("a1",), ("prompt p",), ("b1",), ("prompt p",), ("prompt p",), ("prompt q",)]


def test_steps_have_as_many_rows_as_a_power_of_two() -> None:
    recorded = Recorded()
    requests = [decode(f"a{i}", i) for i in range(7)] + [decode("b")]
    assert recorded.wait(*requests) == [1, 2, 3, 4, 5, 6, 7, 1]
    assert recorded.log == [("a0", "a1", "a2", "a3"), ("a4", "a5"), ("a6",), ("b",)]
    assert (recorded.scheduler.steps, recorded.scheduler.rows) == (4, 8)


def test_failure_is_that_of_its_own_step() -> None:
    recorded = Recorded()
    good, bad, other = decode("b", 1), decode("a", -1), prompt("bad", 3)
    recorded.scheduler.submit([bad, good, other])
    with pytest.raises(ValueError, match="bad token"):
        recorded.scheduler.wait([bad])
    assert recorded.scheduler.wait([good]) == [2]
    with pytest.raises(ValueError, match="bad prompt"):
        recorded.scheduler.wait([other])
    assert recorded.wait(decode("c")) == [1]


def test_failure_of_no_request_is_raised_and_nobody_waits_for_ever() -> None:
    recorded = Recorded()
    recorded.scheduler._can_join = lambda *_: (_ for _ in ()).throw(ZeroDivisionError("joins"))
    with pytest.raises(ZeroDivisionError, match="joins"):
        recorded.wait(decode("a1"), decode("a2"))


def test_refused_row_fails_alone() -> None:
    recorded = Recorded()
    requests = [decode("a1", 1), decode("a!"), decode("a3", 3), decode("a4", 4)]
    recorded.scheduler.submit(requests)
    assert recorded.scheduler.wait([requests[0], *requests[2:]]) == [2, 4, 5]
    with pytest.raises(KeyError):
        recorded.scheduler.wait([requests[1]])
    assert len(recorded.log) == 1


def test_request_that_waits_is_taken_back() -> None:
    recorded = Recorded()
    first, second, part = decode("a"), decode("b"), prompt("p", 9)
    recorded.scheduler.submit([first, second, part])
    assert recorded.scheduler.cancel(second)
    assert not recorded.scheduler.cancel(second)
    recorded.scheduler.wait([first])
    recorded.scheduler._run_step(recorded.scheduler._turns[0])
    assert part.done == 2
    assert recorded.scheduler.cancel(part)
    for request in (second, part):
        with pytest.raises(CancelledError):
            recorded.scheduler.wait([request])
    assert not recorded.scheduler.cancel(first)


def test_thread_of_the_scheduler_outlives_whatever_its_steps_raise(monkeypatch: pytest.MonkeyPatch) -> None:
    recorded = Recorded()

    def interrupt(*_: Any) -> Any:
        raise KeyboardInterrupt

    scheduler = recorded.scheduler
    for name in ("_decode", "_can_join"):
        with monkeypatch.context() as patch:
            patch.setattr(scheduler, name, interrupt)
            requests = [decode("a1"), decode("a2")]
            scheduler.submit(requests)
            scheduler.start()
            for request in requests:
                with pytest.raises(KeyboardInterrupt):
                    request.future.result(30)
    last = decode("a3")
    scheduler.submit([last])
    assert last.future.result(30) == 1
    scheduler.close()


@pytest.mark.parametrize("error", [None, ValueError("closed")])
def test_prompt_whose_part_runs_as_the_scheduler_closes_ends(error: Exception | None) -> None:
    scheduler, entered, leave = Recorded().scheduler, Event(), Event()

    def read_part(_: Item, stack: int) -> None:
        entered.set()
        leave.wait(30)

    scheduler._read_part = read_part
    part, late = prompt("p", 9), prompt("q", 9)
    scheduler.submit([part])
    scheduler.start()
    assert entered.wait(30)
    closing = Thread(target=scheduler.close, args=(error,), daemon=True)
    closing.start()
    while scheduler._is_open:
        closing.join(0.001)
    leave.set()
    closing.join(30)
    scheduler.submit([late])
    for request in (part, late):
        with pytest.raises(CancelledError if error is None else ValueError):
            request.future.result(30)


def test_cancelled_future_is_left_out() -> None:
    recorded = Recorded()
    first, second = decode("a1"), decode("a2")
    recorded.scheduler.submit([first, second])
    assert first.future.cancel()
    assert recorded.scheduler.wait([second]) == [1]
    assert recorded.log == [("a2",)]


def test_one_thread_runs_its_own_requests_and_many_share_steps() -> None:
    recorded = Recorded()
    recorded.wait(decode("a"))
    assert recorded.threads == {get_ident()}
    recorded.gate = Event()
    barrier, results = Barrier(5), {}

    def work(number: int) -> None:
        barrier.wait(30)
        results[number] = recorded.wait(decode(f"a{number}", number))[0]

    threads = [Thread(target=work, args=(number,)) for number in range(5)]
    for thread in threads:
        thread.start()
    while len(recorded.scheduler.queue) < 4:  # one runs and is held up; the others have come meanwhile
        pass
    recorded.gate.set()
    for thread in threads:
        thread.join(30)
    assert results == {number: number + 1 for number in range(5)}
    assert [len(step) for step in recorded.log[1:]] == [1, 4]


def test_thread_of_its_own_runs_what_nobody_waits_for() -> None:
    recorded = Recorded()
    recorded.scheduler.start()
    recorded.scheduler.start()
    requests = [prompt("p", 5), decode("a")]
    recorded.scheduler.submit(requests)
    assert [request.future.result(30) for request in requests] == [5, 1]
    assert get_ident() not in recorded.threads
    recorded.scheduler.close()
    recorded.scheduler.close()


def test_closing_cancels_what_waits() -> None:
    recorded = Recorded()
    requests: list[Any] = [decode("a"), prompt("p", 4)]
    recorded.scheduler.submit(requests)
    recorded.scheduler.close()
    assert all(request.future.cancelled() for request in requests)


def test_request_that_may_not_run_yet_is_passed_over_until_it_may() -> None:
    recorded = Recorded()
    ready = {"b", "q"}
    recorded.scheduler._can_run = lambda request: request.owner in ready
    waiting = [decode("a"), prompt("p", 1)]
    recorded.scheduler.submit(waiting)
    assert recorded.wait(decode("b"), prompt("q", 1)) == [1, 1]
    assert recorded.log == [("b",), ("prompt q",)]
    results: list[list[int]] = []
    thread = Thread(target=lambda: results.append(recorded.scheduler.wait(waiting)), daemon=True)
    thread.start()
    ready.update("ap")
    recorded.scheduler.wake()
    thread.join(30)
    assert results == [[1, 1]]


def test_waiting_thread_learns_that_its_request_was_taken_back() -> None:
    recorded = Recorded()
    recorded.scheduler._can_run = lambda _: False
    request = decode("a")
    failures: list[BaseException] = []

    def work() -> None:
        recorded.scheduler.submit([request])
        try:
            recorded.scheduler.wait([request])
        except CancelledError as error:
            failures.append(error)

    thread = Thread(target=work, daemon=True)
    thread.start()
    while not recorded.scheduler.cancel(request):
        thread.join(0.001)
    thread.join(30)
    assert len(failures) == 1


@pytest.mark.parametrize("worker", [False, True])
def test_callback_that_waits_for_a_step_is_refused_and_one_that_submits_goes_on(worker: bool) -> None:
    recorded = Recorded()
    refusals: list[InvalidConfig] = []
    first, waited, submitted = decode("a1", 1), decode("a2", 2), decode("a3", 3)

    def wait(_: object) -> None:
        with pytest.raises(InvalidConfig, match=r"callback of a step waits.*Engine\.enqueue") as error:
            recorded.wait(waited)
        refusals.append(error.value)

    first.future.add_done_callback(wait)
    first.future.add_done_callback(lambda _: recorded.scheduler.submit([submitted]))
    recorded.scheduler.submit([first])
    if worker:
        recorded.scheduler.start()
        assert submitted.future.result(30) == 4
    else:
        recorded.scheduler.run_until(submitted.future.done)
    recorded.scheduler.close()
    assert len(refusals) == 1
    assert waited.future.cancelled()
    assert recorded.log == [("a1",), ("a3",)]


def test_interruption_before_a_step_begins_leaves_the_queue_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    recorded = Recorded()

    def interrupt(turn: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(recorded.scheduler, "_run_step", interrupt)
        with pytest.raises(KeyboardInterrupt):
            recorded.wait(decode("a", 1))
    others = Thread(target=recorded.wait, args=(decode("b", 2),), daemon=True)
    others.start()
    others.join(30)
    assert not others.is_alive()
    assert recorded.log == [("b",)]


def of_class(request: Item, qos: str, deadline: float | None = None) -> Item:
    request.terms = QueueTerms(qos=qos, deadline=deadline)  # type: ignore[arg-type]
    return request


def test_higher_class_goes_between_the_parts_of_a_prompt() -> None:
    recorded = Recorded()
    long = of_class(prompt("p", 7), "batch")
    quick = [of_class(decode(f"a{number}"), "realtime") for number in range(2)]
    original = recorded.scheduler._read_part

    def read_part(request: Item, stack: int) -> int | None:
        if quick:
            recorded.scheduler.submit([quick.pop()])
        return original(request, stack)

    recorded.scheduler._read_part = read_part
    assert recorded.wait(long) == [7]
    assert recorded.log == [("prompt p",), ("a1",), ("prompt p",), ("a0",), ("prompt p",), ("prompt p",)]


def test_request_that_is_late_ends_by_its_code_and_others_go_on() -> None:
    recorded = Recorded()
    late, later, other = (of_class(decode(name), "realtime", deadline) for name, deadline in
                          [("a", 0.5), ("b", 2.0), ("c", None)])  # fmt: skip
    recorded.scheduler.submit([late, later, other])
    recorded.now = 0.5
    assert recorded.scheduler.wait([later, other]) == [1, 1]
    with pytest.raises(DeadlineExceeded) as refusal:
        recorded.scheduler.wait([late])
    assert refusal.value.fields["milliseconds"] == 500
    assert refusal.value.fix == "give a later deadline", "no class is higher"
    assert recorded.scheduler.late == 1
    assert recorded.log == [("b",), ("c",)]


def test_prompt_that_is_late_ends_between_two_parts() -> None:
    recorded = Recorded()
    original = recorded.scheduler._read_part

    def read_part(request: Item, stack: int) -> int | None:
        recorded.now += 1
        return original(request, stack)

    recorded.scheduler._read_part = read_part
    long = of_class(prompt("p", 9), "batch", 2.5)
    with pytest.raises(DeadlineExceeded):
        recorded.wait(long)
    assert (long.done, len(recorded.log)) == (6, 3)


@pytest.mark.parametrize("has_thread", [False, True])
def test_late_request_that_may_not_run_wakes_who_waits(has_thread: bool) -> None:
    recorded = Recorded()
    recorded.scheduler._clock = monotonic
    recorded.scheduler._can_run = lambda _: False
    late = of_class(decode("a"), "realtime", 0.01)
    recorded.scheduler.submit([late])
    if has_thread:
        recorded.scheduler.start()
        with pytest.raises(DeadlineExceeded):
            late.future.result(30)
        recorded.scheduler.close()
    else:
        with pytest.raises(DeadlineExceeded):
            recorded.scheduler.wait([late])


def test_prompt_is_cancelled_while_a_part_of_it_runs() -> None:
    recorded = Recorded()
    original = recorded.scheduler._read_part
    cancelled = []

    def read_part(request: Item, stack: int) -> int | None:
        if request.done:
            cancelled.append(recorded.scheduler.cancel(request))
        return original(request, stack)

    recorded.scheduler._read_part = read_part
    for tokens in (9, 4):  # behind a part in the middle, and behind the last one
        long = prompt("p", tokens)
        with pytest.raises(CancelledError):
            recorded.wait(long)
        assert long.done == 4
        assert not recorded.scheduler.cancel(long)
    assert cancelled == [True, True]
    assert recorded.wait(decode("a")) == [1]


def test_waiting_is_counted_by_request_and_step() -> None:
    recorded = Recorded()
    told: list[tuple[str, float]] = []
    recorded.scheduler.on_step = lambda request, seconds: told.append((request.owner, seconds))
    original = recorded.scheduler._read_part

    def read_part(request: Item, stack: int) -> int | None:
        recorded.now += 4
        return original(request, stack)

    recorded.scheduler._read_part = read_part
    long, token = prompt("p", 4), decode("a")
    recorded.scheduler.submit([long, token])
    recorded.now = 1.0
    recorded.scheduler.wait([long, token])
    assert told == [("a", 1.0), ("p", 1.0), ("p", 0.0)]
    assert (token.waited, long.waited) == (1.0, 1.0)


def test_nothing_is_submitted_where_a_stack_gets_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(thread: Thread) -> None:
        raise RuntimeError("can't start new thread")

    recorded = Recorded(stacks=2)
    with monkeypatch.context() as context:
        context.setattr("tmmu.engine.queue.scheduler.Thread.start", refuse)
        with pytest.raises(RuntimeError, match="new thread"):
            recorded.scheduler.submit([decode("a")])
    assert recorded.scheduler.waiting_requests == 0
    assert recorded.wait(decode("a", 4)) == [5]
    recorded.scheduler.close()
