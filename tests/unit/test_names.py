"""Names that say nothing, and one name for two classes, do not come back."""

import ast
from pathlib import Path

import pytest

from tools.names import breaches, measure

ROOT = Path(__file__).parents[2]
REFUSED = frozenset(
    {"given", "made", "asked", "held", "home", "homes", "mine", "wanted", "elsewhere", "thing", "stuff"}
)
"""Bindings that were everywhere once and held anything."""


def test_public_class_names_have_one_owner() -> None:
    assert measure(ROOT / "tmmu").homonyms == {}


def test_limits_of_names_and_sizes_hold() -> None:
    assert breaches(measure(ROOT / "tmmu")) == []


def test_unit_tests_lie_in_the_folders_of_the_package() -> None:
    folders = {path.parent.relative_to(ROOT / "tests/unit") for path in (ROOT / "tests/unit").rglob("test_*.py")}
    assert [str(folder) for folder in sorted(folders) if not (ROOT / "tmmu" / folder).is_dir()] == []


def bindings(tree: ast.AST) -> set[tuple[str, int]]:
    stored = {(n.id, n.lineno) for n in ast.walk(tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    return stored | {(n.arg, n.lineno) for n in ast.walk(tree) if isinstance(n, ast.arg)}


def test_refused_bindings_are_in_no_file() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}: {name}"
        for path in sorted((ROOT / "tmmu").rglob("*.py"))
        for name, line in sorted(bindings(ast.parse(path.read_text())))
        if name in REFUSED
    ]
    assert found == []


@pytest.mark.parametrize(
    ("text", "breach"),
    [
        ("found = given = made = 1\n", "vague"),
        ("def placed(): ...\n", "participles"),
        ("class Same: ...\n", "classes of one name"),
        ("def long():\n" + "    x = 1\n" * 61, "a function of 62 lines"),
    ],
)
def test_breach_is_told(tmp_path: Path, text: str, breach: str) -> None:
    (tmp_path / "other.py").write_text("class Same: ...\n")
    assert not [line for line in breaches(measure(tmp_path)) if breach in line]
    (tmp_path / "one.py").write_text(text)
    assert any(breach in line for line in breaches(measure(tmp_path)))
