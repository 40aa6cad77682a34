"""Steps fitted for a device: parts that have other bits there are left out, and what cannot be tried is said so."""

from dataclasses import replace
from typing import Any

import pytest

from tests.runtime.harness import plan_of
from tests.unit.judge.rewrite.programs import step
from tests.unit.planner.fit.head_models import head_step
from tests.unit.planner.fit.test_fit_graph import REQUEST
from tmmu.cli.output import max_report
from tmmu.cli.output.max_report import MaxReport
from tmmu.device_fit import DeviceFitting, DeviceSizes, fit_on_device, max_on_device
from tmmu.driver import Compiled
from tmmu.errors import BudgetTooSmall, InvalidConfig, UnsupportedOp
from tmmu.ir.graph import Graph
from tmmu.ir.plan import Plan
from tmmu.ir.rewrite import PARTIAL_KINDS
from tmmu.passes.lowering.read_calls import read_program
from tmmu.planner.fit.fit_graph import FitRequest
from tmmu.planner.sizes.max_size import SizeRequest
from tmmu.runtime.steps.part_trial import trial_bytes

LEVERS = ("takeover", "parts")
BITS = "tmmu.runtime.steps.part_trial.has_same_bits"


def fit(graph: Graph, *, device: str = "cpu", program: Any = None, **settings: Any) -> DeviceFitting:
    plan = plan_of(read_program(graph), mode="backward", preset="train_full")
    request: FitRequest = replace(REQUEST, levers=LEVERS, **settings)
    compiled = Compiled(graph=graph, plan=plan, seconds={})
    return fit_on_device(program or (lambda: read_program(graph)), compiled, request, device)


def has_parts(found: DeviceFitting) -> bool:
    return not set(PARTIAL_KINDS).isdisjoint(found.fitting.fitted.rewrite.kind)


def test_parts_with_the_bits_of_the_whole_are_taken() -> None:
    found = fit(head_step("tied"))
    assert has_parts(found)
    assert found.is_tried
    assert found.left_out == ()


def test_parts_with_other_bits_are_left_out_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = head_step("tied")
    monkeypatch.setattr(BITS, lambda *_: False)
    found = fit(graph)
    assert not has_parts(found)
    assert found.is_tried
    assert {graph.ops.target[op] for op in found.left_out} == {"aten.mm.default"}


def test_refusal_says_that_parts_were_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = head_step("tied")
    least = fit(graph).fitting.fitted.stack_bytes
    monkeypatch.setattr(BITS, lambda *_: False)
    with pytest.raises(BudgetTooSmall, match=r"without parts, as those of aten\.mm\.default .* on cpu") as caught:
        fit(graph, limit=least)
    assert "--allow near" in caught.value.fix
    assert "leave the other levers in" not in caught.value.fix
    assert caught.value.fields["limit_bytes"] == least


def test_sums_that_are_near_are_not_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BITS, lambda *_: False)
    found = fit(head_step("tied"), near=True)
    assert has_parts(found)
    assert found.is_tried


@pytest.mark.parametrize("reason", ["no such device", "no memory", "no such operator"])
def test_what_cannot_be_tried_is_said_so(reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    graph, device, program = head_step("tied"), "cpu", None
    if reason == "no such device":
        device = "cuda:77"
    elif reason == "no memory":
        most = fit(graph).fitting.fitted.rewrite
        monkeypatch.setattr("tmmu.runtime.memory.sizing.device_memory", lambda _: (trial_bytes(graph, most) - 1, 0))
    else:

        def program() -> Any:
            raise UnsupportedOp("this torch has no mine::op")

    found = fit(graph, device=device, program=program)
    assert has_parts(found)
    assert not found.is_tried
    assert found.left_out == ()


def size_request(limit: int) -> SizeRequest:
    return SizeRequest(
        starts=(2, 3),
        limit=limit,
        is_whole=False,
        mode="backward",
        arenas=REQUEST.arenas,
        settings=REQUEST.settings,
        levers=LEVERS,
    )


def largest(*graphs: Graph, limit: int) -> DeviceSizes:
    """Of steps at sizes from 2 on; larger ones are refused."""

    def trace(size: int) -> tuple[Graph, Plan]:
        if not 2 <= size < 2 + len(graphs):
            raise InvalidConfig(f"{size} of {len(graphs)}", fix="another")
        graph = graphs[size - 2]
        return graph, plan_of(read_program(graph), mode="backward", preset="train_full")

    return max_on_device(trace, read_program, size_request(limit))


def test_largest_size_does_without_parts_that_have_other_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    small, graph = step("sgd"), head_step("tied")
    limit = fit(graph).fitting.fitted.stack_bytes
    found = largest(small, graph, limit=limit)
    assert found.found.fitted is not None
    assert found.found.fitted.size == 3
    assert found.found.fitted.fitted is not None
    assert not set(PARTIAL_KINDS).isdisjoint(found.found.fitted.fitted.rewrite.kind)
    assert (found.left_out, found.is_tried) == ((), True)
    monkeypatch.setattr(BITS, lambda *_: False)
    without = largest(small, graph, limit=limit)
    assert without.found.fitted is not None
    assert without.found.fitted.size == 2
    assert without.graph is graph
    assert {graph.ops.target[op] for op in without.left_out} == {"aten.mm.default"}
    with pytest.raises(BudgetTooSmall, match=r"not even .*; without parts, as those of aten\.mm\.default .* on cpu"):
        largest(graph, graph, limit=limit)


@pytest.mark.parametrize("is_tried", [True, False])
def test_report_of_the_largest_size_says_what_became_of_parts(is_tried: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BITS, lambda *_: False)
    if not is_tried:
        monkeypatch.setattr("tmmu.runtime.memory.sizing.device_memory", lambda _: (0, 0))
    small, graph = step("sgd"), head_step("tied")
    with monkeypatch.context() as patch:
        patch.setattr(BITS, lambda *_: True)
        limit = fit(graph, limit=None).fitting.fitted.stack_bytes
    request = size_request(limit)
    report = MaxReport(
        answer=largest(small, graph, limit=limit), request=request, axis="batch", budget=None, reserve=0,
        size_option="", other_options="",
    )  # fmt: skip
    found, text = max_report.record(report)["max"], "\n".join(max_report.lines(report))
    assert found["parts_tried"] == is_tried
    assert {row["op"] for row in found["parts_left_out"]} == ({"aten.mm.default"} if is_tried else set())
    assert ("nothing runs in parts: those of aten.mm.default" in text) == is_tried
    assert ("parts are tried on the cpu that runs them" in text) != is_tried
