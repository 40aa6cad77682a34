"""torch's operator database through tmmu: no fault without an excuse; what the benchmark says where there is one."""

import itertools
import json
import math
import re
import sys
from argparse import ArgumentTypeError
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import opdb
from benchmarks.operators import pool
from benchmarks.operators.comparison import difference, distinct
from benchmarks.operators.routes import EQUAL, EXCEPTION, OTHER, REFUSED, UNSTABLE, outcomes
from benchmarks.operators.samples import Case, _Place
from tests.kernels import one_thread

HUNDREDTH: tuple[opdb.Pair, ...] = tuple(
    (name, dtype)
    for dtype, names in {
        "float32": (
            "add addmm amax as_strided:partial_views baddbmm bernoulli broadcast_to bucketize cat chunk cov cumprod "
            "cumsum diagonal einsum equal expand fft.irfft fft.rfft2 gather heaviside index_add index_put "
            "index_reduce:prod linalg.cholesky linalg.cond linalg.eigvalsh linalg.lstsq linalg.pinv "
            "linalg.solve linalg.svd logdet masked_select max:reduction_with_dim nn.functional.batch_norm "
            "nn.functional.conv2d nn.functional.cross_entropy nn.functional.ctc_loss nn.functional.embedding_bag "
            "nn.functional.huber_loss nn.functional.interpolate:bicubic nn.functional.max_pool2d "
            "nn.functional.nll_loss nonzero normal roll scatter_reduce:amin sgn sort std_mean t tensor_split "
            "topk unfold var where"
        ),
        "complex64": "angle conj fft.fft linalg.eigvals linalg.qr masked_fill mul prod sgn svd view_as_real",
        "bfloat16": "logsumexp mean nn.functional.layer_norm nn.functional.softmin:with_dtype sum",
        "int64": "bincount bitwise_xor cumsum index_select unique",
        "bool": "all logical_not nonzero",
        "float16": "matmul",
        "float8_e4m3fn": "eye torch._scaled_mm",
    }.items()
    for name in names.split()
)
"""A pair of each kind: views, in place, reductions, linear algebra, Fourier, bits, draws, indices, losses."""
WHOLE = Path("build/opdb.jsonl")
"""Where the whole run keeps what it has done."""


def demand_no_fault(table: opdb.Table) -> None:
    faults = list(opdb.unexcused(table))
    assert not faults, "\n".join(opdb.summary(table))


@pytest.mark.slow
def test_hundredth_of_the_database_has_no_fault_without_an_excuse() -> None:
    known = set(pool.all_pairs())
    assert not [pair for pair in HUNDREDTH if pair not in known]
    table = opdb.run(HUNDREDTH, samples=2)
    demand_no_fault(table)
    rows = [row for rows in table.values() for row in rows]
    assert sum(row["outcome"] == EQUAL for row in rows) > 0.8 * len(rows)


@pytest.mark.long
def test_database_has_no_fault_without_an_excuse() -> None:
    WHOLE.parent.mkdir(exist_ok=True)
    demand_no_fault(opdb.run(pool.all_pairs(), samples=4, jobs=2, resume=WHOLE))


def case(function: Any, *, trains: bool = False) -> Case:
    tensors = {"t0": torch.arange(6.0).view(2, 3).requires_grad_(trains)}
    return Case(function=function, args=(_Place("t0"),), kwargs={}, tensors=tensors, in_place=False, trains=trains)


def found(function: Any, **options: Any) -> dict[str, str]:
    with one_thread():
        return {outcome.route: outcome.outcome for outcome in outcomes(case(function, **options))}


def differs_in_a_trace(x: torch.Tensor) -> torch.Tensor:
    return x + 1 if type(x) is torch.Tensor else x + 2


def transposes_its_input(x: torch.Tensor) -> torch.Tensor:
    return x.t_() + 1


@pytest.mark.usefixtures("fresh_compiler")
def test_routes_of_a_sample_are_equal_each() -> None:
    assert found(lambda x: x.sin(), trains=True) == dict.fromkeys(("plan", "backward", "compile"), EQUAL)


@pytest.mark.usefixtures("fresh_compiler")
def test_result_with_other_bits_is_found() -> None:
    routes = found(differs_in_a_trace, trains=True)
    assert (routes["plan"], routes["backward"]) == (OTHER, OTHER)


@pytest.mark.usefixtures("fresh_compiler")
def test_refusal_is_no_fault_and_an_error_is() -> None:
    assert found(transposes_its_input)["plan"] == REFUSED
    broken = case(lambda x: x + 1)
    broken.tensors["t0"].requires_grad_(False)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("benchmarks.operators.routes.bind", lambda *_, **__: 1 / 0)
        (plan, *_) = outcomes(broken)
    assert (plan.outcome, plan.excuse) == (EXCEPTION, "")


@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.filterwarnings("ignore:The .grad attribute")
def test_sign_that_a_copied_change_loses_is_torchs() -> None:
    large = {"t0": torch.full((3,), 8.0, dtype=torch.float16, requires_grad=True)}
    changing = Case(
        function=torch.Tensor.erfc_, args=(_Place("t0"),), kwargs={}, tensors=large, in_place=True, trains=True
    )
    with one_thread():
        (*_, compiled) = outcomes(changing)
    assert (compiled.route, compiled.outcome) == ("compile", OTHER)
    assert compiled.reason.endswith("3 elements differ, first 0.0, not -0.0")
    assert compiled.excuse == "eager has it where copy_ writes the change"


@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.filterwarnings("ignore:The .grad attribute")
@pytest.mark.parametrize("function", [torch.Tensor.add_, torch.Tensor.add])
def test_other_bits_of_a_change_have_no_excuse(function: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tmmu.backend.CompiledGraph.run_forward", lambda _, args: [arg + 7 for arg in args])
    wrong = replace(case(lambda x: function(x, 1), trains=True), in_place=function is torch.Tensor.add_)
    with one_thread():
        (*_, compiled) = outcomes(wrong)
    assert compiled.outcome in (OTHER, EXCEPTION)
    assert not compiled.excuse


def test_call_without_one_value_is_not_compared() -> None:
    numbers = itertools.count()
    assert found(lambda x: x + next(numbers)) == {"eager": UNSTABLE}


PAYLOADS = torch.tensor([0x7FC00000, 0x7FC00001], dtype=torch.int32).view(torch.float32)
DIFFERENT: dict[str, tuple[torch.Tensor, torch.Tensor, str]] = {
    "payloads of NaN": (PAYLOADS[:1], PAYLOADS[1:], "1 elements differ, first nan, not nan"),
    "signs of zero": (torch.tensor([0.0, 1]), torch.tensor([-0.0, 1]), "1 elements differ, first 0.0, not -0.0"),
    "strides": (torch.zeros(2, 3), torch.zeros(3, 2).t(), r"strides \(3, 1\), not \(1, 2\)"),
    "shapes": (torch.zeros(2, 3), torch.zeros(3, 2), r"float32\[2,3\], not float32\[3,2\]"),
    "dtypes": (torch.zeros(2), torch.zeros(2).double(), r"float32\[2\], not float64\[2\]"),
    "lazy bits": (torch.zeros(2) * 1j, (torch.zeros(2) * 1j).conj(), "other lazy bits"),
}


@pytest.mark.parametrize("name", DIFFERENT)
def test_difference_is_said(name: str) -> None:
    a, b, said = DIFFERENT[name]
    assert re.search(said, difference([a], [b]))
    assert not difference([a], [a])


def test_tensors_without_bytes_and_lazy_ones_are_equal_to_themselves() -> None:
    x = torch.ones(2) * math.nan
    assert not difference([x, torch.empty(0, 3)], [x.clone(), torch.empty(0, 3)])
    assert not difference([(x * 1j).conj().resolve_conj()], [(x * 1j).conj()], lazy=False)
    assert len(distinct([x, x.view(2), x[:1]])) == 2


def row(outcome: str, *, excuse: str = "") -> dict[str, str]:
    return {"sample": "0", "route": "plan", "outcome": outcome, "reason": "why", "excuse": excuse}


def test_summary_counts_outcomes_and_lists_faults_without_an_excuse() -> None:
    table = {
        ("add", "float32"): [row("equal"), row("other bits")],
        ("mul", "bool"): [row("other bits", excuse="aot_eager has it too"), row("refused")],
    }
    first, _, *lines = opdb.summary(table)
    assert first == "2 operators, 2 pairs with a dtype, 4 runs"
    assert [line.split() for line in lines[:-1]] == [
        ["equal", "1"],
        ["refused", "1"],
        ["excused", "1"],
        ["other", "bits", "1"],
    ]
    assert lines[-1] == "add float32 sample 0 plan: other bits: why"
    assert any("2 operators" not in line and "aot_eager" in line for line in opdb.summary(table, reasons=True))


def test_shard_is_checked() -> None:
    assert opdb.shard("3/8") == (3, 8)
    for text in ("0/8", "9/8", "3", "a/b", "3/8/2"):
        with pytest.raises(ArgumentTypeError):
            opdb.shard(text)


def test_run_goes_on_where_it_was_cut_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[opdb.Pair] = []

    def run_pairs(pairs: Any, *, report: Any, **_: Any) -> None:
        for pair in pairs:
            asked.append(pair)
            report(pair, [row("equal")])

    monkeypatch.setattr(opdb, "run_pairs", run_pairs)
    path, pairs = tmp_path / "done.jsonl", [("add", "bool"), ("mul", "bool"), ("sub", "int64")]
    opdb.run(pairs[:2], samples=2, resume=path)
    path.write_text(path.read_text()[:-9])
    assert list(opdb.run(pairs, samples=2, resume=path)) == pairs
    assert asked == [*pairs[:2], *pairs[1:]]
    assert [json.loads(line)["operator"] for line in path.read_text().splitlines()] == ["add", "mul", "sub"]
    opdb.run(pairs[:1], samples=3, resume=path)
    assert asked[-1] == pairs[0]


def test_process_that_crashes_or_hangs_is_one_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "START_SECONDS", 20)
    script = """
import json, os, sys, time
for line in sys.stdin:
    name = json.loads(line)["operator"]
    if name == "crash": os._exit(7)
    if name == "hang": time.sleep(60)
    print(json.dumps([{"outcome": name}]), flush=True)
"""
    monkeypatch.setattr(pool, "COMMAND", (sys.executable, "-c", script))
    rows: list[tuple[str, str]] = []
    names = ("one", "crash", "two", "hang", "three")
    pool.run_pairs(
        [(name, "bool") for name in names],
        samples=1,
        seconds=1,
        jobs=1,
        report=lambda pair, found: rows.append((pair[0], found[0]["outcome"])),
    )
    assert rows == [(name, name) for name in names]
