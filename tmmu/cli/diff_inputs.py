"""Inputs of ``tmmu diff``: each side is a plan file, or a MODEL that a child process plans.

Two versions of one model cannot be traced in one process: the second would import the modules of the first.
"""

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from subprocess import DEVNULL, PIPE, Popen
from tempfile import TemporaryDirectory
from typing import Final, TypeAlias

from tmmu.cli.commits import GIT_PREFIX, Checkout, check_out, require_folder, split_commit
from tmmu.cli.option_groups import applications, switches
from tmmu.cli.options import PLAN_MODES, CaptureOptions, PlanningOptions
from tmmu.cli.parsing import ModelArgument, parse_model, trains_on_batch
from tmmu.cli.planning_process import command_line, refusal_of_child
from tmmu.codec.load import IR_SUFFIX, PLAN_SUFFIX, ir_path, load_judged, load_plan
from tmmu.compare.match import PlannedGraph
from tmmu.errors import InvalidConfig
from tmmu.ir.graph import FILE_OPTIMIZER, UPDATE_MODULE
from tmmu.summary.plan_contents import loss_text

Options: TypeAlias = Mapping[str, Sequence[str]]
"""Options of ``tmmu plan`` by long name, each with its values."""

APPLICATIONS: Final = {**applications(CaptureOptions), **applications(PlanningOptions)}
"""Per option of ``tmmu plan``, the kinds of model that it is for."""
SWITCHES: Final = switches(CaptureOptions) | switches(PlanningOptions)
OPTIMIZERS: Final = {"adamw:fused": "aten._fused_adamw_", "sgd:fused": "aten._fused_sgd_"}
MODE_OPTIONS: Final = ("--preset", "--optimizer", "--loss")


@dataclass(frozen=True, slots=True, kw_only=True)
class DiffInput:
    """One side as it was named. ``revision`` is empty without ``git:``; ``model`` is ``None`` for a plan file."""

    name: str
    revision: str
    path: Path
    model: ModelArgument | None


def parse_side(text: str) -> DiffInput:
    """The side that ``text`` names, which need not exist; ``InvalidConfig`` for an unknown kind of model."""
    revision, name = split_commit(text)
    if name.endswith(".cbor") and not name.endswith(IR_SUFFIX):
        return DiffInput(name=text, revision=revision, path=Path(name), model=None)
    model = parse_model(name)
    return DiffInput(name=text, revision=revision, path=model.path, model=model)


def require_use(options: Options, sides: Sequence[DiffInput]) -> None:
    """``InvalidConfig`` for an option that applies to neither side."""
    kinds = {side.model.kind if side.model else "plan" for side in sides}
    for option, values in options.items():
        if values and not kinds.intersection(APPLICATIONS[option].kinds):
            raise InvalidConfig(f"{option}: means nothing for these two", fix="leave it out")


@dataclass(frozen=True, slots=True, kw_only=True)
class SideLocation:
    """A side in a commit's files, or in the current folder if ``checkout`` is ``None``."""

    side: DiffInput
    checkout: Checkout | None

    @property
    def folder(self) -> Path:
        """The folder that the side's paths are relative to."""
        return self.checkout.current_folder if self.checkout else Path.cwd()

    @property
    def path(self) -> Path:
        """The file or folder that the side names."""
        return self.folder / self.side.path

    def display_path(self, path: Path) -> str:
        """The name of a file beside the side's, in the form in which the side was named."""
        shown = self.side.path.with_name(path.name)
        return f"{GIT_PREFIX}{self.side.revision}:{shown}" if self.checkout else str(shown)


def plan_sides(sides: tuple[DiffInput, DiffInput], options: Options) -> tuple[PlannedGraph | None, PlannedGraph]:
    """Both sides, legal and sound; ``None`` for the first if it is of a commit that lacks the model.

    Where ``options`` are silent, a model that is compared with a plan takes the plan's device, mode, preset, optimizer,
    loss and arenas.
    """
    with TemporaryDirectory(prefix="tmmu-diff-") as name:
        scratch = Path(name)
        then, now = (_locate(side, scratch / str(number)) for number, side in enumerate(sides))
        if _is_new_model(then, now):
            (new,) = _plan_all([now], scratch, options)
            return None, new
        for place in (then, now):
            if place.checkout:
                require_folder(place.side.revision, place.folder)
        before, after = _plan_all([then, now], scratch, options)
        return before, after


def _locate(side: DiffInput, scratch: Path) -> SideLocation:
    """The side's location; checks out its commit if it has one."""
    if not side.revision:
        return SideLocation(side=side, checkout=None)
    scratch.mkdir()
    return SideLocation(side=side, checkout=check_out(side.revision, scratch))


def _is_new_model(before: SideLocation, after: SideLocation) -> bool:
    """Whether the first side is of a commit that lacks the model, and the second has it under the same name."""
    same_model = (before.side.path, before.side.model) == (after.side.path, after.side.model)
    return bool(before.checkout) and same_model and not before.path.exists() and after.path.exists()


def _plan_all(locations: Sequence[SideLocation], scratch: Path, options: Options) -> tuple[PlannedGraph, ...]:
    """All sides; models are planned at the same time, each in a child process."""
    loaded = [None if place.side.model else _load_recorded(place) for place in locations]
    model = next((planned for planned in loaded if planned), None)
    base = _options_like(model) if model else None
    outputs = [scratch / f"{number}{PLAN_SUFFIX}" for number in range(len(locations))]
    with ExitStack() as stack:
        jobs = zip(locations, outputs, strict=True)
        # All children start before the first is waited for; the stack kills those that still run when one is refused.
        children = [
            stack.enter_context(_planning_child(place, output, _options_of(place, base, options)))
            for place, output in jobs
            if place.side.model
        ]
        for side, child in children:
            _require_planned(side, child)
    return tuple(planned or _load(output) for planned, output in zip(loaded, outputs, strict=True))


def _load_recorded(location: SideLocation) -> PlannedGraph:
    """The recorded plan of a side, with its graph."""
    path, ir = location.path, ir_path(None, location.path)
    if not path.exists():
        raise InvalidConfig(f"cannot read {location.display_path(path)}: there is no such file", fix="check the name")
    if not ir.exists():
        reason = f"{location.display_path(path)}: its graph {ir.name} is not beside it"
        raise InvalidConfig(reason, fix="keep the two files that tmmu plan writes")
    return _load(path, name=location.display_path(path), graph_name=location.display_path(ir))


def _load(path: Path, *, name: str = "", graph_name: str = "") -> PlannedGraph:
    plan = load_plan(path, name=name)
    graph = load_judged(plan, ir_path(None, path), None, plan_name=name or str(path), name=graph_name)
    return PlannedGraph(graph=graph, plan=plan)


def _options_like(model: PlannedGraph) -> Options:
    """The options by which ``model`` was planned, without the capacities of its arenas."""
    arenas, plan = model.plan.arenas, model.plan
    columns = zip(arenas.name, arenas.layout, arenas.alignment, arenas.page, strict=True)
    texts = [f"{name}=layout:{layout},alignment:{alignment},page:{page}" for name, layout, alignment, page in columns]
    return {
        "--device": [model.graph.target],
        "--mode": ["step" if _is_own_step(model) else plan.mode],
        "--preset": [plan.preset],
        "--optimizer": _optimizer(model),
        "--loss": [name] if (name := loss_text(model.graph).partition(":")[0]) else [],
        "--arena": texts,
    }


def _is_own_step(model: PlannedGraph) -> bool:
    """Whether the graph says that it was made of a function that takes a step."""
    return model.graph.notes.eager is not None and model.graph.notes.eager.own_step


def _optimizer(model: PlannedGraph) -> list[str]:
    """The ``--optimizer`` of the updates in the graph."""
    graph = model.graph
    for stage, module in zip(graph.ops.stage, graph.notes.ops.module, strict=True):
        if stage == "update" and module.startswith(UPDATE_MODULE):
            text = module.removeprefix(UPDATE_MODULE)
            return [] if text == FILE_OPTIMIZER else [text]
    targets = frozenset(graph.ops.target)  # of a graph that was made before its ops said so
    return [name for name, update in OPTIMIZERS.items() if any(target.startswith(update) for target in targets)]


def _options_of(location: SideLocation, base: Options | None, options: Options) -> Options:
    """The options of one side; ``base`` are those of the plan on the other side.

    A training step of the user's has the mode of a training step in its plan, and is planned as one of its own.
    """
    if base is None:
        return options
    merged = _merge_options(base, options)
    model = location.side.model
    is_step = not options.get("--mode") and base["--mode"] == ["step"]
    may_be_step = is_step or (not options.get("--mode") and base["--mode"] == [PLAN_MODES["step"]])
    own = {option: options.get(option, ()) for option in ("--optimizer", "--loss")}
    if is_step and model is not None:
        return {**merged, **own, "--mode": ["step" if model.kind == "class" else PLAN_MODES["step"]]}
    if not may_be_step or model is None or model.kind != "class" or merged.get("--input"):
        return merged
    settings = {text.partition("=")[0] for text in merged.get("--set", ())}
    if not trains_on_batch(location.path, model.text.rpartition(":")[2], settings):
        return merged
    return {**merged, **own, "--mode": ["step"]}


def _merge_options(base_options: Options, options: Options) -> Options:
    """``base_options`` replaced by ``options``: arenas key by key, options of a mode together with the mode."""
    explicit = {option: values for option, values in options.items() if values}
    dropped = MODE_OPTIONS if "--mode" in explicit else ()
    base = {option: values for option, values in base_options.items() if option not in dropped}
    return base | explicit | {"--arena": [*base_options["--arena"], *explicit.get("--arena", ())]}


@contextmanager
def _planning_child(location: SideLocation, output: Path, options: Options) -> Iterator[tuple[DiffInput, Popen[str]]]:
    """A process that plans the side's model, killed on exit."""
    model = location.side.model
    assert model is not None
    words = [
        word
        for option, values in options.items()
        if model.kind in APPLICATIONS[option].kinds
        for value in values
        for word in ((option,) if option in SWITCHES else (option, value))
    ]
    arguments = ["plan", *words, "-o", str(output), "--json", "--", model.text]
    line, cwd = command_line(arguments, location.checkout), location.folder
    with Popen(line, cwd=cwd, stdin=DEVNULL, stdout=PIPE, stderr=PIPE, text=True, errors="replace") as child:
        try:
            yield location.side, child
        finally:
            child.kill()


def _require_planned(side: DiffInput, child: Popen[str]) -> None:
    """Wait until the side is planned; raises its error, with the side's name."""
    out, stderr = child.communicate()
    lines = stderr.splitlines(keepends=True)
    sys.stderr.writelines(lines if child.returncode == 0 else lines[:-1])
    if child.returncode:
        raise refusal_of_child(side.name, out, child.returncode, verb="planning")
