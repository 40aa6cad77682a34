"""The load benchmark on a small model, a few seconds long: nobody fails, and nothing is planned after the warm-up."""

from argparse import Namespace

import pytest

from benchmarks.load import GREEDY, clients_of, report, run


@pytest.mark.slow
def test_small_load_has_no_failed_request() -> None:
    result = run(Namespace(seconds=6.0, rounds=2, width=64, layers=2))
    conditions = result["conditions"]
    assert [failure for answers in conditions.values() for failure in answers.failures] == []
    assert result["later"] == 0
    assert set(conditions["all"].by_client) == {client.name for client in clients_of()}
    assert not conditions["without batch"].of_class("batch")
    assert all(conditions["greedy"].by_client[name] for name in (*conditions["fair"].by_client, GREEDY.name))
    assert all(conditions[name].of_class(qos) for name in ("1 at once", "2 at once") for qos in ("realtime", "batch"))
    assert result["stack bytes"]["2 at once"] == 2 * result["stack bytes"]["1 at once"] > 0
    assert any(line.startswith("realtime's p99") or "realtime's p99" in line for line in report(result))


def test_clients_are_those_of_the_sources() -> None:
    clients = clients_of()
    assert (len(clients), {client.kind for client in clients}) == (14, {"decode", "classify", "embed"})
    assert {client.qos for client in clients} == {"realtime", "interactive", "batch"}
