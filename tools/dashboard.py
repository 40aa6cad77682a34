"""The Grafana dashboard of a server: a panel for each row of this table, and no metric without one.

python -m tools.dashboard tmmu/server/assets/grafana.json
"""

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

COLUMNS: Final = 3
HEIGHT: Final = 8
WIDTH: Final = 24 // COLUMNS
SOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}


@dataclass(frozen=True, slots=True)
class Panel:
    """A graph: its title, its unit as Grafana names it, and queries with the legend of each."""

    title: str
    unit: str
    queries: tuple[tuple[str, str], ...]


def _rate(metric: str, by: str = "") -> str:
    return f"sum{f' by ({by})' if by else ''} (rate({metric}_total[1m]))"


def _quantiles(metric: str, by: str) -> tuple[tuple[str, str], ...]:
    legend = " ".join(f"{{{{{label.strip()}}}}}" for label in by.split(","))
    return tuple(
        (f"histogram_quantile({q}, sum by (le, {by}) (rate({metric}_bucket[5m])))", f"{legend} p{round(100 * q)}")
        for q in (0.5, 0.99)
    )


ROWS: Final[dict[str, tuple[Panel, ...]]] = {
    "Requests": (
        Panel("Requests", "reqps", ((_rate("tmmu_requests", "status"), "{{status}}"),)),
        Panel("Refusals", "reqps", ((_rate("tmmu_refusals", "code"), "{{code}}"), (_rate("tmmu_disconnects"), "gone"))),
        Panel("Time of requests", "s", _quantiles("tmmu_request_seconds", "path")),
        Panel("Stages", "s", (("sum by (stage) (rate(tmmu_stage_seconds_sum[1m]))", "{{stage}}"),)),
        Panel("To the first token", "s", _quantiles("tmmu_first_token_seconds", "model")),
        Panel("Between tokens", "s", _quantiles("tmmu_next_token_seconds", "model")),
        Panel(
            "Tokens",
            "tokens/s",
            (
                (_rate("tmmu_generated_tokens", "model"), "{{model}} generated"),
                (_rate("tmmu_prompt_tokens", "model"), "{{model}} read"),
            ),
        ),
    ),
    "Queue": (
        Panel("Waiting for a step, by class", "s", _quantiles("tmmu_queue_seconds", "class")),
        Panel("Requests that wait", "short", (("sum by (class) (tmmu_waiting_requests)", "{{class}}"),)),
        Panel(
            "Out of turn, yields, late",
            "short",
            (
                (_rate("tmmu_escalated_steps"), "out of turn"),
                (_rate("tmmu_yields"), "yields"),
                (_rate("tmmu_late_requests"), "late"),
            ),
        ),
        Panel(
            "Steps",
            "short",
            (
                (_rate("tmmu_steps", "model"), "{{model}} steps"),
                (_rate("tmmu_decoded_rows", "model"), "{{model}} rows"),
                (_rate("tmmu_phase_switches", "model"), "{{model}} switches"),
            ),
        ),
        Panel(
            "Plans",
            "short",
            (
                (_rate("tmmu_step_plan_hits", "model"), "{{model}} hits"),
                (_rate("tmmu_step_plan_misses", "model"), "{{model}} misses"),
                (_rate("tmmu_lookup_seconds", "model"), "{{model}} seconds of planning"),
            ),
        ),
    ),
    "Memory": (
        Panel("Bytes by kind", "bytes", (("sum by (kind) (tmmu_bytes)", "{{kind}}"),)),
        Panel(
            "Segments",
            "bytes",
            tuple(
                (f"tmmu_segment_{kind}_bytes", f"{{{{model}}}} {{{{segment}}}} {kind}")
                for kind in ("capacity", "used", "peak", "largest_free", "gap")
            ),
        ),
        Panel(
            "Sessions",
            "short",
            (
                ("tmmu_sessions", "{{model}} open"),
                ("tmmu_texts", "{{model}} texts"),
                ("tmmu_waiting_sessions", "{{model}} without room"),
                (_rate("tmmu_sessions_opened", "model"), "{{model}} opened"),
                (_rate("tmmu_sessions_closed", "model"), "{{model}} closed"),
            ),
        ),
        Panel("Lifetimes of sessions", "s", _quantiles("tmmu_session_seconds", "model")),
        Panel(
            "Evictions and texts read again",
            "short",
            (
                (_rate("tmmu_evictions", "when"), "{{when}}"),
                (_rate("tmmu_recomputed_texts"), "read again"),
            ),
        ),
    ),
    "Wire": (
        Panel(
            "Requests and connections over the wire",
            "short",
            (
                (_rate("tmmu_wire_requests"), "requests/s"),
                ("tmmu_wire_connections", "connections"),
                (_rate("tmmu_wire_connections_opened"), "opened/s"),
            ),
        ),
        Panel("Bytes over the wire", "Bps", ((_rate("tmmu_wire_bytes", "direction"), "{{direction}}"),)),
        Panel(
            "Frames",
            "short",
            (
                (_rate("tmmu_wire_frames", "direction"), "{{direction}}"),
                (_rate("tmmu_wire_joined_frames"), "joined"),
                (_rate("tmmu_wire_writes"), "writes"),
            ),
        ),
        Panel("Refusals over the wire", "reqps", ((_rate("tmmu_wire_refusals", "code"), "{{code}}"),)),
        Panel(
            "Stages of requests over the wire",
            "s",
            (("sum by (stage) (rate(tmmu_wire_stage_seconds_sum[1m]))", "{{stage}}"),),
        ),
        Panel(
            "Graphs and references of clients",
            "short",
            (
                (_rate("tmmu_graph_runs", "way"), "{{way}}"),
                ("sum by (kind) (tmmu_remote_references)", "{{kind}} alive"),
                (_rate("tmmu_uploads"), "uploads"),
                (_rate("tmmu_upload_bytes"), "bytes uploaded"),
            ),
        ),
    ),
    "Pressure": (
        Panel("Level: 0 normal, 3 full", "short", (("tmmu_pressure_level", "{{model}}"),)),
        Panel(
            "Levels reached",
            "short",
            ((_rate("tmmu_pressure_events", "level"), "{{level}}"), (_rate("tmmu_recoveries"), "normal again")),
        ),
        Panel(
            "Mean time to recover",
            "s",
            (("sum(tmmu_recovery_seconds_total) / sum(tmmu_recoveries_total)", "all models"),),
        ),
        Panel("Efficiency of headroom", "percent", (("tmmu_efficiency_score", "{{model}}"),)),
        Panel(
            "Headroom",
            "percentunit",
            (
                ("tmmu_headroom_ratio", "{{model}} {{class}}"),
                ("tmmu_suggested_headroom_ratio", "{{model}} {{class}} suggested"),
            ),
        ),
        Panel(
            "Budgets",
            "short",
            (
                (_rate("tmmu_budget_violations", "class"), "{{class}} violations"),
                (_rate("tmmu_budget_shifts"), "shifts"),
            ),
        ),
    ),
}


def dashboard() -> dict[str, Any]:
    """The dashboard as Grafana imports it."""
    panels: list[dict[str, Any]] = []
    top = 0
    for title, row in ROWS.items():
        panels.append({"type": "row", "title": title, "collapsed": False, "gridPos": _place(0, top, 24, 1)})
        top += 1
        for number, panel in enumerate(row):
            place = _place(number % COLUMNS * WIDTH, top + number // COLUMNS * HEIGHT, WIDTH, HEIGHT)
            panels.append(_graph(panel, place))
        top += -(-len(row) // COLUMNS) * HEIGHT
    source = {"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Prometheus"}
    return {
        "title": "tmmu serve",
        "uid": "tmmu-serve",
        "schemaVersion": 39,
        "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": [source]},
        "panels": [panel | {"id": number} for number, panel in enumerate(panels, 1)],
    }


def _graph(panel: Panel, place: dict[str, int]) -> dict[str, Any]:
    targets = [
        {"refId": chr(ord("A") + number), "expr": expression, "legendFormat": legend, "datasource": SOURCE}
        for number, (expression, legend) in enumerate(panel.queries)
    ]
    defaults = {"unit": panel.unit, "min": 0}
    return {
        "type": "timeseries",
        "title": panel.title,
        "datasource": SOURCE,
        "gridPos": place,
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "targets": targets,
    }


def _place(left: int, top: int, width: int, height: int) -> dict[str, int]:
    return {"x": left, "y": top, "w": width, "h": height}


def dashboard_text() -> str:
    """The file's text."""
    return json.dumps(dashboard(), indent=1) + "\n"


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(dashboard_text())
