"""``tmmu serve``: models behind an HTTP door, until a signal ends it."""

import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeAlias

import typer

from tmmu.cli import options
from tmmu.cli.error_boundary import print_json
from tmmu.cli.output import render
from tmmu.cli.parsing import parse_option
from tmmu.errors import InvalidConfig
from tmmu.planner.arenas import parse_size

if TYPE_CHECKING:
    from tmmu.server.service import Service

TlsCertificate: TypeAlias = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Speak TLS, with these certificates. Default: no TLS.")
]
TlsKey: TypeAlias = Annotated[
    Path | None, typer.Option(metavar="FILE", help="The private key of --tls-cert. Default: none.")
]
Concurrency: TypeAlias = Annotated[
    int | None,
    typer.Option(metavar="N", min=1, max=64, help="Run N steps of a model at once, if N stacks fit. Default: 1."),
]
app = typer.Typer(add_completion=False)
PACKAGES: Final = ("msgspec", "prometheus_client", "pydantic_settings", "starlette", "transformers", "uvicorn")
"""What the extra ``serve`` brings."""


@app.command()
def serve(  # noqa: PLR0913 - options
    *,
    model: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=FOLDER",
            help="Serve the model of this folder, with config.json and safetensors, by this name; may be repeated. "
            "hf:ORG/NAME@REV is fetched, where the setting fetch allows it.",
        ),
    ] = None,
    listen: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Listen here. Default: 127.0.0.1:8000.")
    ] = None,
    keys: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Let in who has a key of this file, one in each line. Default: anybody, on loopback."
        ),
    ] = None,
    tls_cert: TlsCertificate = None,
    tls_key: TlsKey = None,
    budget: Annotated[
        str | None,
        typer.Option(metavar="SIZE", help="Hold all models and sessions in this. Default: what they need."),
    ] = None,
    max_tokens: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="Take prompts and answers of N tokens together. Default: the model's."),
    ] = None,
    max_sessions: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="Without --budget, have room for N of the longest sessions. Default: 8."),
    ] = None,
    concurrency: Concurrency = None,
    device: Annotated[options.Device | None, typer.Option(help="Run the models here. Default: cpu.")] = None,
    random_weights: Annotated[
        int | None,
        typer.Option(metavar="SEED", min=0, max=2**63 - 1, help="For folders without weights: random ones."),
    ] = None,
    settings: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Read other settings from this TOML file. Default: none.")
    ] = None,
    as_json: options.Json = False,
) -> options.Run:
    """Serve language models over HTTP, as OpenAI's API documents it; a log in JSON goes to stderr."""
    values: dict[str, Any] = {
        "models": None if model is None else parse_option("--model", lambda: parse_models(model)),
        "listen": listen,
        "keys": keys,
        "tls_cert": tls_cert,
        "tls_key": tls_key,
        "budget": None if budget is None else parse_option("--budget", lambda: parse_size(budget)),
        "max_tokens": max_tokens,
        "max_sessions": max_sessions,
        "concurrency": concurrency,
        "device": device,
        "random_weights": random_weights,
    }
    return lambda: run_serve(values, settings, as_json=as_json)


def parse_models(texts: list[str]) -> dict[str, Path]:
    """Folders by name, of ``NAME=FOLDER``, and ``hf:ORG/NAME@REV`` as it is.

    ``INVALID_CONFIG`` for anything else, and for a name that comes twice.
    """
    from tmmu.server.hub import hub_reference  # noqa: PLC0415 - of the extra serve

    models: dict[str, Path] = {}
    for text in texts:
        name, equals, folder = text.partition("=")
        if not (name and equals and folder):
            raise InvalidConfig(f"{text[:80]!r} names no model", fix="write NAME=FOLDER, such as tiny=models/tiny")
        if name in models:
            raise InvalidConfig(f"two models are called {name[:80]!r}", fix="give each its own name")
        models[name] = Path(folder if hub_reference(folder) else folder.removeprefix("hf:"))
    return models


def run_serve(values: dict[str, Any], settings: Path | None, *, as_json: bool) -> int:
    """Serve until a signal; returns 0."""
    missing = [package for package in PACKAGES if find_spec(package) is None]
    if missing:
        raise InvalidConfig(f"{missing[0]} is not installed", fix="pip install 'tmmu[serve]'")
    from tmmu.server.service import Service  # noqa: PLC0415 - of the extra serve
    from tmmu.server.settings import load_settings  # noqa: PLC0415

    service = Service(load_settings(values, settings))
    service.run(lambda ready: _print_ready(ready, as_json=as_json))
    return 0


def _print_ready(service: "Service", *, as_json: bool) -> None:
    models = service.models.models
    address = service.url
    if as_json:
        listed = {model.name: {"max_tokens": model.longest} for model in models}
        print_json({"address": address, "models": listed})
    else:
        sizes = [f"{model.name} ({_size(service, model.name)}, {model.longest} tokens)" for model in models]
        sys.stdout.write(f"ready at {address}: {', '.join(sizes)}\n")
    sys.stdout.flush()


def _size(service: "Service", name: str) -> str:
    engine = service.models.find(name).engine
    return render.size(sum(usage.capacity for usage in engine.usage.values()))
