"""What a server counts, in prometheus' form: of requests, of texts and sessions, and of each engine's memory.

Names begin with ``tmmu_``. Times are seconds, sizes bytes. Requests and texts are counted as they happen; what an
engine knows is read when somebody asks.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from tmmu.engine.queue.terms import CLASSES, QosClass
from tmmu.server.engine_figures import EngineFigure, EngineFigures
from tmmu.wire.stages import SERVER_STAGES, ServerStage

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
REQUEST_BUCKETS: Final = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)
STAGE_BUCKETS: Final = (0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
TOKEN_BUCKETS: Final = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0)


class ServerMetrics:
    """The counters of one server, in a registry of their own. ``figures``: what the engines know now, by model;
    ``wire_figures``: what is known of the wire.
    """

    def __init__(
        self,
        figures: Callable[[], Sequence[EngineFigures]],
        wire_figures: Callable[[], Sequence[EngineFigure]] = list,
    ) -> None:
        registry = self.registry = CollectorRegistry()
        registry.register(_FigureCollector(figures, wire_figures))
        wire_stages = Histogram(
            "tmmu_wire_stage_seconds",
            "What requests over the wire took in each stage.",
            ("stage",),
            buckets=STAGE_BUCKETS,
            registry=registry,
        )
        self._wire_stages = {stage: wire_stages.labels(stage) for stage in SERVER_STAGES}
        self._requests = Counter("tmmu_requests", "Requests by path and status.", ("path", "status"), registry=registry)
        self._refusals = Counter("tmmu_refusals", "Refusals by code.", ("code",), registry=registry)
        self._disconnects = Counter("tmmu_disconnects", "Clients that left before the end.", registry=registry)
        self._seconds = Histogram(
            "tmmu_request_seconds",
            "From the headers to the end.",
            ("path",),
            buckets=REQUEST_BUCKETS,
            registry=registry,
        )
        self._stages = Histogram(
            "tmmu_stage_seconds",
            "What requests took in each stage.",
            ("stage",),
            buckets=STAGE_BUCKETS,
            registry=registry,
        )
        self._queue = Histogram(
            "tmmu_queue_seconds",
            "How long requests waited for a step.",
            ("model", "class"),
            buckets=STAGE_BUCKETS,
            registry=registry,
        )
        self._texts = Gauge("tmmu_texts", "Texts that are generated or wait for room.", ("model",), registry=registry)
        self._prompt = Counter("tmmu_prompt_tokens", "Tokens of prompts taken on.", ("model",), registry=registry)
        self._tokens = Counter("tmmu_generated_tokens", "Tokens generated.", ("model",), registry=registry)
        self._again = Counter(
            "tmmu_recomputed_texts", "Texts read again for want of room.", ("model",), registry=registry
        )
        self._open = Gauge("tmmu_sessions", "Sessions that are open.", ("model",), registry=registry)
        self._opened = Counter("tmmu_sessions_opened", "Sessions opened.", ("model",), registry=registry)
        self._closed = Counter("tmmu_sessions_closed", "Sessions closed.", ("model",), registry=registry)
        self._lifetimes = Histogram(
            "tmmu_session_seconds", "Lifetimes of sessions.", ("model",), buckets=REQUEST_BUCKETS, registry=registry
        )
        self._first = Histogram(
            "tmmu_first_token_seconds", "To the first token.", ("model",), buckets=REQUEST_BUCKETS, registry=registry
        )
        self._next = Histogram(
            "tmmu_next_token_seconds", "Between tokens.", ("model",), buckets=TOKEN_BUCKETS, registry=registry
        )

    def note_answer(self, path: str, status: int, seconds: float) -> None:
        """A request was answered, so many seconds after its headers were there."""
        self._requests.labels(path, str(status)).inc()
        self._seconds.labels(path).observe(seconds)

    def note_stages(self, stages: Mapping[ServerStage, float]) -> None:
        """A request has ended that was so long in its stages."""
        for stage, seconds in stages.items():
            self._stages.labels(stage).observe(seconds)

    def note_wire_stages(self, stages: Mapping[ServerStage, float]) -> None:
        """A request over the wire has ended that was so long in its stages."""
        for stage, seconds in stages.items():
            self._wire_stages[stage].observe(seconds)

    def note_refusal(self, code: str) -> None:
        """A request was refused, before its answer or in it."""
        self._refusals.labels(code).inc()

    def note_disconnect(self) -> None:
        """A client left before the end of its answer."""
        self._disconnects.inc()

    def note_texts(self, model: str, texts: int, prompt_tokens: int) -> None:
        """So many texts were taken on."""
        self._texts.labels(model).inc(texts)
        self._prompt.labels(model).inc(prompt_tokens)

    def note_end_of_texts(self, model: str, texts: int) -> None:
        """So many texts have ended."""
        self._texts.labels(model).dec(texts)

    def of_model(self, model: str) -> "ModelMetrics":
        """What the loop of a model tells."""
        return ModelMetrics(
            current=self._open.labels(model),
            opened=self._opened.labels(model),
            closed=self._closed.labels(model),
            lifetimes=self._lifetimes.labels(model),
            tokens=self._tokens.labels(model),
            first=self._first.labels(model),
            following=self._next.labels(model),
            recomputed=self._again.labels(model),
            queue={qos: self._queue.labels(model, qos) for qos in CLASSES},
        )

    def page(self) -> bytes:
        """All of them as ``/metrics`` shows them. Takes locks of engines: not for the event loop."""
        return generate_latest(self.registry)


class ModelMetrics:
    """The metrics of one model's texts and sessions: a ``LoopObserver``."""

    def __init__(  # noqa: PLR0913 - by name
        self,
        *,
        current: Gauge,
        opened: Counter,
        closed: Counter,
        lifetimes: Histogram,
        tokens: Counter,
        first: Histogram,
        following: Histogram,
        recomputed: Counter,
        queue: Mapping[QosClass, Histogram],
    ) -> None:
        self._recomputed = recomputed
        self._current, self._opened, self._closed, self._lifetimes = current, opened, closed, lifetimes
        self._tokens, self._first, self._following, self._queue = tokens, first, following, queue

    def session_opened(self) -> None:
        """A session was opened."""
        self._current.inc()
        self._opened.inc()

    def session_closed(self, seconds: float) -> None:
        """A session was closed, so many seconds after it was opened."""
        self._current.dec()
        self._closed.inc()
        self._lifetimes.observe(seconds)

    def first_token(self, seconds: float) -> None:
        """A text has its first token, so many seconds after its job came."""
        self._tokens.inc()
        self._first.observe(seconds)

    def next_token(self, seconds: float) -> None:
        """A text has another token, so many seconds after the one before."""
        self._tokens.inc()
        self._following.observe(seconds)

    def text_recomputed(self) -> None:
        """A text gave its room to others, and will be read again."""
        self._recomputed.inc()

    def step_begins(self, qos: QosClass, seconds: float) -> None:
        """A step of a request of this class begins, for which it has waited so many seconds."""
        self._queue[qos].observe(seconds)


class _FigureCollector(Collector):
    """Reads what engines know, and what is known of the wire, when somebody asks."""

    def __init__(
        self,
        figures: Callable[[], Sequence[EngineFigures]],
        wire_figures: Callable[[], Sequence[EngineFigure]],
    ) -> None:
        self._figures, self._wire_figures = figures, wire_figures

    def describe(self) -> Iterable[Metric]:
        """Nothing: engines are not there yet when it is registered."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """A metric for each figure, with the models as labels."""
        families: dict[str, GaugeMetricFamily | CounterMetricFamily] = {}
        for figures in self._figures():
            for figure in figures.figures:
                _add_figure(families, figure, {"model": figures.model} | dict(figure.labels))
        for figure in self._wire_figures():
            _add_figure(families, figure, figure.labels)
        yield from families.values()


def _add_figure(
    families: dict[str, GaugeMetricFamily | CounterMetricFamily], figure: EngineFigure, labels: Mapping[str, str]
) -> None:
    family = families.get(figure.name)
    if family is None:
        kind = CounterMetricFamily if figure.is_counter else GaugeMetricFamily
        family = families[figure.name] = kind(figure.name, figure.help, labels=tuple(labels))
    family.add_metric(tuple(labels.values()), figure.value)
