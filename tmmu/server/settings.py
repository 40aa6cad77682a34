"""What a server is told: by options, then by the environment (``TMMU_SERVE_…``), then by a TOML file, then by defaults.

Bytes that are left to others, and the least to start with, are those of ``tmmu.runtime.memory.sizing``, which imports
torch: a fault of the settings is to cost no wait for that.
"""

import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import BeforeValidator, Field, ValidationError
from pydantic_settings import BaseSettings, InitSettingsSource, PydanticBaseSettingsSource, SettingsConfigDict

from tmmu.codec.files import read_file
from tmmu.errors import InvalidConfig, TmmuError
from tmmu.planner.arenas import parse_size

PREFIX: Final = "TMMU_SERVE_"
FILE_LIMIT: Final = 1 << 20
LONGEST_NAME: Final = 128
GIB: Final = 1 << 30


def _bytes(value: object) -> object:
    """A size in text as bytes; what is no text is pydantic's to check."""
    try:
        return parse_size(value) if isinstance(value, str) else value
    except TmmuError as error:
        raise ValueError(error.what) from error


def _named(name: str) -> str:
    if not (0 < len(name) <= LONGEST_NAME and name.isascii() and name.isprintable() and " " not in name):
        raise ValueError(f"a model's name has 1 to {LONGEST_NAME} printable characters of ASCII, and no space")
    return name


Size = Annotated[int, BeforeValidator(_bytes), Field(ge=0)]
Seconds = Annotated[float, Field(gt=0, le=1e6)]
Count = Annotated[int, Field(ge=1, le=1 << 20)]
Share = Annotated[int, Field(ge=1, le=1 << 10)]
ModelName = Annotated[str, BeforeValidator(lambda name: _named(str(name)))]


class ServerSettings(BaseSettings):
    """The settings of one server; sizes are bytes or text such as ``2GiB``, times are seconds."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, extra="forbid", frozen=True)

    models: dict[ModelName, Path] = Field(
        default={}, description="Folders, or hf:ORG/NAME@REV, by the names of models."
    )
    fetch: bool = Field(default=False, description="Whether models hf:ORG/NAME@REV are fetched from the hub.")
    listen: str = Field(default="127.0.0.1:8000", description="HOST:PORT.")
    keys: Path | None = Field(default=None, description="A file with a key in each line; none: loopback alone.")
    tls_cert: Path | None = Field(default=None, description="A file of certificates, PEM: TLS for all who come.")
    tls_key: Path | None = Field(default=None, description="The private key of tls_cert, PEM.")
    unix_socket: Path | None = Field(default=None, description="A socket to listen at as well, for this user alone.")
    device: Literal["cpu", "cuda"] = Field(default="cpu", description="Where the models run.")
    random_weights: int | None = Field(default=None, ge=0, lt=1 << 63, description="The seed of random weights.")

    budget: Size | None = Field(default=None, description="Bytes of all models and their sessions.")
    os_reserve: Size = Field(default=2 * GIB, description="Without a budget: bytes left to the system.")
    safety_margin: Size = Field(default=GIB, description="Without a budget: bytes left free beside that.")
    minimum: Size = Field(default=8 * GIB, description="Without a budget: the least bytes to start with.")
    max_tokens: Count | None = Field(default=None, description="The longest session; none: the model's own longest.")
    max_sessions: Count = Field(default=8, description="Without a budget: the longest sessions with room together.")
    max_batch: Count = Field(default=8, description="Sessions that a step decodes at most.")

    qos: bool = Field(default=True, description="Whether requests have classes; else all are interactive.")
    class_shares: tuple[Share, Share, Share] = Field(
        default=(4, 3, 1), description="Of what is computed, for realtime, interactive and batch."
    )
    escalation_seconds: Annotated[float, Field(ge=0, le=1e6)] = Field(
        default=0.3, description="What has waited so long for a step goes out of turn; 0: never."
    )
    headroom: Annotated[float, Field(ge=0, le=0.4)] = Field(
        default=0.1, description="Of room and slots, what each class keeps from those below it while it is there."
    )
    adaptive_headroom: bool = Field(default=False, description="Whether headroom follows what classes use.")
    pressure: Literal["watch", "act"] = Field(
        default="watch", description="Whether texts are refused, and read again, where the room of sessions is full."
    )

    concurrency: Annotated[int, Field(ge=1, le=64)] = Field(
        default=1, description="Steps of a model that run at once, each in a stack of its own, if that fits."
    )
    max_requests: Count = Field(
        default=64, description="Texts that are generated or wait for room, and calls over the wire, of all clients."
    )
    connections: Count = Field(default=1000, description="Connections that are open at once.")
    body_bytes: Size = Field(default=4 << 20, description="The longest body of a request.")
    header_bytes: Annotated[int, BeforeValidator(_bytes), Field(ge=1024)] = Field(
        default=32 << 10, description="The longest request line and headers."
    )
    messages: Count = Field(default=1024, description="Messages of a chat at most.")

    client_sessions: Count = Field(default=16, description="Sessions of one client over the wire.")
    lease_seconds: Seconds = Field(default=300, description="For sessions over the wire to outlive their connection.")
    payload_bytes: Size = Field(default=256 << 20, description="Payloads of one message over the wire.")
    receive_memory: Size = Field(default=GIB, description="Payloads of all requests that are being received.")
    tensor_bytes: Size = Field(
        default=0, description='Of one client with device="remote": its tensors and plans, in host memory; 0: refused.'
    )
    plan_bytes: Size = Field(default=512 << 20, description="Plans of graphs, of all clients together, as estimated.")
    call_multiply_adds: Annotated[int, Field(ge=1, le=1 << 62)] = Field(
        default=1 << 37,
        description='What one operator under device="remote" may compute: nothing ends it before its end.',
    )

    upload_folder: Path | None = Field(
        default=None, description="Where modules are that clients have uploaded, by hash; none: they upload none."
    )
    upload_bytes: Size = Field(default=16 * GIB, description="Of one client in upload_folder.")

    receive_seconds: Seconds = Field(default=10, description="For a client to send headers, and then a body.")
    send_seconds: Seconds = Field(default=30, description="For a client to take a part of an answer.")
    idle_seconds: Seconds = Field(default=30, description="Between the requests of a connection.")
    heartbeat_seconds: Annotated[float, Field(gt=0, le=3600)] = Field(
        default=10, description="Between signs of life over the wire."
    )
    drain_seconds: Seconds = Field(default=30, description="For requests to end after SIGTERM.")

    log_level: Literal["debug", "info", "warning", "error"] = Field(default="info", description="Of the log on stderr.")


def load_settings(options: Mapping[str, Any], file: Path | None = None) -> ServerSettings:
    """The settings of options that are not ``None``, environment and file. ``INVALID_CONFIG`` names the culprit.

    A name that no setting has is refused, wherever it stands.
    """
    values = {name: value for name, value in options.items() if value is not None}
    in_file = {} if file is None else _read_file(file)
    unknown = sorted(
        name
        for name in os.environ
        if name.upper().startswith(PREFIX) and name[len(PREFIX) :].lower() not in ServerSettings.model_fields
    )
    if unknown:
        raise InvalidConfig(f"{unknown[0]}: no setting has that name", fix=_fix())

    class Sourced(ServerSettings):
        """The settings, with the file's behind the environment's."""

        @classmethod
        def settings_customise_sources(
            cls,
            settings_cls: type[BaseSettings],
            init_settings: PydanticBaseSettingsSource,
            env_settings: PydanticBaseSettingsSource,
            dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - the names are pydantic's
            file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003
        ) -> tuple[PydanticBaseSettingsSource, ...]:
            return init_settings, env_settings, InitSettingsSource(settings_cls, in_file)

    try:
        return Sourced(**values)
    except ValidationError as error:
        raise _refusal(error, values, in_file) from error
    except ValueError as error:  # an environment variable that is no JSON
        raise InvalidConfig(" ".join(str(error).split())[:200], fix=_fix()) from error


def _read_file(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(read_file(path, limit=FILE_LIMIT).decode())
    except ValueError as error:
        raise InvalidConfig(f"{path}: {error}", fix="write it as TOML") from error


def _refusal(error: ValidationError, options: Mapping[str, Any], in_file: Mapping[str, Any]) -> InvalidConfig:
    """The first fault of a setting, with where it was said."""
    first = error.errors(include_url=False, include_input=False)[0]
    name = str(first["loc"][0]) if first["loc"] else "settings"
    if name in options:
        place = "--" + name.removesuffix("s").replace("_", "-") if name == "models" else "--" + name.replace("_", "-")
    elif PREFIX + name.upper() in {variable.upper() for variable in os.environ}:
        place = PREFIX + name.upper()
    else:
        place = f"{name} of the settings file" if name in in_file else name
    return InvalidConfig(f"{place}: {first['msg'].removeprefix('Value error, ')}", fix=_fix())


def _fix() -> str:
    return "docs/spec/serve.md lists the settings"
