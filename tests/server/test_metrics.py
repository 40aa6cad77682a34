"""Every metric is moved by what it counts."""

import re

from tests.docs.commands import ROOT
from tests.server.running import RunningServer
from tmmu.engine.queue.terms import CLASSES


def samples(server: RunningServer) -> dict[str, float]:
    text = server.client.get("/metrics").text
    lines = [line.rpartition(" ") for line in text.splitlines() if not line.startswith("#")]
    return {name: float(value) for name, _, value in lines}


def test_every_metric_moves(server: RunningServer) -> None:
    before = samples(server)
    body = {"model": "text", "prompt": "one", "max_tokens": 5, "n": 2, "seed": 0}
    assert server.post("completions", body).status_code == 200
    assert server.post("completions", body | {"echo": True}).status_code == 400
    after = samples(server)
    moved = {name: after[name] - before.get(name, 0) for name in after if after[name] != before.get(name)}
    path = 'path="/v1/completions"'
    expected = {
        f'tmmu_requests_total{{{path},status="200"}}': 1,
        f'tmmu_requests_total{{{path},status="400"}}': 1,
        'tmmu_refusals_total{code="INVALID_REQUEST"}': 1,
        f"tmmu_request_seconds_count{{{path}}}": 2,
        'tmmu_prompt_tokens_total{model="text"}': 3,
        'tmmu_generated_tokens_total{model="text"}': 10,
        'tmmu_sessions_opened_total{model="text"}': 2,
        'tmmu_sessions_closed_total{model="text"}': 2,
        'tmmu_session_seconds_count{model="text"}': 2,
        'tmmu_first_token_seconds_count{model="text"}': 2,
        'tmmu_next_token_seconds_count{model="text"}': 8,
        'tmmu_decoded_rows_total{model="text"}': 8,
        'tmmu_phase_switches_total{model="text"}': moved.get('tmmu_phase_switches_total{model="text"}', 0) or 1,
        'tmmu_queue_seconds_count{class="interactive",model="text"}': 9,
        'tmmu_stage_seconds_count{stage="execute"}': 1,
        'tmmu_stage_seconds_count{stage="network"}': 1,
    }
    assert {name: moved.get(name) for name in expected} == expected
    steps = moved['tmmu_steps_total{model="text"}']
    hits = moved['tmmu_step_plan_hits_total{model="text"}']
    assert steps == hits + moved.get('tmmu_step_plan_misses_total{model="text"}', 0)
    assert 5 <= steps <= 9


def test_gauges_say_what_is_now(server: RunningServer) -> None:
    engine = server.engine("text")
    with engine.open(64) as first, engine.open(96) as second:
        first.prefill([1])
        gap, used = first.arena_bytes, first.arena_bytes + second.arena_bytes
        first.close()
        server.wait_for(lambda: engine.usage["data"].used == second.arena_bytes)  # when it is cleared
        now = samples(server)
    usage = engine.usage
    label = 'model="text",segment="data"'
    assert now[f"tmmu_segment_used_bytes{{{label}}}"] == second.arena_bytes
    assert now[f"tmmu_segment_capacity_bytes{{{label}}}"] == usage["data"].capacity
    assert now[f"tmmu_segment_gap_bytes{{{label}}}"] == gap
    assert now[f"tmmu_segment_peak_bytes{{{label}}}"] == usage["data"].peak
    free = now[f"tmmu_segment_largest_free_bytes{{{label}}}"]
    assert free == usage["data"].capacity - used
    assert [now[f'tmmu_waiting_requests{{class="{qos}",model="text"}}'] for qos in CLASSES] == [0, 0, 0]


def test_names_are_those_of_the_page(server: RunningServer) -> None:
    text = server.client.get("/metrics").text
    names = {line.split()[2].removesuffix("_total") for line in text.splitlines() if line.startswith("# TYPE")}
    names = {name for name in names if not name.endswith("_created")}
    page = (ROOT / "docs/spec/serve.md").read_text().split("\n## Metrics\n")[1].split("\n## ")[0]
    listed = {name for line in page.splitlines() if line.startswith("| `tmmu_")
              for name in re.findall(r"`(tmmu_\w+)`", line.split("|")[1])}  # fmt: skip
    assert listed == names


def test_gauges_of_texts_and_sessions_are_up_while_one_is_generated(server: RunningServer) -> None:
    engine = server.engine("text")
    seen: list[dict[str, float]] = []
    original, label = engine.scheduler.on_step, '{model="text"}'

    def look(*step: object) -> None:
        original(*step)
        if not seen:
            names = ("tmmu_texts", "tmmu_sessions")
            seen.append({name: server.metric(name, model="text") for name in names})

    engine.scheduler.on_step = look
    try:
        assert server.post("completions", {"model": "text", "prompt": [1], "max_tokens": 2}).status_code == 200
    finally:
        engine.scheduler.on_step = original
    assert seen == [{"tmmu_texts": 1, "tmmu_sessions": 1}]
    after = samples(server)
    assert (after[f"tmmu_texts{label}"], after[f"tmmu_sessions{label}"]) == (0, 0)


def test_each_metric_of_the_page_is_moved_by_a_test() -> None:
    page = (ROOT / "docs/spec/serve.md").read_text().split("\n## Metrics\n")[1].split("\n## ")[0]
    rows = [line.split("|")[1] for line in page.splitlines() if line.startswith("| `tmmu_")]
    listed = {name for row in rows for name in re.findall(r"`(tmmu_\w+)`", row)}
    folder = ROOT / "tests/server"
    texts = "".join(path.read_text() for path in folder.glob("test_*.py") if path.name != "test_dashboard.py")
    assert {name for name in listed if not re.search(rf"\b{name}(_total|_count)?\b", texts)} == set()
