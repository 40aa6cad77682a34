"""Text and Markdown of the reports of ``tmmu diff``: ASCII; names from the model are escaped."""

import re
from collections.abc import Iterable, Iterator
from typing import Final

from rich.console import Console

from tmmu.cli.output import render
from tmmu.codec.printable import printable
from tmmu.summary.diff_report import DiffReport
from tmmu.summary.diff_text import NUMBER_COLUMNS, Section, headline, plan_setting, section_lines, sections, verdict

GITHUB_LINK: Final = re.compile(r"[@#]|://|www\.|\bGH-\d|\b[0-9a-f]{7,40}\b", re.IGNORECASE)
"""What GitHub turns into links and mentions even where Markdown escapes it."""


def print_report(out: Console, report: DiffReport) -> None:
    """Print the report as text."""
    print_sections(out, headline(report), sections(report))


def print_sections(out: Console, title: str, parts: Iterable[Section]) -> None:
    """Print a title and the sections."""
    out.print(printable(title), style="bold")
    render.print_lines(out, section_lines(parts))


def markdown(report: DiffReport) -> Iterator[str]:
    """The report as a comment on a pull request."""
    about = f"{code(report.before.name)} to {code(report.after.name)}: {plan_setting(report.before, report.after)}"
    return markdown_sections(verdict(report), about, sections(report))


def markdown_sections(title: str, about: str, parts: Iterable[Section]) -> Iterator[str]:
    """Lines of a heading, its subject and the sections."""
    yield f"### tmmu: {title}"
    yield ""
    yield about
    for section in parts:
        if section.sentences:
            yield from ("", *(f"{_escape(line)}  " for line in section.sentences))
        if section.rows:
            yield from ("", *_table(section))


def _table(section: Section) -> Iterator[str]:
    yield f"| {' | '.join(section.heading)} |"
    yield f"| {' | '.join('--:' if name in NUMBER_COLUMNS else '---' for name in section.heading)} |"
    for row in section.rows:
        yield f"| {' | '.join(_escape(cell.strip()) for cell in row)} |"


def _escape(text: str) -> str:
    """Text without Markdown; words that GitHub would link or mention in spite of an escape are code."""
    words = printable(text).split(" ")
    return " ".join(code(word).replace("|", "\\|") if GITHUB_LINK.search(word) else _plain(word) for word in words)


def _plain(word: str) -> str:
    return "".join(f"\\{character}" if character in "\\`*_{}[]<>()|~!&$" else character for character in word)


def code(text: str) -> str:
    """Text as code in Markdown."""
    return f"`{printable(text).replace('`', chr(39))}`"
