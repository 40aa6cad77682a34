"""The two sides of a comparison: a plan in a file, or a MODEL that is planned for it in a process of its own.

Two versions of one model cannot be traced in one process: the second would find the modules of the first.
"""

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from subprocess import DEVNULL, PIPE, Popen
from tempfile import TemporaryDirectory
from typing import Final, TypeAlias

from tmmu import errors
from tmmu.cli.commits import PREFIX, Checkout, check_out, require_folder, split_commit
from tmmu.cli.load import load_judged, load_plan
from tmmu.cli.option_groups import applications, switches
from tmmu.cli.options import CaptureOptions, PlanningOptions
from tmmu.cli.parsing import IR_SUFFIX, PLAN_SUFFIX, ModelArgument, ir_path, parse_model
from tmmu.cli.planning_process import command
from tmmu.compare.match import PlannedGraph
from tmmu.errors import InternalError, InvalidConfig, TmmuError

Options: TypeAlias = Mapping[str, Sequence[str]]
"""Of ``tmmu plan``: each with its values."""

APPLIES: Final = {**applications(CaptureOptions), **applications(PlanningOptions)}
"""Which options of ``tmmu plan`` mean something for which kinds of model; a plan that lies there is never cached."""
SWITCHES: Final = switches(CaptureOptions) | switches(PlanningOptions)
OPTIMIZERS: Final = {"adamw": "aten._fused_adamw_", "sgd": "aten._fused_sgd_"}
OF_MODE: Final = ("--preset", "--optimizer")


@dataclass(frozen=True, slots=True, kw_only=True)
class DiffInput:
    """One side as it was named: of which commit, and the model to plan; ``None`` where a plan is there already."""

    text: str
    revision: str
    path: Path
    model: ModelArgument | None


def parse_side(text: str) -> DiffInput:
    """The side that ``text`` names; it need not exist, but its kind must be known."""
    revision, name = split_commit(text)
    if name.endswith(".cbor") and not name.endswith(IR_SUFFIX):
        return DiffInput(text=text, revision=revision, path=Path(name), model=None)
    model = parse_model(name)
    return DiffInput(text=text, revision=revision, path=model.path, model=model)


def require_use(options: Options, sides: Sequence[DiffInput]) -> None:
    """Refuses options that mean something for neither side."""
    kinds = {side.model.kind if side.model else "plan" for side in sides}
    for option, values in options.items():
        if values and not kinds.intersection(APPLIES[option].kinds):
            raise InvalidConfig(f"{option}: means nothing for these two", fix="leave it out")


@dataclass(frozen=True, slots=True, kw_only=True)
class SideLocation:
    """Where a side lies: in a commit's files, or in the present folder where ``checkout`` is nothing."""

    side: DiffInput
    checkout: Checkout | None

    @property
    def folder(self) -> Path:
        """Where the side's paths start."""
        return self.checkout.current_folder if self.checkout else Path.cwd()

    @property
    def path(self) -> Path:
        """The file or folder that the side names."""
        return self.folder / self.side.path

    def display_path(self, path: Path) -> str:
        """What a file beside the side's is called to whoever named the side."""
        shown = self.side.path.with_name(path.name)
        return f"{PREFIX}{self.side.revision}:{shown}" if self.checkout else str(shown)


def plan_sides(sides: tuple[DiffInput, DiffInput], options: Options) -> tuple[PlannedGraph | None, PlannedGraph]:
    """Both sides, legal and sound; nothing for the first where that is a commit before the model came.

    A model beside a plan is planned as that plan was (kernels, mode, preset, optimizer, arenas) where ``options`` do
    not say.
    """
    with TemporaryDirectory(prefix="tmmu-diff-") as name:
        scratch = Path(name)
        then, now = (_locate(side, scratch / str(number)) for number, side in enumerate(sides))
        if _came_later(then, now):
            (new,) = _plan_all([now], scratch, options)
            return None, new
        for place in (then, now):
            if place.checkout:
                require_folder(place.side.revision, place.folder)
        before, after = _plan_all([then, now], scratch, options)
        return before, after


def _locate(side: DiffInput, scratch: Path) -> SideLocation:
    """The side, checked out where it is a commit's."""
    if not side.revision:
        return SideLocation(side=side, checkout=None)
    scratch.mkdir()
    return SideLocation(side=side, checkout=check_out(side.revision, scratch))


def _came_later(then: SideLocation, now: SideLocation) -> bool:
    """Whether a commit lacks what the other side has under the same name: a new model, and no misspelt one."""
    same = (then.side.path, then.side.model) == (now.side.path, now.side.model)
    return bool(then.checkout) and same and not then.path.exists() and now.path.exists()


def _plan_all(places: Sequence[SideLocation], scratch: Path, options: Options) -> tuple[PlannedGraph, ...]:
    """The sides; what is to be planned is planned at once, each in a process of its own."""
    loaded = [None if place.side.model else _load_recorded(place) for place in places]
    model = next((planned for planned in loaded if planned), None)
    plan_options = _merge_options(_like(model), options) if model else options
    outputs = [scratch / f"{number}{PLAN_SUFFIX}" for number in range(len(places))]
    with ExitStack() as stack:
        jobs = zip(places, outputs, strict=True)
        children = [stack.enter_context(_planning_child(*job, plan_options)) for job in jobs if job[0].side.model]
        for side, child in children:
            _finish(side, child)
    return tuple(planned or _load(output) for planned, output in zip(loaded, outputs, strict=True))


def _load_recorded(place: SideLocation) -> PlannedGraph:
    """The plan that lies there, with its graph."""
    path, ir = place.path, ir_path(None, place.path)
    if not path.exists():
        raise InvalidConfig(f"cannot read {place.display_path(path)}: there is no such file", fix="check the name")
    if not ir.exists():
        reason = f"{place.display_path(path)}: its graph {ir.name} is not beside it"
        raise InvalidConfig(reason, fix="keep the two files that tmmu plan writes")
    return _load(path, name=place.display_path(path), graph_name=place.display_path(ir))


def _load(path: Path, *, name: str = "", graph_name: str = "") -> PlannedGraph:
    plan = load_plan(path, name=name)
    graph = load_judged(plan, ir_path(None, path), None, plan_name=name or str(path), name=graph_name)
    return PlannedGraph(graph=graph, plan=plan)


def _like(model: PlannedGraph) -> Options:
    """The options that plan something as ``model`` was planned. A limit of it is none for another."""
    arenas, plan = model.plan.arenas, model.plan
    columns = zip(arenas.name, arenas.layout, arenas.alignment, arenas.page, strict=True)
    texts = [f"{name}=layout:{layout},alignment:{alignment},page:{page}" for name, layout, alignment, page in columns]
    return {
        "--device": [model.graph.target],
        "--mode": [plan.mode],
        "--preset": [plan.preset],
        "--optimizer": _optimizer(model),
        "--arena": texts,
    }


def _optimizer(model: PlannedGraph) -> list[str]:
    """The optimizer whose update the graph holds."""
    targets = frozenset(model.graph.ops.target)
    return [name for name, update in OPTIMIZERS.items() if any(target.startswith(update) for target in targets)]


def _merge_options(like: Options, options: Options) -> Options:
    """What is asked for goes before what is taken from the plan: arenas key by key, what goes with a mode with it."""
    explicit = {option: values for option, values in options.items() if values}
    dropped = OF_MODE if "--mode" in explicit else ()
    base = {option: values for option, values in like.items() if option not in dropped}
    return base | explicit | {"--arena": [*like["--arena"], *explicit.get("--arena", ())]}


@contextmanager
def _planning_child(place: SideLocation, output: Path, options: Options) -> Iterator[tuple[DiffInput, Popen[str]]]:
    """A process that plans the side's model; gone in the end, whatever happens."""
    model = place.side.model
    assert model is not None
    words = [
        word
        for option, values in options.items()
        if model.kind in APPLIES[option].kinds
        for value in values
        for word in ((option,) if option in SWITCHES else (option, value))
    ]
    arguments = ["plan", *words, "-o", str(output), "--json", "--", model.text]
    line, cwd = command(arguments, place.checkout), place.folder
    with Popen(line, cwd=cwd, stdin=DEVNULL, stdout=PIPE, stderr=PIPE, text=True, errors="replace") as child:
        try:
            yield place.side, child
        finally:
            child.kill()


def _finish(side: DiffInput, child: Popen[str]) -> None:
    """Returns when the side is planned; its refusal is ours, and names the side."""
    out, stderr = child.communicate()
    lines = stderr.splitlines(keepends=True)
    sys.stderr.writelines(lines if child.returncode == 0 else lines[:-1])
    if child.returncode:
        raise _refusal(side, out, child.returncode)


def _refusal(side: DiffInput, out: str, code: int) -> TmmuError:
    kinds = {
        kind.code: kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, TmmuError)
    }
    try:
        record = json.loads(out)
        kind, message, fix = kinds[record["code"]], record["what"], record["fix"]
    except (ValueError, KeyError, TypeError):
        return InternalError(f"{side.text}: planning ended with {code} and said nothing", fix="plan it by itself")
    return kind(f"{side.text}: {message}", fix=fix)
