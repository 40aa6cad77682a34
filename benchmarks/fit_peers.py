"""Fitted steps beside torch's ways: ``python -m benchmarks.fit_peers [--only TEXT] [--sizes N] [--exact] [--json]``.

For each of five models, at the FLOPs that a peer takes more than the step as it is, the fewest MiB of the stack that
tmmu has for that many. Peers: torch's partitioner at each ``activation_memory_budget`` of ``--sizes`` from 1 to 0, and
``torch.utils.checkpoint`` around each block. Each peer's step, forward and backward and update, runs under our
recorder, so that its operators are those that torch runs; it is planned and its levers but ``recompute`` are pulled as
of a step of ours, so that accounting and levers are the same. Both judges pass every plan.

A row: extra FLOPs of peer and tmmu in parts per million, extra time of both by the roofline, MiB of both, the ratio;
then MiB and ratio of tmmu's step in at most the peer's time, whatever its FLOPs. ``tmmu fit`` takes time for the price
of what runs again; for the comparison at equal FLOPs the same search takes FLOPs, as torch's partitioner does, and the
better of the two counts. Then whether less room ever took more bytes or less time, or any plan more than its room, over
20 budgets.
Exits 1 where tmmu takes more than a peer, or a curve is not monotone.
"""

import argparse
import importlib.util
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import torch
from functorch.compile import aot_function
from torch import Tensor, fx, nn
from torch.func import functional_call
from torch.utils.checkpoint import checkpoint

from benchmarks.fit import ARENAS, MIB, MODELS, TOKEN, FitModel, captured, is_monotone
from tmmu.driver import PlanRequest, compile_live
from tmmu.ir.graph import Graph
from tmmu.ir.rewrite import Rewrite
from tmmu.passes.capture.request import CaptureRequest
from tmmu.passes.capture.trace import fake_environment
from tmmu.planner.fit.curve import StepCurve, StepFrames, step_curve
from tmmu.planner.fit.fit_step import PPM, FittedStep, PlanSettings, fit_point, fit_within, judge_step
from tmmu.planner.fit.forms import LEVER_NAMES, RECOMPUTE, Form, StepForms
from tmmu.planner.fit.step_facts import step_facts
from tmmu.torch_private import functorch_config, min_cut_partition

ROOT: Final = Path(__file__).parent.parent
BLOCKS: Final = {
    "GPT-2 b8 s1024": ("Block",),
    "ViT-L b32": ("Block",),
    "ResNet-50 b64": ("Bottleneck",),
    "ConvNeXt-T b64": ("Block",),
    "UNet b4": ("Residual", "Transformer"),
}
"""By model, the classes of its blocks, each of which is checkpointed."""
BUDGETS: Final = 20
"""Of the curve, tried one after another."""
FREE: Final = tuple(name for name in LEVER_NAMES if name != RECOMPUTE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """``plan``: of all plans; ``near``: whether the gradient of a head's weights may be summed over parts."""

    plan: PlanSettings
    near: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerRow:
    """A peer's step beside tmmu's, which takes no more FLOPs: extra FLOPs and time in ppm of the base's, stack bytes.

    ``in_time_bytes``: of tmmu's step that takes no more time. ``peer_levers``: those that the peer's plan shows.
    """

    model: str
    peer: str
    peer_flops_ppm: int
    our_flops_ppm: int
    peer_time_ppm: int
    our_time_ppm: int
    peer_bytes: int
    our_bytes: int
    in_time_bytes: int
    peer_levers: tuple[str, ...]

    @property
    def is_undercut(self) -> bool:
        """Whether the peer takes fewer bytes for its FLOPs."""
        return self.peer_bytes < self.our_bytes


class SplitStep(torch.autograd.Function):
    """Forward and backward as a partitioner splits them, run as two graphs."""

    @staticmethod
    def forward(ctx: Any, halves: "Halves", *tensors: Tensor) -> Tensor:  # type: ignore[override]
        """The loss; buffers get their new values."""
        outputs = halves.forward(*tensors)
        for old, new in zip(halves.buffers_of(tensors), outputs[: halves.buffers], strict=True):
            old.copy_(new)
        by_name = dict(zip(map(str, halves.forward.graph.output_node().args[0]), outputs, strict=True))  # type: ignore[arg-type]
        ctx.halves = halves
        ctx.save_for_backward(*(by_name[name] for name in halves.saved))
        return outputs[halves.buffers]  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:  # type: ignore[override]
        """Gradients of all tensors."""
        return None, *ctx.halves.backward(*ctx.saved_tensors, gradient)


@dataclass(frozen=True, slots=True, kw_only=True)
class Halves:
    """Two graphs; the first takes parameters, buffers and inputs, and returns new buffers, the loss, what is saved."""

    forward: fx.GraphModule
    backward: fx.GraphModule
    parameters: int
    buffers: int

    @property
    def saved(self) -> list[str]:
        """What the second takes of the first, by name, before the gradient of the loss."""
        return [node.name for node in self.backward.graph.find_nodes(op="placeholder")][:-1]

    def buffers_of(self, tensors: Sequence[Tensor]) -> Sequence[Tensor]:
        """Of the tensors that the first takes."""
        return tensors[self.parameters : self.parameters + self.buffers]


class SplitModel(nn.Module):
    """A model whose loss and gradients are computed by halves."""

    def __init__(self, model: nn.Module, halves: Halves) -> None:
        super().__init__()
        self.model, self.halves = model, halves

    def forward(self, *inputs: Tensor) -> Tensor:
        return SplitStep.apply(self.halves, *self.model.parameters(), *self.model.buffers(), *inputs)  # type: ignore[no-any-return, no-untyped-call]


class LossModel(nn.Module):
    """A model that returns its loss."""

    def __init__(self, model: nn.Module, loss: Callable[..., Tensor]) -> None:
        super().__init__()
        self.model, self.loss = model, loss

    def forward(self, *inputs: Tensor) -> Tensor:
        return self.loss(self.model, *inputs)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFile:
    """What a file of ``benchmarks/fit_models`` says, run anew: the model and inputs without bytes."""

    module: ModuleType
    model: nn.Module
    inputs: tuple[Tensor, ...]


def load_file(model: FitModel, blocks: Sequence[str] = ()) -> ModelFile:
    """The file's model at its sizes; the classes that are named are checkpointed."""
    assert isinstance(model.source, str)
    spec = importlib.util.spec_from_file_location("peer", ROOT / model.source)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for name in blocks:
        block = getattr(module, name)
        block.forward = _checkpointed(block.forward)
    with torch.device("meta"):
        return ModelFile(
            module=module,
            model=module.model(**_arguments(module.model, model.sizes)),
            inputs=module.inputs(**_arguments(module.inputs, model.sizes)),
        )


def _arguments(function: Callable[..., Any], sizes: dict[str, int]) -> dict[str, int]:
    names = function.__code__.co_varnames[: function.__code__.co_argcount]
    return {name: size for name, size in sizes.items() if name in names}


def _checkpointed(forward: Callable[..., Any]) -> Callable[..., Any]:
    def call(self: nn.Module, *tensors: Tensor) -> Any:
        return checkpoint(partial(forward, self), *tensors, use_reentrant=False)

    return call


class _Split(Exception):
    """Carries the halves out of AOTAutograd, which needs no compiled ones."""


def split_by_torch(file: ModelFile, budget: float) -> Halves:
    """The step as torch's partitioner splits it at an ``activation_memory_budget``, traced as for a GPU."""
    model, found = file.model, list[tuple[fx.GraphModule, fx.GraphModule]]()
    names = [name for named in (model.named_parameters(), model.named_buffers()) for name, _ in named]

    def loss(*tensors: Tensor) -> Any:
        state = dict(zip(names, tensors, strict=False))
        return file.module.loss(lambda *inputs: functional_call(model, state, inputs), *tensors[len(names) :])

    def partition(joint: fx.GraphModule, inputs: Any, **options: Any) -> Any:
        with functorch_config.patch(activation_memory_budget=budget):
            found.append(min_cut_partition(joint, inputs, **options))
        raise _Split

    with fake_environment("cuda"):
        tensors = [
            torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype).requires_grad_(tensor.requires_grad)
            for tensor in (*model.parameters(), *model.buffers(), *file.inputs)
        ]
        with suppress(_Split):
            aot_function(loss, fw_compiler=None, bw_compiler=None, partition_fn=partition)(*tensors)
    forward, backward = found[0]
    return Halves(
        forward=forward,
        backward=backward,
        parameters=len(list(model.parameters())),
        buffers=len(list(model.buffers())),
    )


def recorded(module: nn.Module, inputs: tuple[Tensor, ...], optimizer: str) -> Graph:
    """The training step of a module that returns its loss."""
    capture = CaptureRequest(model="", mode="backward", device="cuda", optimizer=optimizer)
    plan = PlanRequest(mode="backward", preset="train_full", token=TOKEN, arenas=ARENAS)
    return compile_live(module, inputs, capture, plan).graph


def peers(model: FitModel, blocks: Sequence[str], sizes: int) -> Iterator[tuple[str, Graph]]:
    """Each peer's step, by name."""
    checkpointed = load_file(model, blocks)
    module = LossModel(checkpointed.model, checkpointed.module.loss)
    yield "checkpoint", recorded(module, checkpointed.inputs, model.optimizer)
    file = load_file(model)
    for place in range(sizes):
        budget = 1 - place / (sizes - 1)
        split = SplitModel(file.model, split_by_torch(file, budget))
        yield f"budget {budget:.2f}", recorded(split, file.inputs, model.optimizer)


@dataclass(frozen=True, slots=True, kw_only=True)
class OurCurves:
    """The curve of a step as ``tmmu fit`` has it, and that of the same search where FLOPs are the price of reruns."""

    by_time: StepCurve
    by_flops: StepCurve

    @classmethod
    def of(cls, base: Graph, *, near: bool) -> "OurCurves":
        """Both, of one step."""
        by_time, by_flops = (kind(base=base, arenas=ARENAS, near=near) for kind in (StepForms, FormsByFlops))
        curves = (StepFrames.of(forms, LEVER_NAMES).curve(again=True) for forms in (by_time, by_flops))
        return cls(by_time=next(curves), by_flops=next(curves))

    def step_of(self, flops: int, settings: PlanSettings) -> FittedStep:
        """The step in the fewest bytes of those that take at most so many FLOPs more."""
        steps = (least_of_points(self.by_time, flops, settings), least_within(self.by_flops, flops, settings))
        return min(steps, key=lambda step: step.stack_bytes)


class FormsByFlops(StepForms):
    """The forms of a step with FLOPs in the place of time."""

    @cached_property
    def whole(self) -> Form:
        """The base itself."""
        return priced_by_flops(super().whole)

    def _new_form(self, rewrite: Rewrite, *, early: bool) -> Form:
        form = super()._new_form(rewrite, early=early)
        return form if form is self.whole else priced_by_flops(form)


def priced_by_flops(form: Form) -> Form:
    """The form with FLOPs in the place of picoseconds."""
    facts = form.facts
    priced = replace(facts, row_time=facts.row_flops, time=facts.flops)
    return Form(rewrite=form.rewrite, facts=priced, first=form.first)


def peer_rows(name: str, ours: OurCurves, graphs: Iterable[tuple[str, Graph]], settings: Settings) -> Iterator[PeerRow]:
    """Each peer with the levers but ``recompute``, beside the step of ours in the fewest bytes for its FLOPs."""
    base = ours.by_time
    for peer, graph in graphs:
        curve = step_curve(graph, ARENAS, FREE, near=settings.near)
        step = judge_step(curve, fit_point(curve, len(curve.points) - 1, settings.plan), settings.plan)
        flops, time = curve.flops - base.flops + step.flops, curve.time - base.time + step.time
        our_step = ours.step_of(flops, settings.plan)
        yield PeerRow(
            model=name,
            peer=peer,
            peer_flops_ppm=flops * PPM // base.flops,
            our_flops_ppm=our_step.flops * PPM // base.flops,
            peer_time_ppm=time * PPM // base.time,
            our_time_ppm=(step_facts(our_step.graph, ARENAS).time - base.time) * PPM // base.time,
            peer_bytes=step.stack_bytes,
            our_bytes=our_step.stack_bytes,
            in_time_bytes=least_within(base, time, settings.plan).stack_bytes,
            peer_levers=step.plan.fit.levers if step.plan.fit else (),
        )


def least_within(curve: StepCurve, price: int, settings: PlanSettings) -> FittedStep:
    """The step in the fewest bytes for at most a price, or the cheapest; judged."""
    step = fit_within(curve, max(price, curve.points[0].time), settings)
    assert step is not None  # the first point is not dearer
    return step


def least_of_points(curve: StepCurve, flops: int, settings: PlanSettings) -> FittedStep:
    """The step in the fewest bytes of the curve's points that take at most so many FLOPs more, or the first; judged."""
    places = [place for place, point in enumerate(curve.points) if point.flops <= flops]
    return judge_step(curve, fit_point(curve, places[-1] if places else 0, settings), settings)


def line(row: PeerRow) -> str:
    """The row as text."""
    sizes = f"{row.peer_bytes / MIB:>10,.1f}{row.our_bytes / MIB:>10,.1f}{row.our_bytes / row.peer_bytes:>8.4f}"
    in_time = f"{row.in_time_bytes / MIB:>10,.1f}{row.in_time_bytes / row.peer_bytes:>8.4f}"
    flops, times = (row.peer_flops_ppm, row.our_flops_ppm), (row.peer_time_ppm, row.our_time_ppm)
    ppm = "".join(f"{number:>9,}" for number in (*flops, *times))
    return f"{row.model:16}{row.peer:13}{ppm}{sizes}{in_time}  {' '.join(row.peer_levers)}"


HEADING: Final = (
    f"{'model':16}{'peer':13}{'FLOPs +':>9}{'ours':>9}{'time +':>9}{'ours':>9}{'MiB':>10}{'ours':>10}{'ratio':>8}"
    f"{'in time':>10}{'ratio':>8}  levers of the peer"
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", metavar="TEXT", help="models whose name has this in it")
    parser.add_argument("--sizes", type=int, default=11, metavar="N", help="budgets of torch's partitioner, from 2 on")
    parser.add_argument("--exact", action="store_true", help="without sums in another order")
    parser.add_argument("--json", action="store_true", help="a JSON object in a line for each row")
    options = parser.parse_args()
    is_well = True
    if not options.json:
        print(HEADING)
    for model in MODELS:
        if model.name not in BLOCKS or options.only.lower() not in model.name.lower():
            continue
        base = captured(model)
        settings = Settings(plan=PlanSettings(preset=base.plan.preset, token=TOKEN), near=not options.exact)
        ours = OurCurves.of(base.graph, near=settings.near)
        for row in peer_rows(model.name, ours, peers(model, BLOCKS[model.name], options.sizes), settings):
            print(json.dumps(asdict(row)) if options.json else line(row), flush=True)
            is_well &= not row.is_undercut
        rises = not is_monotone(ours.by_time, settings.plan, BUDGETS)
        print(f"{model.name}: {'NOT MONOTONE' if rises else 'monotone'} over {BUDGETS} budgets", file=sys.stderr)
        is_well &= not rises
    return 0 if is_well else 1


if __name__ == "__main__":
    sys.exit(main())
