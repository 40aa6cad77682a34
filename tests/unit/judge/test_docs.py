"""What the pages list is what the code has."""

import re
from pathlib import Path

from tests.unit.ir.samples import described_graph, fused, plan
from tmmu import errors
from tmmu.ir.graph import EFFECTS, MODALITIES, PHASES, ROLES, STAGES, notes_map, semantic_map
from tmmu.ir.plan import LAYOUTS, MODES, PRESETS, plan_map
from tmmu.ir.rewrite import KINDS
from tmmu.ir.ring import POLICIES, Ring
from tmmu.judge import check, rules

RING = Ring(policy="cyclic", capacity=0, alignment=64, depth=0, blocks=(), visits=(), copies=())
SPEC = Path(__file__).parents[3] / "docs" / "spec"


def page(name: str) -> str:
    return (SPEC / name).read_text("utf-8")


def first_cells(text: str) -> list[str]:
    """The code words in the first cell of every row of a page's tables."""
    rows = [line.split("|")[1] for line in text.splitlines() if line.startswith("| `")]
    return [word for cell in rows for word in re.findall(r"`([^`]+)`", cell)]


def section(text: str, heading: str) -> str:
    return text.split(f"\n## {heading}\n")[1].split("\n## ", maxsplit=1)[0]


def keys(value: object) -> set[str]:
    if not isinstance(value, dict):
        return set()
    return set(value).union(*(keys(inner) for inner in value.values()))


def test_graph_rules_are_listed_with_their_errors() -> None:
    text = section(page("ir.md"), "Legal graphs")
    assert first_cells(text) == [rule.name for rule in rules.RULES]
    codes = [line.rsplit("`", 2)[1] for line in text.splitlines() if line.startswith("| `")]
    assert codes == [rule.error.code for rule in rules.RULES]


def test_plan_rules_are_listed() -> None:
    listed = first_cells(section(page("judge.md"), "Rules"))
    assert listed == [name for row in check.RULES for name in row.rules]


def test_failure_codes_are_listed_with_their_exit() -> None:
    classes = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, errors.TmmuError)]
    expected = {kind.code: kind.exit_code for kind in classes if "code" in vars(kind) and kind is not errors.TmmuError}
    rows = re.findall(r"^\| `([A-Z_]+)` \| (\d+) \|", page("errors.md"), re.MULTILINE)
    assert {code: int(number) for code, number in rows} == expected


def test_metrics_are_listed() -> None:
    listed = first_cells(section(page("plan.md"), "Metrics"))
    names = [name for name in plan().metrics if not name.startswith("peak_bytes.") or name == "peak_bytes.stack"]
    assert sorted(listed) == sorted([*names, "peak_bytes.ARENA"])


def graph_map() -> dict[str, object]:
    return semantic_map(described_graph()) | {"notes": notes_map(described_graph())}


def test_grammars_name_every_key_and_word() -> None:
    for name, top, words in (
        ("ir.cddl", graph_map(), (ROLES, STAGES, PHASES, MODALITIES, EFFECTS)),
        ("plan.cddl", plan_map(fused(ring=RING)) | {"digest": b""}, (MODES, PRESETS, LAYOUTS, POLICIES)),
    ):
        text = re.sub(r";.*", "", page(name))
        expected = keys({key: value for key, value in top.items() if key != "metrics"}) | {"metrics"} & set(top)
        assert set(re.findall(r"(\w+):", text)) - {"written", "read"} == expected
        assert {word for group in words for word in group} <= set(re.findall(r'"([^"]+)"', text))


def test_index_lists_every_page_and_no_other() -> None:
    listed = set(re.findall(r"\]\(([\w-]+\.(?:md|cddl))\)", page("index.md")))
    assert listed == {path.name for path in SPEC.iterdir() if path.suffix in (".md", ".cddl")} - {"index.md"}


def test_links_between_pages_lead_somewhere() -> None:
    for path in sorted(SPEC.glob("*.md")):
        for target, anchor in re.findall(r"\]\(([\w-]+\.md)(?:#([\w-]+))?\)", path.read_text("utf-8")):
            heads = {head.lower().replace(" ", "-") for head in re.findall(r"^#+ (.+)$", page(target), re.MULTILINE)}
            assert not anchor or anchor in heads, f"{path.name}: {target}#{anchor}"


def test_words_are_in_order_and_their_owners_exist() -> None:
    text = page("words.md")
    words = re.findall(r"^- \*\*([^*]+)\*\*", text, re.MULTILINE)
    assert words == sorted(words)
    assert all((SPEC.parents[1] / owner).is_file() for owner in re.findall(r"`(tmmu/[\w/]+\.py)`", text))


def test_pages_list_every_kind_of_a_rewritten_op() -> None:
    schema, table = page("plan.cddl"), first_cells(section(page("rewrites.md"), "What a rewrite says"))
    assert f"kind: [* 0..{len(KINDS) - 1}]," in schema
    assert [word for word in table if word in KINDS] == list(KINDS)
    assert all(kind in schema for kind in KINDS)
