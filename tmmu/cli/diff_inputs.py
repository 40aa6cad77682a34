"""The two sides of a comparison: a plan in a file, or a TARGET that is planned for it in a process of its own.

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
from tmmu.cli.child import command
from tmmu.cli.commits import PREFIX, Checkout, check_out, require_folder, split_commit
from tmmu.cli.load import load_judged, load_plan
from tmmu.cli.options import IR_SUFFIX, PLAN_SUFFIX, Target, ir_path, parse_target
from tmmu.compare.match import Planned
from tmmu.errors import InternalError, InvalidConfig, TmmuError

Options: TypeAlias = Mapping[str, Sequence[str]]
"""Of ``tmmu plan``: each with its values."""

MODEL: Final = ("file", "class")
TRACED: Final = (*MODEL, "hf", "pt2")
APPLIES: Final[Mapping[str, tuple[str, ...]]] = {
    "--target": TRACED,
    "--mode": (*TRACED, "ir"),
    "--preset": (*TRACED, "ir"),
    "--optimizer": TRACED,
    "--set": MODEL,
    "--input": MODEL,
    "--batch": ("hf",),
    "--seq": ("hf",),
    "--dtype": ("hf",),
    "--decode": ("hf",),
    "--cache-len": ("hf",),
    "--arena": (*TRACED, "ir"),
    "--nodes": (*TRACED, "ir"),
    "--no-cache": (*TRACED, "ir", "plan"),
}
"""Which options of ``tmmu plan`` mean something for which kinds of target; a plan that lies there is never cached."""
FLAGS: Final = ("--decode", "--no-cache")
OPTIMIZERS: Final = {"adamw": "aten._fused_adamw_", "sgd": "aten._fused_sgd_"}
OF_MODE: Final = ("--preset", "--optimizer")


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    """One side as it was named: of which commit, and the target to plan; a plan is there already where that is none."""

    text: str
    revision: str
    path: Path
    target: Target | None


def parse_side(text: str) -> Spec:
    """The side that ``text`` names; it need not exist, but its kind must be known."""
    revision, name = split_commit(text)
    if name.endswith(".cbor") and not name.endswith(IR_SUFFIX):
        return Spec(text=text, revision=revision, path=Path(name), target=None)
    target = parse_target(name)
    return Spec(text=text, revision=revision, path=target.path, target=target)


def require_use(options: Options, sides: Sequence[Spec]) -> None:
    """Refuses options that mean something for neither side."""
    kinds = {side.target.kind if side.target else "plan" for side in sides}
    for option, values in options.items():
        if values and not kinds.intersection(APPLIES[option]):
            raise InvalidConfig(f"{option}: means nothing for these two", fix="leave it out")


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a side lies: in a commit's files, or in the present folder where ``checkout`` is nothing."""

    side: Spec
    checkout: Checkout | None

    @property
    def folder(self) -> Path:
        """Where the side's paths start."""
        return self.checkout.here if self.checkout else Path.cwd()

    @property
    def path(self) -> Path:
        """The file or folder that the side names."""
        return self.folder / self.side.path

    def named(self, path: Path) -> str:
        """What a file beside the side's is called to whoever named the side."""
        shown = self.side.path.with_name(path.name)
        return f"{PREFIX}{self.side.revision}:{shown}" if self.checkout else str(shown)


def plan_sides(sides: tuple[Spec, Spec], options: Options) -> tuple[Planned | None, Planned]:
    """Both sides, legal and sound; nothing for the first where that is a commit before the model came.

    A target beside a plan is planned as that plan was (kernels, mode, preset, optimizer, arenas) where ``options`` do
    not say.
    """
    with TemporaryDirectory(prefix="tmmu-diff-") as name:
        scratch = Path(name)
        then, now = (_placed(side, scratch / str(number)) for number, side in enumerate(sides))
        if _came_later(then, now):
            (new,) = _planned([now], scratch, options)
            return None, new
        for place in (then, now):
            if place.checkout:
                require_folder(place.side.revision, place.folder)
        before, after = _planned([then, now], scratch, options)
        return before, after


def _placed(side: Spec, scratch: Path) -> Place:
    """The side, checked out where it is a commit's."""
    if not side.revision:
        return Place(side=side, checkout=None)
    scratch.mkdir()
    return Place(side=side, checkout=check_out(side.revision, scratch))


def _came_later(then: Place, now: Place) -> bool:
    """Whether a commit lacks what the other side has under the same name: a new model, and no misspelt one."""
    same = (then.side.path, then.side.target) == (now.side.path, now.side.target)
    return bool(then.checkout) and same and not then.path.exists() and now.path.exists()


def _planned(places: Sequence[Place], scratch: Path, options: Options) -> tuple[Planned, ...]:
    """The sides; what is to be planned is planned at once, each in a process of its own."""
    loaded = [None if place.side.target else _recorded(place) for place in places]
    model = next((one for one in loaded if one), None)
    asked = _merged(_like(model), options) if model else options
    outputs = [scratch / f"{number}{PLAN_SUFFIX}" for number in range(len(places))]
    with ExitStack() as stack:
        jobs = zip(places, outputs, strict=True)
        children = [stack.enter_context(_planning(*job, asked)) for job in jobs if job[0].side.target]
        for side, child in children:
            _finish(side, child)
    return tuple(one or _load(output) for one, output in zip(loaded, outputs, strict=True))


def _recorded(place: Place) -> Planned:
    """The plan that lies there, with its graph."""
    path, ir = place.path, ir_path(None, place.path)
    if not path.exists():
        raise InvalidConfig(f"cannot read {place.named(path)}: there is no such file", fix="check the name")
    if not ir.exists():
        what = f"{place.named(path)}: its graph {ir.name} is not beside it"
        raise InvalidConfig(what, fix="keep the two files that tmmu plan writes")
    return _load(path, name=place.named(path), graph_name=place.named(ir))


def _load(path: Path, *, name: str = "", graph_name: str = "") -> Planned:
    plan = load_plan(path, name=name)
    graph = load_judged(plan, ir_path(None, path), None, plan_name=name or str(path), name=graph_name)
    return Planned(graph=graph, plan=plan)


def _like(model: Planned) -> Options:
    """The options that plan something as ``model`` was planned. A limit of it is none for another."""
    arenas, plan = model.plan.arenas, model.plan
    columns = zip(arenas.name, arenas.layout, arenas.alignment, arenas.page, strict=True)
    texts = [f"{name}=layout:{layout},alignment:{alignment},page:{page}" for name, layout, alignment, page in columns]
    return {
        "--target": [model.graph.target],
        "--mode": [plan.mode],
        "--preset": [plan.preset],
        "--optimizer": _optimizer(model),
        "--arena": texts,
    }


def _optimizer(model: Planned) -> list[str]:
    """The optimizer whose update the graph holds."""
    targets = frozenset(model.graph.ops.target)
    return [name for name, update in OPTIMIZERS.items() if any(target.startswith(update) for target in targets)]


def _merged(like: Options, options: Options) -> Options:
    """What is asked for goes before what is taken from the plan: arenas key by key, what goes with a mode with it."""
    given = {option: values for option, values in options.items() if values}
    dropped = OF_MODE if "--mode" in given else ()
    base = {option: values for option, values in like.items() if option not in dropped}
    return base | given | {"--arena": [*like["--arena"], *given.get("--arena", ())]}


@contextmanager
def _planning(place: Place, output: Path, options: Options) -> Iterator[tuple[Spec, Popen[str]]]:
    """A process that plans the side's target; gone in the end, whatever happens."""
    target = place.side.target
    assert target is not None
    words = [
        word
        for option, values in options.items()
        if target.kind in APPLIES[option]
        for value in values
        for word in ((option,) if option in FLAGS else (option, value))
    ]
    asked = ["plan", *words, "-o", str(output), "--json", "--", target.text]
    line, cwd = command(asked, place.checkout), place.folder
    with Popen(line, cwd=cwd, stdin=DEVNULL, stdout=PIPE, stderr=PIPE, text=True, errors="replace") as child:
        try:
            yield place.side, child
        finally:
            child.kill()


def _finish(side: Spec, child: Popen[str]) -> None:
    """Returns when the side is planned; its refusal is ours, and names the side."""
    out, said = child.communicate()
    lines = said.splitlines(keepends=True)
    sys.stderr.writelines(lines if child.returncode == 0 else lines[:-1])
    if child.returncode:
        raise _refusal(side, out, child.returncode)


def _refusal(side: Spec, out: str, code: int) -> TmmuError:
    kinds = {
        kind.code: kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, TmmuError)
    }
    try:
        record = json.loads(out)
        kind, what, fix = kinds[record["code"]], record["what"], record["fix"]
    except (ValueError, KeyError, TypeError):
        return InternalError(f"{side.text}: planning ended with {code} and said nothing", fix="plan it by itself")
    return kind(f"{side.text}: {what}", fix=fix)
