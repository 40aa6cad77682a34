"""``tmmu generate``: the text of a language model, from a session of an engine."""

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tmmu.cli import options
from tmmu.cli.error_boundary import print_json
from tmmu.cli.output import render
from tmmu.cli.parsing import parse_option
from tmmu.codec.printable import printable
from tmmu.errors import ArenaTooSmall, DeviceMemory, InvalidConfig, TmmuError
from tmmu.planner.arenas import parse_size

if TYPE_CHECKING:
    from tmmu.engine.engine import Engine
    from tmmu.engine.session import Session
    from tmmu.engine.text import Text

app = typer.Typer(add_completion=False)
MAX_TOKENS = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerateRequest:
    """What is generated, and how. ``budget``: bytes of weights, stack and session; ``None``: what they need.

    ``ring``: bytes through which weights stream; ``None``: they stay.
    """

    folder: Path
    device: str
    prompt: str | None
    prompt_ids: list[int] | None
    max_new_tokens: int
    sampling: dict[str, Any]
    budget: int | None
    ring: int | None
    random_weights: int | None


@app.command()
def generate(  # noqa: PLR0913 - options
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help="A folder with config.json and safetensors; hf:FOLDER is the same.")
    ],
    *,
    prompt: Annotated[
        str | None,
        typer.Option(
            metavar="TEXT",
            help="Go on behind this text, by the folder's tokenizer.json; what is encoded, of an encoder-decoder.",
        ),
    ] = None,
    prompt_ids: Annotated[
        str | None, typer.Option(metavar="N,N,...", help="Go on behind these tokens, in place of --prompt.")
    ] = None,
    max_new_tokens: Annotated[
        int, typer.Option(metavar="N", min=1, max=MAX_TOKENS, help="Generate at most N tokens.")
    ] = 64,
    temperature: Annotated[
        float, typer.Option(metavar="T", min=0.0, help="Draw tokens at this temperature; 0: take the best.")
    ] = 0.0,
    top_k: Annotated[int, typer.Option(metavar="N", min=0, help="Draw among the N best; 0: among all.")] = 0,
    top_p: Annotated[
        float, typer.Option(metavar="P", min=0.0, max=1.0, help="Draw among the best that have this probability.")
    ] = 1.0,
    seed: Annotated[
        int, typer.Option(metavar="N", min=0, max=2**63 - 1, help="Draw as after torch.manual_seed(N).")
    ] = 0,
    budget: Annotated[
        str | None,
        typer.Option(metavar="SIZE", help="Hold weights, stack and session in this. Default: what they need."),
    ] = None,
    ring: Annotated[
        str | None,
        typer.Option(metavar="SIZE", help="Stream the weights from the host through SIZE. Default: they stay."),
    ] = None,
    device: Annotated[
        options.Device | None, typer.Option(envvar="TMMU_DEVICE", help="Run on this device. Default: cpu.")
    ] = None,
    random_weights: Annotated[
        int | None,
        typer.Option(metavar="SEED", min=0, max=2**63 - 1, help="For a folder without weights: random ones."),
    ] = None,
    as_json: options.Json = False,
) -> options.Run:
    """Generate the text of a language model in a session, and print it as it comes; what it took, on stderr."""
    request = GenerateRequest(
        folder=Path(model.removeprefix("hf:")),
        device=device or "cpu",
        prompt=prompt,
        prompt_ids=None if prompt_ids is None else parse_option("--prompt-ids", lambda: parse_ids(prompt_ids)),
        max_new_tokens=max_new_tokens,
        sampling={"temperature": temperature, "top_k": top_k, "top_p": top_p, "seed": seed},
        budget=None if budget is None else parse_option("--budget", lambda: parse_size(budget)),
        ring=None if ring is None else parse_option("--ring", lambda: parse_size(ring)),
        random_weights=random_weights,
    )
    if (prompt is None) == (prompt_ids is None):
        raise InvalidConfig("a prompt is a text or tokens", fix="give one of --prompt and --prompt-ids")
    return lambda: run_generate(request, as_json=as_json)


def parse_ids(text: str) -> list[int]:
    """The tokens of ``1,2,3``; ``INVALID_CONFIG`` for anything else."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdigit() and len(part) < 12 for part in parts):
        raise InvalidConfig(f"{text[:40]!r} is no list of tokens", fix="write them as 15496,995")
    return [int(part) for part in parts]


def run_generate(request: GenerateRequest, *, as_json: bool) -> int:
    """Generate and print; returns 0."""
    from tmmu.engine.checkpoint import has_encoder
    from tmmu.engine.text import Text
    from tmmu.runtime.memory.sizing import require_device

    require_device(request.device)
    text = Text(request.folder) if request.prompt is not None else None
    ids = text.encode(request.prompt or "") if text else list(request.prompt_ids or ())
    encodes = has_encoder(request.folder)
    with _engine(request, ids, encodes=encodes) as engine, engine.open() as session:
        start = perf_counter()
        generated: list[int] = []
        first = start
        if encodes:
            session.encode(ids)
        for piece, token in _pieces(session, None if encodes else ids, request, text):
            generated.append(token)
            first = perf_counter() if len(generated) == 1 else first
            if not as_json:
                sys.stdout.write(_shown(piece))
                sys.stdout.flush()
        result = _record(engine, session, ids, generated, perf_counter() - first, first - start)
    if as_json:
        print_json(result | {"text": text.decode(generated) if text else None})
        return 0
    sys.stdout.write("\n")
    sys.stdout.flush()
    render.print_lines(render.console(stderr=True), _lines(result))
    return 0


def _engine(request: GenerateRequest, ids: list[int], *, encodes: bool) -> "Engine":
    """The engine of one session; refusals name the options of the command."""
    from tmmu.engine.checkpoint import random_model
    from tmmu.engine.engine import Engine

    model: Any = request.folder
    if request.random_weights is not None:
        model = random_model(request.folder, request.random_weights)
    read = 1 if encodes else len(ids)
    try:
        return Engine(
            model,
            device=request.device,
            budget=request.budget,
            ring=request.ring,
            max_tokens=read + request.max_new_tokens,
            max_source=max(len(ids), 1) if encodes else None,
            max_batch=1,
            max_sessions=1,
        )
    except (DeviceMemory, ArenaTooSmall, InvalidConfig) as error:
        raise type(error)(error.what, fix=_fix(error, read), **error.fields) from error


def _fix(error: TmmuError, read: int) -> str:
    """What to do about an engine that is refused, by the options of the command. ``read``: tokens of the prompt."""
    longest = error.fields.get("longest")
    if isinstance(error, DeviceMemory) and error.fix.startswith("give a smaller budget="):
        return "give a smaller --budget"
    if isinstance(error, DeviceMemory):
        return "give a larger --budget, a smaller --max-new-tokens, or stream the weights with --ring"
    if isinstance(error, ArenaTooSmall):
        return error.fix.replace("give it", "give --ring")
    if isinstance(longest, int):
        return f"give at most --max-new-tokens {longest - read}" if longest > read else "give a shorter prompt"
    return f"{error.fix}, or give --random-weights 0" if error.fields.get("missing") == "weights" else error.fix


def _pieces(
    session: "Session", ids: list[int] | None, request: GenerateRequest, text: "Text | None"
) -> Iterator[tuple[str, int]]:
    """(what to print, token) for each token as it comes. ``ids``: ``None`` where the prompt is encoded."""
    from tmmu.engine.text import TextStream

    stream = TextStream(text) if text else None
    separator = ""
    for token in session.generate(ids, request.max_new_tokens, **request.sampling):
        yield stream.add(token) if stream else f"{separator}{token}", token
        separator = ","


def _shown(text: str) -> str:
    """The text as a terminal may have it: lines and tabs as they are, whatever else does not print as its escape."""
    return "".join(character if character in "\n\t" else printable(character) for character in text)


def _record(  # noqa: PLR0913, PLR0917 - what a run was
    engine: "Engine", session: "Session", ids: list[int], generated: list[int], seconds: float, first: float
) -> dict[str, Any]:
    usage = engine.usage
    stream = engine.stream
    return {
        "prompt_tokens": len(ids),
        "tokens": generated,
        "first_token_seconds": round(first, 6),
        "tokens_per_second": round((len(generated) - 1) / seconds, 2) if len(generated) > 1 and seconds else None,
        "weight_bytes": stream.ring.bytes if stream else usage["text"].capacity,
        "stack_bytes": usage["stack"].capacity,
        "session_bytes": session.arena_bytes,
        "session_tokens": session.capacity,
        "ring": stream.figures if stream else {},
    }


def _lines(result: dict[str, Any]) -> Iterator[str]:
    rate = result["tokens_per_second"]
    speed = f", then {rate:.1f} tokens/s" if rate else ""
    yield (
        f"{result['prompt_tokens']} tokens read, {len(result['tokens'])} generated: "
        f"the first after {result['first_token_seconds']:.2f} s{speed}"
    )
    names = {"weight": "ring" if result["ring"] else "weights", "stack": "stack", "session": "session"}
    sizes = [f"{render.size(result[key + '_bytes'])} {name}" for key, name in names.items()]
    yield f"{', '.join(sizes)} ({result['session_tokens']} tokens)"
    if ring := result["ring"]:
        copied, host = render.size(ring["pass_bytes"]), render.size(ring["host_bytes"])
        yield f"weights stream: {host} on the host, {copied} copied a step"
