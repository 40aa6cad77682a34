"""The options of the command line that several commands share, each declared once.

Environment variables hold what belongs to a machine (which device, how many bytes stay free, whether to cache), never
what belongs to a model.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, ClassVar, Final, Literal, TypeAlias

import typer

from tmmu.cli.option_groups import AppliesTo, OptionGroup
from tmmu.passes.capture.ranks.schedules import DEFAULT_SCHEDULE, SCHEDULES

Run: TypeAlias = Callable[[], int]
"""What a parsed command returns: the work, which gives the exit code."""
Mode = Literal["inference", "forward", "backward", "step"]
PLAN_MODES: Final = {"step": "backward"}
"""Modes of a plan that are called otherwise than what is captured."""
Preset = Literal["train_full", "inference", "remat_enabled"]
Device = Literal["cuda", "cpu"]
Dtype = Literal["float32", "float16", "bfloat16"]
Loss = Literal["cross_entropy", "mse", "sum"]
Autocast = Literal["bf16", "fp16"]
Texts: TypeAlias = list[str] | None

PYTHON: Final = ("file", "class", "module")
"""Kinds of model that are Python code: ``model.py``, ``model.py:Name``, ``package.module:Name``."""
TRACED: Final = (*PYTHON, "hf", "pt2")
ANY: Final = (*TRACED, "ir")

FOR_TRACED: Final = AppliesTo(TRACED, "settled when the graph was captured")
FOR_PYTHON: Final = AppliesTo(PYTHON, "only for a model.py, model.py:Name or package.module:Name")
FOR_HUGGING_FACE: Final = AppliesTo(("hf",), "only for an hf: model; a model.py takes --set")
FOR_SHARDED: Final = AppliesTo(("hf",), "only for an hf: model; a model.py shards itself, with --world")
FOR_EXPORTED: Final = AppliesTo(("pt2",), "only for a .pt2")
FOR_ANY: Final = AppliesTo(ANY, "")

CaptureOption = partial(typer.Option, rich_help_panel="Capture")
PlanningOption = partial(typer.Option, rich_help_panel="Planning")
TokenOption = partial(typer.Option, rich_help_panel="Replay token")


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureOptions(OptionGroup):
    """What is captured: for which device, how much of a step, in which sizes."""

    HIDDEN: ClassVar = {"--target": "device"}

    device: Annotated[
        Device | None,
        CaptureOption(
            envvar="TMMU_DEVICE", help="Plan for the kernels of this device. Default: cuda, and cpu for tmmu run."
        ),
        FOR_TRACED,
    ] = None
    mode: Annotated[
        Mode | None,
        CaptureOption(
            help="Capture one evaluation, the forward half of a training step, the whole step, or a step of your "
            "own: a function with its optimizer and all. Default: step for a function of a file that takes a batch "
            "and trains on it, backward for a graph of a training step, else inference."
        ),
        FOR_ANY,
    ] = None
    optimizer: Annotated[
        str | None,
        CaptureOption(
            metavar="NAME[:ITEM,...]",
            help="Add the update of this class of torch.optim to the step of --mode backward, such as adamw, "
            "adam:fused or sgd:momentum=0.9. Items are its arguments and one of fused, foreach and forloop. "
            "none: no update. Default: what the file's optimizer(params) makes, else none; the form that torch picks "
            "on the device.",
        ),
        FOR_TRACED,
    ] = None
    loss: Annotated[
        Loss | None,
        CaptureOption(
            help="Train on this loss of the model's output, compared with one more input. "
            "Default: loss of the model's file, or the loss that the model returns.",
        ),
        FOR_TRACED,
    ] = None
    autocast: Annotated[
        Autocast | None,
        CaptureOption(help="Run forward and loss inside torch.autocast of this dtype. Default: no autocast."),
        FOR_TRACED,
    ] = None
    dtype: Annotated[
        Dtype | None,
        CaptureOption(
            help="Convert weights, buffers and inputs to this floating dtype. Default: the dtypes that the model has."
        ),
        FOR_TRACED,
    ] = None
    settings: Annotated[
        Texts,
        CaptureOption(
            "--set",
            metavar="K=V",
            help="Set a parameter of model or inputs of a Python model to a literal, a text, or a call of a name of "
            "its file, such as config=GPTConfig(n_layer=4); may be repeated. Default: their own defaults.",
        ),
        FOR_PYTHON,
    ] = None
    inputs: Annotated[
        Texts,
        CaptureOption(
            "--input",
            metavar="NAME=DTYPE[SHAPE]",
            help="Declare an input of a Python model; may be repeated. Default: the inputs that the file defines.",
        ),
        FOR_PYTHON,
    ] = None
    symbolic_inputs: Annotated[
        bool,
        CaptureOption(
            "--symbolic-inputs",
            help="Refuse control flow on the values that the file gives to inputs and buffers of a Python model. "
            "Default: follow these values, and say so.",
        ),
        FOR_PYTHON,
    ] = False
    batch: Annotated[
        int | None,
        CaptureOption(metavar="N", help="Capture an hf: model for N sequences at once. Default: 1."),
        FOR_HUGGING_FACE,
    ] = None
    seq: Annotated[
        int | None,
        CaptureOption(
            metavar="N",
            help="Capture an hf: model for N tokens per sequence. Default: 512, or its number of positions if less.",
        ),
        FOR_HUGGING_FACE,
    ] = None
    decode: Annotated[
        bool,
        CaptureOption(
            "--decode", help="Capture one token of an hf: model against a static KV cache. Default: a prefill."
        ),
        FOR_HUGGING_FACE,
    ] = False
    cache_len: Annotated[
        int | None,
        CaptureOption(metavar="N", help="Give the KV cache of --decode room for N tokens. Default: that of --seq."),
        FOR_HUGGING_FACE,
    ] = None
    checkpoint: Annotated[
        bool,
        CaptureOption(
            "--checkpoint",
            help="Compute each layer of an hf: model again for its gradient (activation checkpointing). Default: what "
            "the layers make is kept.",
        ),
        FOR_HUGGING_FACE,
    ] = False
    capacity_factor: Annotated[
        str | None,
        CaptureOption(
            metavar="F",
            help="Plan for experts that get F times their even share of tokens at most, where counts of tokens decide "
            "a step: such a plan does not run. Default: a look at a count is refused.",
        ),
        FOR_TRACED,
    ] = None
    trust: Annotated[
        bool,
        CaptureOption("--trust", help="Let a .pt2 run the code that it holds. Default: what could run is refused."),
        FOR_EXPORTED,
    ] = False


@dataclass(frozen=True, slots=True, kw_only=True)
class FusionOptions(OptionGroup):
    """Whether ops are fused."""

    fuse: Annotated[
        bool,
        PlanningOption(
            "--fuse",
            help="Run neighbouring ops as one compiled kernel, whose results are near and not the same bits. "
            "Default: no.",
        ),
        AppliesTo(TRACED, "only for a model: a graph does not say what its operators are called with"),
    ] = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RankOptions(OptionGroup):
    """Which rank of how many is captured."""

    world: Annotated[
        int | None,
        CaptureOption(
            metavar="N",
            help="Capture one rank of N, in a process group that is made for it. "
            "Default: the process group that the model makes itself, or none.",
        ),
        AppliesTo(PYTHON, "only for a model.py, model.py:Name or package.module:Name; an hf: model takes --tp, --fsdp"),
    ] = None
    rank: Annotated[
        str | None,
        CaptureOption(
            metavar="WHICH",
            help="Plan this rank: first, last, a number, or fullest, the one that takes most memory, with "
            "a table of all by kinds. Default: fullest.",
        ),
        AppliesTo((*PYTHON, "hf"), "only for a Python or hf: model"),
    ] = None
    tp: Annotated[
        int | None,
        CaptureOption(
            metavar="N", help="Cut weights of an hf: model into columns and rows over N ranks (tensor parallel)."
        ),
        FOR_SHARDED,
    ] = None
    fsdp: Annotated[
        int | None,
        CaptureOption(
            metavar="N", help="Shard weights of an hf: model over N ranks, each with a batch of its own (FSDP2)."
        ),
        FOR_SHARDED,
    ] = None
    pp: Annotated[
        int | None,
        CaptureOption(
            metavar="N",
            help="Cut the layers of an hf: model into stages over N ranks, or N times those of --tp and --fsdp "
            "(pipeline parallel).",
        ),
        FOR_SHARDED,
    ] = None
    schedule: Annotated[
        str | None,
        CaptureOption(
            metavar="NAME[:STAGES]",
            help=f"Run the stages of --pp by this schedule: {', '.join(SCHEDULES)}; STAGES are those of a rank. "
            f"Default: {DEFAULT_SCHEDULE}.",
        ),
        FOR_SHARDED,
    ] = None
    microbatches: Annotated[
        int | None,
        CaptureOption(
            metavar="N",
            help="Cut a step of --pp into N micro-batches of --batch sequences. Default: as many as there are stages.",
        ),
        FOR_SHARDED,
    ] = None
    ep: Annotated[
        int | None,
        CaptureOption(
            metavar="N",
            help="Give each of N of the ranks of --tp and --fsdp whole experts of an hf: model, a part of all "
            "(expert parallel).",
        ),
        FOR_SHARDED,
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanningOptions(OptionGroup):
    """How a graph is planned, the replay token aside."""

    preset: Annotated[
        Preset | None,
        PlanningOption(
            help="Overwrite nothing (train_full), overwrite (inference), or overwrite and recompute (remat_enabled). "
            "Default: inference in mode inference, else train_full."
        ),
        FOR_ANY,
    ] = None
    arena: Annotated[
        Texts,
        PlanningOption(
            metavar="NAME=KEY:VALUE,...",
            help="Set capacity, alignment, page or layout of an arena, such as activations=capacity:8GiB; "
            "may be repeated. Default: no limit, alignment 256.",
        ),
        FOR_ANY,
    ] = None
    nodes: Annotated[
        int | None,
        PlanningOption(
            metavar="N",
            help="Visit at most N nodes in an exact search for offsets, where the packers miss the bound. Default: 0.",
        ),
        FOR_ANY,
    ] = None
    no_cache: Annotated[
        bool,
        PlanningOption(
            "--no-cache",
            envvar="TMMU_NO_CACHE",
            help="Neither look for this plan in the cache nor keep it there. Default: do both.",
        ),
        AppliesTo((*ANY, "plan"), ""),
    ] = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenOptions(OptionGroup):
    """The replay token, named in one of three ways."""

    seed: Annotated[
        int | None, TokenOption(metavar="N", help="Use the replay token of this 64-bit seed. Default: 0.")
    ] = None
    token: Annotated[
        str | None, TokenOption(metavar="HEX", help="Use this replay token, 64 bytes or more. Default: that of --seed.")
    ] = None
    token_file: Annotated[
        Path | None,
        TokenOption(metavar="FILE", help="Use the bytes of this file as replay token. Default: that of --seed."),
    ] = None


KINDS_HELP: Final = "model.py, model.py:Name, package.module:Name, hf:PATH, NAME.pt2 or NAME.ir.cbor"
Model = Annotated[str, typer.Argument(metavar="MODEL", help=f"Plan this model: {KINDS_HELP}.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout. Default: text.")]
Reserve = Annotated[
    str | None,
    typer.Option(
        metavar="SIZE",
        envvar="TMMU_RESERVE",
        help="Keep this much of a device free when saying where the plan fits. Default: 1GiB.",
    ),
]
GraphOutput = Annotated[
    str | None,
    typer.Option("--ir", metavar="FILE", help="Write the graph here. Default: NAME.ir.cbor beside the plan."),
]
PlanFile = Annotated[Path, typer.Argument(metavar="PLAN", help="Read this NAME.plan.cbor.")]
GraphFile = Annotated[
    Path | None,
    typer.Option("--ir", metavar="FILE", help="Read the plan's graph here. Default: NAME.ir.cbor beside the plan."),
]
