"""What a page holds, read back as a browser reads it; and its script's functions, run by node."""

import json
import shutil
import subprocess
from dataclasses import dataclass, field
from html.parser import HTMLParser
from importlib.resources import files
from typing import Any

import pytest

ASSETS = files("tmmu.report").joinpath("assets")


@dataclass
class Page(HTMLParser):
    """Tags, texts outside of scripts and styles, and the raw text of each script."""

    text: str
    tags: list[str] = field(default_factory=list)
    attributes: list[tuple[str, str, str | None]] = field(default_factory=list)
    scripts: list[str] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    inside: str = ""

    def __post_init__(self) -> None:
        HTMLParser.__init__(self)
        self.feed(self.text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(tag, name, value) for name, value in attrs]
        self.inside = tag
        if tag == "script":
            self.scripts.append("")

    def handle_endtag(self, tag: str) -> None:
        self.inside = ""

    def handle_data(self, data: str) -> None:
        if self.inside == "script":
            self.scripts[-1] += data
        elif self.inside != "style":
            self.texts.append(data)

    @property
    def contents(self) -> Any:
        return json.loads(self.scripts[0])


def node(file: str, body: str, argument: object = None) -> Any:
    """What ``body`` returns in node, where ``m`` is the script's functions and ``a`` the argument."""
    program = shutil.which("node")
    if program is None:
        pytest.skip("there is no node")
    code = (
        f"const m = require({json.dumps(str(ASSETS.joinpath(file)))});"
        "const a = JSON.parse(require('fs').readFileSync(0, 'utf8'));"
        f"process.stdout.write(JSON.stringify((() => {{ {body} }})()));"
    )
    done = subprocess.run(
        [program, "-e", code], input=json.dumps(argument), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)
