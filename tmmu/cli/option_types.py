"""The words of the command line: each option that several commands have, said once."""

from pathlib import Path
from typing import Annotated, Final, Literal

import typer

Mode = Literal["inference", "forward", "backward"]
Preset = Literal["train_full", "inference", "remat_enabled"]
Device = Literal["cuda", "cpu"]
RingPolicy = Literal["cyclic", "skip_end", "slots", "double"]
Optimizer = Literal["adamw", "sgd"]
Dtype = Literal["float32", "float16", "bfloat16"]
Texts = list[str] | None
TARGETS_HELP: Final = "model.py, model.py:Name, hf:PATH, NAME.pt2 or NAME.ir.cbor"
PLAN_NODES_HELP: Final = "Search offsets exactly, so far, where the packers miss the bound. [0]"
SIDE_HELP: Final = "NAME.plan.cbor, a TARGET of tmmu plan, or git:REV: before either."
ARENA_HELP: Final = "For example activations=capacity:8GiB,alignment:256,layout:slots."
Json = Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")]
Seed = Annotated[int | None, typer.Option(metavar="N", help="Replay token from a seed of 64 bits.")]
Token = Annotated[str | None, typer.Option(metavar="HEX", help="Replay token, at least 64 bytes.")]
TokenFile = Annotated[Path | None, typer.Option(metavar="FILE", help="Replay token: the bytes of a file.")]
NoCache = Annotated[bool, typer.Option("--no-cache", help="Neither look for this plan nor keep it.")]
Reserve = Annotated[str | None, typer.Option(metavar="SIZE", help="Kept free on a device in the fit table. [1GiB]")]
Kernels = Annotated[Device | None, typer.Option("--target", help="Whose kernels to plan for. [cuda]")]
HowMuch = Annotated[Mode, typer.Option(help="How much of a step runs.")]
Knobs = Annotated[Preset | None, typer.Option(help="[inference in mode inference, else train_full]")]
Update = Annotated[Optimizer | None, typer.Option(help="Add its update to the step; mode backward.")]
Settings = Annotated[Texts, typer.Option("--set", metavar="K=V", help="A parameter of model or inputs.")]
Inputs = Annotated[Texts, typer.Option("--input", metavar="NAME=DTYPE[SHAPE]", help="An input; model.py.")]
Batch = Annotated[int | None, typer.Option(help="Sequences at once; hf:. [1]")]
Tokens = Annotated[int | None, typer.Option(help="Tokens in a sequence; hf:.")]
WeightsIn = Annotated[Dtype | None, typer.Option(help="Of the weights; hf:.")]
Decode = Annotated[bool, typer.Option("--decode", help="One step over a static KV cache; hf:.")]
CacheLength = Annotated[int | None, typer.Option(help="Tokens the cache holds.")]
Arena = Annotated[Texts, typer.Option(metavar="NAME=KEY:VALUE,...", help=ARENA_HELP)]
Nodes = Annotated[int | None, typer.Option(metavar="N", help=PLAN_NODES_HELP)]
GraphOut = Annotated[str | None, typer.Option("--ir", metavar="FILE", help="[NAME.ir.cbor, beside the plan]")]
PlanFile = Annotated[Path, typer.Argument(metavar="PLAN", help="A NAME.plan.cbor.")]
IrFile = Annotated[Path | None, typer.Option("--ir", metavar="FILE", help="Its graph. [NAME.ir.cbor beside it]")]
Folder = Annotated[Path, typer.Option("--dir", metavar="D", help="The folder of golden files.")]
Cases = Annotated[list[str] | None, typer.Argument(metavar="[CASE]...", help="[all]", show_default=False)]
Jobs = Annotated[int, typer.Option(metavar="N", help="Processes that plan at once.")]
GOLDEN: Final = Path("golden")
