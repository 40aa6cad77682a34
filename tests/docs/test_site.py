"""The site is built with every link whole; the picture shows its plan."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.commands import ROOT
from tools.picture import readme_picture

PICTURE = ROOT / "docs/images/gpt2-training.svg"


@pytest.mark.slow
def test_site_builds_without_a_warning_and_fetches_nothing(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    reference = (tmp_path / "reference.html").read_text()
    for name in ("plan", "MemoryPlan", "fits", "MemoryPlanCallback", "assert_no_growth"):
        assert re.search(rf'id="[\w.]*\b{name}"', reference), name
    pages = [path.read_text() for path in tmp_path.rglob("*.html")]
    loaded = re.compile(r'<(?:script|img|link rel="stylesheet")[^>]*(?:src|href)="(?:https?:)?//')
    assert not [page[:80] for page in pages if loaded.search(page)]


@pytest.mark.slow
def test_picture_is_that_of_the_plan() -> None:
    assert PICTURE.read_text() == readme_picture()


def test_picture_says_what_the_readme_says() -> None:
    total = re.search(r"^total ([\d.]+ GiB) = .* stack ([\d.]+ GiB)", (ROOT / "README.md").read_text(), re.MULTILINE)
    assert total is not None
    text = PICTURE.read_text()
    assert f"inside the plan {total[1]}" in text
    assert f"activations and gradients {total[2]}" in text
    assert len(text) < 150_000
