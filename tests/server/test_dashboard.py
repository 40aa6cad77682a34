"""The dashboard's file is what its table says, every metric is on it, and it names none that is not there."""

import json
import re

from tests.docs.commands import ROOT
from tests.server.running import RunningServer
from tools.dashboard import dashboard_text

FILE = ROOT / "tmmu/server/assets/grafana.json"


def test_file_is_that_of_the_table() -> None:
    assert FILE.read_text() == dashboard_text(), "python -m tools.dashboard tmmu/server/assets/grafana.json"


def test_queries_name_the_metrics_and_labels_that_a_server_has(server: RunningServer) -> None:
    body = {"model": "text", "prompt": [1], "max_tokens": 3}
    assert server.post("completions", body).status_code == 200
    assert server.post("completions", body | {"model": "none"}).status_code == 404
    lines = [line for line in server.client.get("/metrics").text.splitlines() if not line.startswith("#")]
    labels: dict[str, set[str]] = {}
    for line in lines:
        labels.setdefault(line.partition("{")[0].partition(" ")[0], set()).update(re.findall(r"(\w+)=\"", line))
    graphs = [panel for panel in json.loads(FILE.read_text())["panels"] if panel["type"] != "row"]
    named: set[str] = set()
    for panel in graphs:
        for target in panel["targets"]:
            metrics = re.findall(r"tmmu_\w+", target["expr"])
            named |= set(metrics)
            assert set(metrics) <= set(labels), target["expr"]
            used = {label for text in re.findall(r"by \(([^)]*)\)", target["expr"]) for label in text.split(", ")}
            used |= set(re.findall(r"{{(\w+)}}", target["legendFormat"]))
            assert all(used <= labels[metric] for metric in metrics), target["expr"]
    bare = {re.sub(r"_(bucket|sum|count|total|created)$", "", name) for name in labels if name.startswith("tmmu_")}
    assert {re.sub(r"_(bucket|sum|count|total)$", "", name) for name in named} == bare
