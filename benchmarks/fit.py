"""Fitted steps of nine models, beside aims.

``python -m benchmarks.fit [--only TEXT] [--exact | --inference] [--default-form] [--budgets N] [--json]``

MiB of the stack, as planned, at most 0 (less than half a per cent), 5, 10 and 20 % above the time of the step by the
roofline, and at the least; each beside its aim and the ratio to it. Then ops, points of the curve, rows of all
schedules that were made, seconds of processor time of the curve (the least of three), the largest ratio of planned
bytes to live bytes at these points, and whether less room ever took more bytes or less time over ``--budgets`` limits
from the most to the least of the curve.
``--exact``: without rewrites whose sums have another order; ``--inference``: without gradients, which has no aims;
``--default-form``: with each optimizer in the form that torch picks on the device, lists of tensors, and not fused.
Every plan has passed both judges. Exits 1 where a plan takes more than 1.005 of its live bytes, more than its limit,
or less room took more.
"""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import transformers

from benchmarks.fit_models.published import MIXTRAL_4, T5_BASE
from tmmu.driver import Compiled, PlanRequest, compile_model
from tmmu.ir.graph import Graph
from tmmu.ir.plan import segment_bytes
from tmmu.passes.capture.request import CaptureRequest, no_progress
from tmmu.planner.arenas import default_arenas
from tmmu.planner.fit.curve import StepCurve, step_curve
from tmmu.planner.fit.fit_step import PPM, FittedStep, PlanSettings, fit_step, fit_within
from tmmu.planner.fit.forms import LEVERS
from tmmu.planner.token import token_from_seed

MIB: Final = 2**20
TOKEN: Final = token_from_seed(0)
ARENAS: Final = default_arenas(alignment=256)
EXTRA: Final = {0: 5_000, 5: 50_000, 10: 100_000, 20: 200_000}
"""Per cent of the step's time, and the most in parts per million: what rounds to 0 is 0."""
TIGHT: Final = 1.005
ROOT: Final = Path(__file__).parent.parent
Sizes = dict[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class FitModel:
    """``source``: a file of this repository, or a class of transformers with its sizes.

    ``aims``: MiB at each of ``EXTRA``, then of the floor; ``None`` where there is none.
    """

    name: str
    source: str | tuple[str, dict[str, Any]]
    aims: tuple[int | None, ...]
    sizes: Sizes
    optimizer: str = "adamw:fused"


LLAMA: Final = "benchmarks/fit_models/llama.py"
ONE_BILLION: Final = {"layers": 16, "width": 2048, "inside": 8192, "head": 64}
MODELS: Final = (
    FitModel(name="GPT-2 b8 s1024", source="examples/gpt2.py", sizes={"batch": 8, "seq": 1024},
             aims=(5_130, 3_100, 1_550, 960, 925)),
    FitModel(name="ViT-L b32", source="benchmarks/fit_models/vit.py", sizes={"batch": 32},
             aims=(9_610, 6_390, 4_380, 1_325, 930)),
    FitModel(name="Llama 1B b4 s2048", source=LLAMA, sizes=ONE_BILLION | {"batch": 4},
             aims=(15_770, 7_450, 5_080, 1_865, None)),
    FitModel(name="LoRA 8B b1 s2048", source=LLAMA, sizes={"rank": 16}, aims=(12_720, 6_450, 5_130, 3_215, 1_015)),
    FitModel(name="ResNet-50 b64", source="benchmarks/fit_models/resnet.py", sizes={"batch": 64}, optimizer="sgd",
             aims=(None, 3_420, 2_590, 1_375, None)),
    FitModel(name="ConvNeXt-T b64", source="benchmarks/fit_models/convnext.py", sizes={"batch": 64},
             aims=(None, 4_320, 2_485, 1_325, None)),
    FitModel(name="UNet b4", source="benchmarks/fit_models/unet.py", sizes={"batch": 4},
             aims=(None, 3_920, 1_940, 1_050, None)),
    FitModel(name="T5-base b8 s512", source=T5_BASE, sizes={"batch": 8, "seq": 512},
             aims=(7_260, 4_980, 3_660, 2_670, None)),
    FitModel(name="Mixtral-4 b1 s2048", source=MIXTRAL_4, sizes={"batch": 1, "seq": 2048},
             aims=(3_390, 3_030, 3_010, None, None)),
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class FitRow:
    """What is printed of one model; sizes in MiB, ``None`` where no point of the curve is that cheap."""

    name: str
    exact: bool
    base: float
    within: tuple[float | None, ...]
    least: float
    least_time: float
    aims: tuple[int | None, ...]
    ops: int
    points: int
    rows: int
    seconds: float
    packed: float
    monotone: bool


def in_default_form(model: FitModel) -> FitModel:
    """The same, with the form of its optimizer left to torch."""
    return replace(model, optimizer=model.optimizer.partition(":")[0])


def captured(model: FitModel, *, inference: bool = False) -> Compiled:
    """The step of the model as it is, planned for a GPU."""
    mode, preset = ("inference", "inference") if inference else ("backward", "train_full")
    optimizer = None if inference else model.optimizer
    with tempfile.TemporaryDirectory() as folder:
        if isinstance(model.source, str):
            settings = tuple((name, str(size)) for name, size in model.sizes.items())
            target = {"model": str(ROOT / model.source), "settings": settings}
        else:
            architecture, sizes = model.source
            config = getattr(transformers, architecture).config_class(**sizes)
            config.architectures = [architecture]
            config.save_pretrained(folder)
            target = {"model": f"hf:{folder}", **model.sizes}
        request = CaptureRequest(**target, device="cuda", mode=mode, optimizer=optimizer)
        plan = PlanRequest(mode=mode, preset=preset, token=TOKEN, arenas=ARENAS)
        return compile_model(request, plan, no_progress)


def fitted_row(model: FitModel, *, near: bool, inference: bool, budgets: int) -> FitRow:
    """Capture, search, plan and judge."""
    base = captured(model, inference=inference)
    curve, seconds = timed_curve(base.graph, near=near)
    settings = PlanSettings(preset=base.plan.preset, token=TOKEN)
    within = [fit_within(curve, most * curve.time // PPM, settings) for most in EXTRA.values()]
    planned = [each for each in (*within, fit_within(curve, curve.points[-1].time, settings)) if each is not None]
    least = planned[-1]
    return FitRow(
        name=model.name,
        exact=not near,
        base=segment_bytes(base.plan.arenas, "stack") / MIB,
        within=tuple(None if each is None else each.stack_bytes / MIB for each in within),
        least=least.stack_bytes / MIB,
        least_time=100 * least.time / curve.time,
        aims=(None,) * len(model.aims) if inference else model.aims,
        ops=len(base.graph.ops),
        points=len(curve.points),
        rows=curve.work,
        seconds=seconds,
        packed=max(each.stack_bytes / each.live for each in planned),
        monotone=is_monotone(curve, settings, budgets),
    )


def timed_curve(graph: Graph, *, near: bool) -> tuple[StepCurve, float]:
    """The curve, and the least of three times that it takes: compiled code is loaded with the first."""
    seconds = []
    for _ in range(3):
        start = time.process_time()
        curve = step_curve(graph, ARENAS, [name for name, _ in LEVERS], near=near)
        seconds.append(time.process_time() - start)
    return curve, min(seconds)


def is_monotone(curve: StepCurve, settings: PlanSettings, budgets: int) -> bool:
    """Whether less room never takes more bytes or less time, nor anything more than the room."""
    top, bottom = curve.points[0].peak, curve.points[-1].peak
    limits = [top - (top - bottom) * place // max(1, budgets) for place in range(budgets)]
    steps = [(limit, step) for limit in limits if (step := fit_step(curve, limit, settings)) is not None]
    return all(step.stack_bytes <= limit for limit, step in steps) and all(
        _is_no_better(later, earlier) for (_, earlier), (_, later) in pairwise(steps)
    )


def _is_no_better(later: FittedStep, earlier: FittedStep) -> bool:
    return later.stack_bytes <= earlier.stack_bytes and later.time >= earlier.time


def lines(row: FitRow) -> Iterator[str]:
    """The row as text: figures, then what was found beside them."""
    yield f"{row.name}{' exact' * row.exact}, as it is {row.base:,.0f} MiB"
    names = [*(f"+{percent} %" for percent in EXTRA), f"least, +{row.least_time:.1f} %"]
    for name, found, aim in zip(names, (*row.within, row.least), row.aims, strict=True):
        figure = "-" if found is None else f"{found:,.0f}"
        ratio = "" if found is None or aim is None else f"{found / aim:6.3f} of the aim {aim:,}"
        yield f"  {name:16}{figure:>9}  {ratio}".rstrip()
    yield (
        f"  {row.ops} ops, {row.points} points, {row.rows:,} rows, {row.seconds:.1f} s, "
        f"packed / live {row.packed:.5f}, {'monotone' if row.monotone else 'NOT MONOTONE'}"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", metavar="TEXT", help="models whose name has this in it")
    parser.add_argument("--exact", action="store_true")
    parser.add_argument("--inference", action="store_true")
    parser.add_argument("--default-form", action="store_true")
    parser.add_argument("--budgets", type=int, default=20, metavar="N")
    parser.add_argument("--json", action="store_true", help="a JSON object in a line for each model")
    options = parser.parse_args()
    is_well = True
    for model in MODELS:
        if options.only.lower() not in model.name.lower():
            continue
        row = fitted_row(
            in_default_form(model) if options.default_form else model,
            near=not (options.exact or options.inference),
            inference=options.inference,
            budgets=options.budgets,
        )
        print(json.dumps(asdict(row)) if options.json else "\n".join(lines(row)), flush=True)
        is_well &= row.monotone and row.packed <= TIGHT
    return 0 if is_well else 1


if __name__ == "__main__":
    sys.exit(main())
