"""A loop that has ended runs no jobs, and says so to all who have one."""

from threading import Event
from types import SimpleNamespace
from typing import Any

import pytest

from tmmu.errors import TmmuError
from tmmu.server.metrics import ServerMetrics
from tmmu.server.model_table import ModelTable
from tmmu.server.texts import generation_loop as module
from tmmu.server.texts.generation_job import GenerationJob, TextEnd
from tmmu.server.texts.generation_loop import GenerationLoop


class Scheduler:
    """Runs until it is woken; fails then where it is to."""

    def __init__(self) -> None:

        self.is_woken, self.fails = Event(), False

    def wake(self) -> None:
        self.is_woken.set()

    def run_until(self, _: Any) -> None:
        assert self.is_woken.wait(60)
        if self.fails:
            raise MemoryError("none left")


def job_of(events: list[Any]) -> GenerationJob:
    return GenerationJob(
        prompt=(1,), choices=2, first_choice=4, max_new_tokens=1, sampling=None, seed=0,  # type: ignore[arg-type]
        stop_tokens=(), stops=(), on_event=events.append,
    )  # fmt: skip


def loop_of(scheduler: Scheduler) -> GenerationLoop:
    engine: Any = SimpleNamespace(scheduler=scheduler, stacks=1)
    watch: Any = SimpleNamespace(gauge=SimpleNamespace(level="normal"), has_news=False)
    return GenerationLoop(engine, name="a", text=None, encodes=False, observer=None, watch=watch)  # type: ignore[arg-type]


def errors_of(events: list[TextEnd]) -> list[tuple[int, str]]:
    found = [(event.choice, event.error) for event in events]
    return [(choice, error.code) for choice, error in found if isinstance(error, TmmuError)]


def test_loop_that_has_failed_is_not_ready_and_ends_all_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    scheduler, failures = Scheduler(), list[Any]()
    monkeypatch.setattr(module, "log_event", lambda event, **fields: failures.append((event, fields["failure"])))
    loop = loop_of(scheduler)
    table = ModelTable(ServerMetrics(list), names=("a",), most=4)
    table.set_models([SimpleNamespace(name="a", loop=loop)])  # type: ignore[list-item]
    assert (table.is_ready, loop.is_running) == (True, True)
    scheduler.fails = True
    scheduler.wake()
    loop._thread.join(60)
    ((event, failure),) = failures
    assert (event, type(failure)) == ("loop_failed", MemoryError)
    assert (table.is_ready, table.has_failed, loop.is_running) == (False, True, False)
    events: list[Any] = []
    loop.submit(job_of(events))
    assert errors_of(events) == [(4, "INTERNAL"), (5, "INTERNAL")]
    loop.close()
    loop.submit(job_of(events))
    assert errors_of(events)[2:] == [(4, "INTERNAL"), (5, "INTERNAL")], "why it failed is not forgotten"


def test_jobs_that_wait_when_the_loop_fails_end(monkeypatch: pytest.MonkeyPatch) -> None:
    scheduler, events = Scheduler(), list[Any]()
    monkeypatch.setattr(GenerationLoop, "_begin_jobs", lambda _: None)
    loop = loop_of(scheduler)
    scheduler.fails = True
    loop.submit(job_of(events))
    loop._thread.join(60)
    assert errors_of(events) == [(4, "INTERNAL"), (5, "INTERNAL")]


def test_loop_that_is_closed_is_about_to_end() -> None:
    loop, events = loop_of(Scheduler()), list[Any]()
    loop.close()
    loop.submit(job_of(events))
    assert errors_of(events) == [(4, "SERVER_BUSY"), (5, "SERVER_BUSY")]
