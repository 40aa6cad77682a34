"""The commands that README and docs show: ``console`` blocks, read into commands and what they print."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
PROMPT: Final = "$ "
OMITTED: Final = "..."
SETUP: Final = re.compile(
    r"python3 -m venv \.venv && \.venv/bin/pip install -q (?:-c constraints\.txt )?(?:-e )?\S+ && \.venv/bin/"
)
"""How a set-up command begins: run by ``.ci/run``; here what follows it runs in the environment of the tests."""

_BLOCK: Final = re.compile(r"^```(?P<language>[a-z]*)\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True, slots=True)
class Shown:
    """One command of a document, and the lines that it is said to print."""

    command: str
    output: tuple[str, ...]


def documents() -> tuple[Path, ...]:
    """Every document of the project, in a fixed order."""
    return tuple(sorted((*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("tests/*.md"))))


def shown_commands(text: str) -> tuple[Shown, ...]:
    """The commands of all ``console`` blocks of a document, in order."""
    bodies = (match["body"] for match in _BLOCK.finditer(text) if match["language"] == "console")
    return tuple(shown for body in bodies for shown in _commands(body.splitlines()))


def shown_code(text: str) -> str:
    """The ``python`` blocks of a document, one after the other."""
    return "\n".join(match["body"] for match in _BLOCK.finditer(text) if match["language"] == "python")


def languages(text: str) -> tuple[str, ...]:
    """The language of every fenced block of a document."""
    return tuple(match["language"] for match in _BLOCK.finditer(text))


def _commands(lines: list[str]) -> list[Shown]:
    starts = [index for index, line in enumerate(lines) if line.startswith(PROMPT)]
    ends = [*starts[1:], len(lines)]
    return [
        Shown(lines[start].removeprefix(PROMPT), tuple(line.rstrip() for line in lines[start + 1 : end]))
        for start, end in zip(starts, ends, strict=True)
    ]


def matches(shown: tuple[str, ...], printed: tuple[str, ...]) -> bool:
    """Whether the lines agree, where a shown line of three dots stands for any lines."""
    pattern = "".join(r"(?:.*\n)*" if line == OMITTED else re.escape(line) + r"\n" for line in shown)
    return re.fullmatch(pattern, "".join(line + "\n" for line in printed)) is not None
