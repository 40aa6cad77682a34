"""What an engine knows of its memory and its steps, as named numbers."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tmmu.engine.queue.terms import CLASSES
from tmmu.server.pressure.budget_tuner import WHOLE
from tmmu.server.pressure.gauge import LEVELS
from tmmu.server.pressure.watch import PressureWatch

if TYPE_CHECKING:
    from tmmu.engine.engine import Engine
    from tmmu.runtime.memory.usage import Usage


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineFigure:
    """A number; ``is_counter``: it only grows."""

    name: str
    help: str
    value: float
    labels: Mapping[str, str] = field(default_factory=dict)
    is_counter: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineFigures:
    """The numbers of one model's engine."""

    model: str
    figures: tuple[EngineFigure, ...]


def read_figures(model: str, engine: "Engine", watch: PressureWatch) -> EngineFigures:
    """The numbers of an engine now, and of who watches its room. Waits for no step."""
    return EngineFigures(
        model=model,
        figures=(
            *(figure for name, usage in engine.usage.items() for figure in _segment_figures(name, usage)),
            *_byte_figures(engine),
            *_step_figures(engine),
            *_queue_figures(engine),
            *_room_figures(engine),
            *_pressure_figures(watch),
            *_budget_figures(watch),
        ),
    )


def _segment_figures(name: str, usage: "Usage") -> Iterator[EngineFigure]:
    """Of a segment: its bytes, and how many of the free ones lie in gaps, outside the largest free run."""
    sizes = {
        "capacity": ("Bytes of a segment.", usage.capacity),
        "used": ("Bytes of a segment in use.", usage.used),
        "peak": ("The most bytes of a segment that were in use.", usage.peak),
        "largest_free": ("The largest free run of a segment.", usage.largest_free),
        "gap": ("Free bytes of a segment outside its largest free run.", usage.free - usage.largest_free),
    }
    for kind, (words, value) in sizes.items():
        yield EngineFigure(name=f"tmmu_segment_{kind}_bytes", help=words, value=value, labels={"segment": name})


def _byte_figures(engine: "Engine") -> Iterator[EngineFigure]:
    """By kind: what the segments are used for, and what of it is in use by sessions in fact."""
    usage = engine.usage
    sizes = {
        "weights": usage["text"].used,
        "activations": usage["stack"].peak,
        "state": usage["data"].used,
        "live state": engine.live_state_bytes,
        "host copies": engine.host.used,
    }
    for kind, size in sizes.items():
        yield EngineFigure(name="tmmu_bytes", help="Bytes by kind.", value=size, labels={"kind": kind})


def _step_figures(engine: "Engine") -> Iterator[EngineFigure]:
    counters = {
        "tmmu_steps": ("Steps run, parts of prompts too.", engine.scheduler.steps),
        "tmmu_decoded_rows": ("Rows of steps that decoded.", engine.scheduler.rows),
        "tmmu_phase_switches": ("Steps of another phase than the one before.", engine.scheduler.phase_switches),
        "tmmu_step_plan_hits": ("Steps whose shape was planned already.", engine.shape_hits),
        "tmmu_step_plan_misses": ("Shapes of steps that were planned, judged and bound.", engine.bound_shapes),
        "tmmu_lookup_seconds": ("Seconds in which shapes were planned, judged and bound.", engine.lookup_seconds),
    }
    for name, (words, value) in counters.items():
        yield EngineFigure(name=name, help=words, value=value, is_counter=True)


def _queue_figures(engine: "Engine") -> Iterator[EngineFigure]:
    queue = engine.scheduler.queue
    for qos in CLASSES:
        words = "Requests for steps that wait."
        yield EngineFigure(name="tmmu_waiting_requests", help=words, value=queue.count_of(qos), labels={"class": qos})
    counters = {
        "tmmu_escalated_steps": ("Steps out of turn.", queue.escalated),
        "tmmu_yields": ("Parts of prompts that let others go first.", engine.yields),
        "tmmu_late_requests": ("Requests for steps that were not done by their deadline.", engine.scheduler.late),
    }
    for name, (words, value) in counters.items():
        yield EngineFigure(name=name, help=words, value=value, is_counter=True)


def _room_figures(engine: "Engine") -> Iterator[EngineFigure]:
    words = "Sessions that wait for room."
    yield EngineFigure(name="tmmu_waiting_sessions", help=words, value=engine.waiting_sessions)
    words = "Sessions that left the device, early, or late: when somebody waited for their room."
    for when, count in zip(("early", "late"), engine.evictions, strict=True):
        yield EngineFigure(name="tmmu_evictions", help=words, value=count, labels={"when": when}, is_counter=True)


def _pressure_figures(watch: PressureWatch) -> Iterator[EngineFigure]:
    gauge = watch.gauge
    words = "The level of pressure: 0 normal, 1 warning, 2 critical, 3 full."
    yield EngineFigure(name="tmmu_pressure_level", help=words, value=LEVELS.index(gauge.level))
    for level in LEVELS[1:]:
        yield EngineFigure(
            name="tmmu_pressure_events",
            help="How often a level was reached from below.",
            value=gauge.events[level],
            labels={"level": level},
            is_counter=True,
        )
    words = "Times that pressure was normal again."
    yield EngineFigure(name="tmmu_recoveries", help=words, value=gauge.recoveries, is_counter=True)
    words = "Seconds from leaving normal until it was that again."
    yield EngineFigure(name="tmmu_recovery_seconds", help=words, value=gauge.recovery_seconds, is_counter=True)


def _budget_figures(watch: PressureWatch) -> Iterator[EngineFigure]:
    tuner = watch.tuner
    yield EngineFigure(name="tmmu_efficiency_score", help="0 to 100, of what classes keep.", value=tuner.score)
    words = "Times that what classes keep was changed."
    yield EngineFigure(name="tmmu_budget_shifts", help=words, value=tuner.shifts, is_counter=True)
    suggested = tuner.suggest() or tuner.budgets
    for qos, budget in tuner.budgets.items():
        labels = {"class": qos}
        words = "The part of the room that a class keeps from those below it."
        yield EngineFigure(name="tmmu_headroom_ratio", help=words, value=budget / WHOLE, labels=labels)
        words = "The part that would fit what was seen."
        yield EngineFigure(
            name="tmmu_suggested_headroom_ratio", help=words, value=suggested[qos] / WHOLE, labels=labels
        )
        words = "Windows in which a class used more than it keeps, or waited."
        count = tuner.violations[qos]
        yield EngineFigure(name="tmmu_budget_violations", help=words, value=count, labels=labels, is_counter=True)
