"""What an engine knows of its memory and its steps, as named numbers."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

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


def read_figures(model: str, engine: "Engine") -> EngineFigures:
    """The numbers of an engine now. Waits for no step."""
    return EngineFigures(
        model=model,
        figures=(
            *(figure for name, usage in engine.usage.items() for figure in _segment_figures(name, usage)),
            *_step_figures(engine),
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


def _step_figures(engine: "Engine") -> Iterator[EngineFigure]:
    steps, rows = engine.scheduler.steps, engine.scheduler.rows
    yield EngineFigure(name="tmmu_steps", help="Steps run, parts of prompts too.", value=steps, is_counter=True)
    yield EngineFigure(name="tmmu_decoded_rows", help="Rows of steps that decoded.", value=rows, is_counter=True)
    yield EngineFigure(
        name="tmmu_waiting_requests", help="Requests for steps that wait.", value=engine.scheduler.waiting_requests
    )
    words = "Steps whose shape was planned already."
    yield EngineFigure(name="tmmu_step_plan_hits", help=words, value=engine.shape_hits, is_counter=True)
    words = "Shapes of steps that were planned, judged and bound."
    yield EngineFigure(name="tmmu_step_plan_misses", help=words, value=engine.bound_shapes, is_counter=True)
