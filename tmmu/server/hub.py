"""Models of the Hugging Face hub: configuration, tokenizer and safetensors of a revision, where that is allowed."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tmmu.errors import InvalidConfig

FILES: Final = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "*.safetensors",
    "*.safetensors.index.json",
)
"""What is fetched of a repository: nothing that would be unpickled or run."""
_REFERENCE: Final = re.compile(
    r"hf:(?P<repository>[\w-][\w.-]{0,95}/[\w-][\w.-]{0,95})@(?P<revision>[\w.-]{1,255})", re.ASCII
)


@dataclass(frozen=True, slots=True)
class HubReference:
    """``repository``: ``ORG/NAME``; ``revision``: a commit, a tag or a branch."""

    repository: str
    revision: str

    def __str__(self) -> str:
        return f"hf:{self.repository}@{self.revision}"


def hub_reference(path: Path | str) -> HubReference | None:
    """The reference that ``hf:ORG/NAME@REV`` is; ``None`` for the path of a folder."""
    match = _REFERENCE.fullmatch(str(path))
    return None if match is None else HubReference(match["repository"], match["revision"])


def require_fetch(reference: HubReference, *, may_fetch: bool) -> None:
    """``INVALID_CONFIG`` where the settings let nothing be fetched."""
    if not may_fetch:
        raise InvalidConfig(
            f"{reference} would be fetched, and this server fetches nothing",
            fix="set fetch = true in the settings, or give a folder",
        )


def fetch_model(reference: HubReference) -> Path:
    """The folder of a revision, in the hub's own cache; what is there already is not fetched. ``INVALID_CONFIG`` where
    the hub has no such revision, or is not reached.
    """
    from huggingface_hub import snapshot_download  # noqa: PLC0415 - of the extra serve
    from huggingface_hub.errors import HfHubHTTPError  # noqa: PLC0415

    try:
        folder = snapshot_download(
            reference.repository,
            revision=reference.revision,
            allow_patterns=list(FILES),
            ignore_patterns=["*/*"],  # other forms of the weights lie in folders
        )
    except (HfHubHTTPError, OSError, ValueError) as error:
        line = next(iter(str(error).splitlines()), type(error).__name__)
        raise InvalidConfig(
            f"{reference} was not fetched: {line[:200]}", fix="name a repository and a revision of the hub"
        ) from error
    return Path(folder)
