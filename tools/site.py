"""Hooks of mkdocs: links of the repository become links of the site.

On GitHub a page may link a folder, or a file that is no page (``../examples/gpt2.py``). Here a folder gets a page that
lists what is in it, and such a file gets a page with its text.
"""

import json
import re
from functools import cache
from pathlib import Path, PurePosixPath

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
FOLDERS = {"decisions": "Decisions", "measurements": "Measurements"}
LINK = re.compile(r"\]\((?P<up>(?:\.\./)*)(?P<path>[\w./-]+)(?P<anchor>#[\w-]+)?\)")


def on_files(files: Files, config) -> Files:
    """With a page for each folder that is linked, and for each source file."""
    for folder, title in FOLDERS.items():
        pages = sorted((ROOT / "docs" / folder).glob("*.md"))
        rows = "\n".join(f"- [{heading(page)}]({page.name})" for page in pages)
        files.append(File.generated(config, f"{folder}/index.md", content=f"# {title}\n\n{rows}\n"))
    for source in sources():
        files.append(File.generated(config, page_of(source), content=source_page(source)))
    return files


def on_page_markdown(markdown: str, page, **_) -> str:
    """With links to what is a page here."""
    folder = PurePosixPath(page.file.src_uri).parent

    def linked(match: re.Match[str]) -> str:
        target = resolved(folder, match["up"], match["path"].rstrip("/"))
        up = "../" * len(folder.parts)
        if target.removeprefix("docs/") in FOLDERS:
            return f"]({up}{target.removeprefix('docs/')}/index.md)"
        return f"]({up}{page_of(target)})" if target in sources() else match[0]

    return LINK.sub(linked, markdown)


def resolved(folder: PurePosixPath, up: str, path: str) -> str:
    """A link of a page as a path from the root of the repository."""
    parts = ("docs", *folder.parts)
    return str(PurePosixPath(*parts[: len(parts) - up.count("../")], path))


@cache
def sources() -> list[str]:
    """The files outside of ``docs`` that some page links: each gets a page."""
    linked = set()
    for page in (ROOT / "docs").rglob("*.md"):
        folder = PurePosixPath(page.relative_to(ROOT / "docs").as_posix()).parent
        for match in LINK.finditer(page.read_text()):
            linked.add(resolved(folder, match["up"], match["path"].rstrip("/")))
    return sorted(path for path in linked if not path.startswith("docs/") and (ROOT / path).is_file())


def page_of(source: str) -> str:
    """The page of a source file."""
    return f"source/{source.replace('/', '-')}.md"


def source_page(source: str) -> str:
    """Its text; of a notebook its cells and what they print."""
    path = ROOT / source
    if path.suffix != ".ipynb":
        return f"# {source}\n\n```python\n{path.read_text()}```\n"
    cells = json.loads(path.read_text())["cells"]
    return "\n\n".join(cell_text(cell) for cell in cells) + "\n"


def cell_text(cell: dict) -> str:
    """A cell of a notebook as Markdown."""
    text = "".join(cell["source"])
    if cell["cell_type"] != "code":
        return text
    printed = [
        "".join(output.get("text") or output.get("data", {}).get("text/plain", [])) for output in cell["outputs"]
    ]
    shown = re.sub(r"\x1b\[\d*m|\r", "", "\n".join(printed)).rstrip()
    return f"```python\n{text}\n```\n\n```text\n{shown}\n```"


def heading(page: Path) -> str:
    """The first heading of a page."""
    return next(line[2:] for line in page.read_text().splitlines() if line.startswith("# "))
