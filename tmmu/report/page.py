"""One HTML file that shows one plan or more: template, style, script and contents in one, and nothing from a network.

A content security policy lets only this script run and lets nothing be fetched. The same contents give the same bytes.
"""

from base64 import b64encode
from collections.abc import Sequence
from hashlib import sha256
from importlib.resources import files
from typing import Final

from tmmu.report.contents import ReportContents
from tmmu.report.encode import json_text
from tmmu.report.tables import figures_html, plain_html, plan_html, text_html

PURE_SCRIPTS: Final = ("format.js", "scene.js", "colors.js", "charts.js", "search.js", "model.js")
"""What touches no document: node imports them too."""
SCRIPTS: Final = (*PURE_SCRIPTS, "draw.js", "panel.js", "interact.js", "page.js")
"""In the order in which they run."""
COLUMNS: Final = ("one", "two", "many")
"""What the style calls so many plans."""


def page_html(plans: Sequence[ReportContents]) -> bytes:
    """The file for one plan, or for several side by side; UTF-8."""
    script, style = "\n".join(_asset(name) for name in SCRIPTS), _asset("page.css")
    model = next((plan.figures.model for plan in plans if plan.figures.model), plans[0].title)
    parts = {
        "policy": f"default-src 'none'; img-src data:; style-src {_source(style)}; script-src {_source(script)}",
        "title": plain_html(model),
        "heading": text_html(model),
        "style": style,
        "figures": figures_html(plans),
        "plans": "\n".join(plan_html(index, plan) for index, plan in enumerate(plans)),
        "count": COLUMNS[min(len(plans), len(COLUMNS)) - 1],
        "contents": json_text(plans),
        "script": script,
    }
    return _filled(_asset("page.html"), parts).encode()


def _filled(template: str, parts: dict[str, str]) -> str:
    """The template with each ``{{name}}`` replaced; what is put in is not looked at again."""
    pieces = template.split("{{")
    filled = [pieces[0]]
    for piece in pieces[1:]:
        name, _, tail = piece.partition("}}")
        filled.append(parts[name] + tail)
    return "".join(filled)


def _asset(name: str) -> str:
    return files("tmmu.report").joinpath("assets", name).read_text(encoding="utf-8")


def _source(text: str) -> str:
    """The text as a source of a content security policy: its hash."""
    return f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'"
