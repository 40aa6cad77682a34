"""The options of the command line, each said once: groups that several commands share, and single ones.

A command takes a group as one parameter; ``expand_groups`` gives typer the options in it. So an option that is added
to a group is an option of every command that takes the group.
"""

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final, Literal, TypeAlias, TypeVar, get_args, get_origin, get_type_hints

import typer

from tmmu.errors import InvalidConfig

Result = TypeVar("Result")
Mode = Literal["inference", "forward", "backward"]
Preset = Literal["train_full", "inference", "remat_enabled"]
Device = Literal["cuda", "cpu"]
RingPolicy = Literal["cyclic", "skip_end", "slots", "double"]
Optimizer = Literal["adamw", "sgd"]
Dtype = Literal["float32", "float16", "bfloat16"]
Texts: TypeAlias = list[str] | None

PYTHON: Final = ("file", "class", "module")
"""Kinds of model that are Python code: ``model.py``, ``model.py:Name``, ``package.module:Name``."""
TRACED: Final = (*PYTHON, "hf", "pt2")
ANY: Final = (*TRACED, "ir")


@dataclass(frozen=True, slots=True)
class AppliesTo:
    """Kinds of model for which an option means something, and what to say for others."""

    kinds: tuple[str, ...]
    otherwise: str


class OptionGroup:
    """Base of the groups: dataclasses whose fields are annotated with ``typer.Option``."""

    HIDDEN: ClassVar[Mapping[str, str]] = {}
    """Old spellings, which still work and are in no help, and the fields that they set."""

    def given_options(self) -> Iterator[tuple[str, object]]:
        """The options of the group that were given, as ``--name`` and value."""
        for name, flag in flags(type(self)).items():
            value = getattr(self, name)
            if value not in (None, False, ()):
                yield flag, value


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureOptions(OptionGroup):
    """What is captured: on which device, how much of a step, of which sizes."""

    HIDDEN: ClassVar = {"--target": "device"}

    device: Annotated[
        Device | None,
        typer.Option(help="The device whose kernels are planned for, or that runs. Default: cuda; of tmmu run: cpu."),
        AppliesTo(TRACED, "settled when the graph was captured"),
    ] = None
    mode: Annotated[
        Mode | None, typer.Option(help="How much of a step is captured. Default: inference."), AppliesTo(ANY, "")
    ] = None
    optimizer: Annotated[
        Optimizer | None,
        typer.Option(help="Add this optimizer's update to the step; needs --mode backward. Default: none."),
        AppliesTo(TRACED, "settled when the graph was captured"),
    ] = None
    settings: Annotated[
        Texts,
        typer.Option(
            "--set", metavar="K=V", help="Set a parameter of model or inputs; may be repeated. Default: none."
        ),
        AppliesTo(PYTHON, "only for a model.py or model.py:Name"),
    ] = None
    inputs: Annotated[
        Texts,
        typer.Option(
            "--input", metavar="NAME=DTYPE[SHAPE]", help="Declare an input of a Python model. Default: its own."
        ),
        AppliesTo(PYTHON, "only for a model.py or model.py:Name"),
    ] = None
    batch: Annotated[
        int | None,
        typer.Option(metavar="N", help="Sequences at once, of an hf: model. Default: 1."),
        AppliesTo(("hf",), "only for an hf: target; a model.py takes --set"),
    ] = None
    seq: Annotated[
        int | None,
        typer.Option(metavar="N", help="Tokens in a sequence, of an hf: model. Default: what its configuration says."),
        AppliesTo(("hf",), "only for an hf: target; a model.py takes --set"),
    ] = None
    dtype: Annotated[
        Dtype | None,
        typer.Option(help="The dtype of the weights of an hf: model. Default: what its configuration says."),
        AppliesTo(("hf",), "only for an hf: target; a model.py takes --set"),
    ] = None
    decode: Annotated[
        bool,
        typer.Option(
            "--decode", help="Capture one token against a static KV cache, of an hf: model. Default: a prefill."
        ),
        AppliesTo(("hf",), "only for an hf: target; a model.py takes --set"),
    ] = False
    cache_len: Annotated[
        int | None,
        typer.Option(metavar="N", help="Tokens that the KV cache of --decode holds. Default: what the model allows."),
        AppliesTo(("hf",), "only for an hf: target; a model.py takes --set"),
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanningOptions(OptionGroup):
    """How a graph is planned, the replay token aside."""

    preset: Annotated[
        Preset | None,
        typer.Option(
            help="Which of overwriting and recomputation is used. Default: inference, or train_full in training modes."
        ),
        AppliesTo(ANY, ""),
    ] = None
    arena: Annotated[
        Texts,
        typer.Option(
            metavar="NAME=KEY:VALUE,...",
            help="Change an arena: activations=capacity:8GiB. Default: none.",
        ),
        AppliesTo(ANY, ""),
    ] = None
    nodes: Annotated[
        int | None,
        typer.Option(
            metavar="N", help="Node budget of the exact search, where the packers miss the bound. Default: 0."
        ),
        AppliesTo(ANY, ""),
    ] = None
    no_cache: Annotated[
        bool,
        typer.Option(
            "--no-cache",
            help="Neither look for this plan in the cache nor keep it. Default: the folder of TMMU_CACHE_DIR.",
        ),
        AppliesTo((*ANY, "plan"), ""),
    ] = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenOptions(OptionGroup):
    """The replay token, named in one of three ways."""

    seed: Annotated[
        int | None, typer.Option(metavar="N", help="Take the replay token of this 64-bit seed. Default: 0.")
    ] = None
    token: Annotated[
        str | None, typer.Option(metavar="HEX", help="Take this replay token of at least 64 bytes. Default: of --seed.")
    ] = None
    token_file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Take the bytes of this file as replay token. Default: of --seed."),
    ] = None


KINDS_HELP: Final = "model.py, model.py:Name, package.module:Name, hf:PATH, NAME.pt2 or NAME.ir.cbor"
Model = Annotated[str, typer.Argument(metavar="MODEL", help=KINDS_HELP)]
RunModel = Annotated[
    str, typer.Argument(metavar="MODEL", help=KINDS_HELP.replace(", NAME.pt2 or NAME.ir.cbor", " or NAME.pt2"))
]
SIDE_HELP: Final = "NAME.plan.cbor, a MODEL of tmmu plan, or git:REV: before either."
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout. Default: text.")]
Reserve = Annotated[
    str | None,
    typer.Option(metavar="SIZE", help="Bytes of a device kept free in the table of what fits. Default: 1GiB."),
]
Output = Annotated[
    str | None, typer.Option("--output", "-o", metavar="FILE", help="Write the plan here. Default: NAME.plan.cbor.")
]
GraphOutput = Annotated[
    str | None,
    typer.Option("--ir", metavar="FILE", help="Write the graph here. Default: NAME.ir.cbor, beside the plan."),
]
PlanFile = Annotated[Path, typer.Argument(metavar="PLAN", help="A NAME.plan.cbor.")]
GraphFile = Annotated[
    Path | None,
    typer.Option("--ir", metavar="FILE", help="Read the plan's graph here. Default: NAME.ir.cbor beside it."),
]
GoldenFolder = Annotated[Path, typer.Option("--dir", metavar="D", help="The folder of golden files.")]
GoldenCases = Annotated[
    list[str] | None, typer.Argument(metavar="[CASE]...", help="Cases by name. Default: all.", show_default=False)
]
Jobs = Annotated[int, typer.Option(metavar="N", envvar="TMMU_JOBS", help="Processes that plan at once.")]
GOLDEN: Final = Path("golden")


def flags(group: type[OptionGroup]) -> dict[str, str]:
    """Per field of a group, the option's long name."""
    return {name: _flag(name, hint) for name, hint in _hints(group).items()}


def applications(group: type[OptionGroup]) -> dict[str, AppliesTo]:
    """Per option of a group, by its long name, the kinds of model that it is for."""
    hints = _hints(group)
    return {_flag(name, hint): marker for name, hint in hints.items() for marker in _metadata(hint, AppliesTo)}


def switches(group: type[OptionGroup]) -> frozenset[str]:
    """The options of a group that take no value, by their long names."""
    return frozenset(_flag(name, hint) for name, hint in _hints(group).items() if get_args(hint)[0] is bool)


def expand_groups(command: Callable[..., Result]) -> Callable[..., Result]:
    """The command with the options of each of its groups in place of the group, for typer to read."""
    hints = get_type_hints(command, include_extras=True)

    @wraps(command)
    def run_expanded(**values: Any) -> Result:
        return command(**gather_groups(command, values))

    parameters = [
        new
        for parameter in inspect.signature(command).parameters.values()
        for new in _parameters(parameter, hints[parameter.name])
    ]
    run_expanded.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run_expanded.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run_expanded


def gather_groups(command: Callable[..., object], values: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a command, expanded or not, from values by option: its groups are made of theirs."""
    arguments = dict(values)
    for name, hint in get_type_hints(inspect.unwrap(command), include_extras=True).items():
        if _is_group(hint):
            arguments[name] = _gather(hint, arguments)
    return arguments


def _is_group(hint: Any) -> bool:
    return isinstance(hint, type) and issubclass(hint, OptionGroup)


def _parameters(parameter: inspect.Parameter, hint: Any) -> Iterator[inspect.Parameter]:
    keyword = inspect.Parameter.KEYWORD_ONLY
    if not _is_group(hint):
        yield parameter.replace(kind=keyword, annotation=hint)
        return
    hints = _hints(hint)
    for option in fields(hint):
        yield inspect.Parameter(option.name, keyword, default=option.default, annotation=hints[option.name])
    for spelling, name in hint.HIDDEN.items():
        kind = Annotated[get_args(hints[name])[0], typer.Option(spelling, hidden=True)]  # type: ignore[valid-type]
        yield inspect.Parameter(_hidden(spelling), keyword, default=None, annotation=kind)


def _gather(group: type[OptionGroup], values: dict[str, Any]) -> OptionGroup:
    """The group of the parsed values, which are taken out; an old spelling sets its field."""
    taken = {option.name: values.pop(option.name) for option in fields(group)}  # type: ignore[arg-type]
    for spelling, name in group.HIDDEN.items():
        old = values.pop(_hidden(spelling))
        if old is not None and taken[name] is not None:
            raise InvalidConfig(f"{spelling} and {flags(group)[name]} are one option", fix="give the second alone")
        taken[name] = taken[name] if old is None else old
    return group(**taken)


def _hidden(spelling: str) -> str:
    return "old_" + spelling.strip("-").replace("-", "_")


def _hints(group: type[OptionGroup]) -> dict[str, Any]:
    hints = get_type_hints(group, include_extras=True)
    return {name: hint for name, hint in hints.items() if get_origin(hint) is Annotated}


def _flag(name: str, hint: Any) -> str:
    """The option's long name. Inside ``Annotated`` typer takes the first spelling for a default."""
    spellings = [
        text
        for option in _metadata(hint, typer.models.OptionInfo)
        for text in (option.default, *(option.param_decls or ()))
        if isinstance(text, str) and text.startswith("--")
    ]
    return spellings[0] if spellings else "--" + name.replace("_", "-")


def _metadata(hint: Any, kind: type[Result]) -> Iterable[Result]:
    return [marker for marker in get_args(hint)[1:] if isinstance(marker, kind)]
