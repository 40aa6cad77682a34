import base64
import hashlib
import tomllib
from dataclasses import replace
from fnmatch import fnmatch
from html import unescape
from pathlib import Path

import pytest

from tests.unit.ir.samples import A2, W, described_graph, edit, plan
from tests.unit.report.pages import ASSETS, Page
from tmmu.ir.graph import Graph
from tmmu.report.contents import report_contents
from tmmu.report.encode import exact, json_text
from tmmu.report.page import SCRIPTS, page_html

HOSTILE = (
    "</script><script>alert(1)</script>",
    "<!--<script>",
    '"><img src=x onerror=alert(1)>',
    "&lt;b&gt; & {{script}} \\u003c",
    "\u202eright to left\u2066 and isolates",
    "line\u2028paragraph\u2029nul\x00escape\x1b",
    "n" * 10_240,
    "\N{GRINNING FACE} \u05d0\u05d1",
)


def named(name: str) -> Graph:
    """The sample where the name is everywhere that a model's text can be."""
    base = described_graph()
    count = len(base.ops)
    ops = replace(base.notes.ops, module=(name,) * count, source=(name,) * count)
    names = (name,) * len(base.buffers)
    return replace(base, notes=replace(base.notes, name=name, buffers=names, ops=ops))


def page_of(graph: Graph | None = None, title: str = "sample") -> Page:
    return Page(page_html([report_contents(title, plan(), graph or described_graph())]).decode())


@pytest.mark.parametrize("name", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_name_is_a_text_and_nothing_more(name: str) -> None:
    plain, hostile = page_of(), page_of(named(name), name)
    assert set(hostile.tags) == set(plain.tags)
    assert len(hostile.scripts) == 2
    assert hostile.scripts[1] == plain.scripts[1]
    shown = hostile.contents["plans"][0]
    assert shown["title"] == name
    assert {shown["texts"][number] for number in shown["buffers"]["name"]} == {name}
    assert not [value for _, attribute, value in hostile.attributes if attribute.startswith("on")]
    readable = name.replace("\x00", "\ufffd").replace("\x1b", "\ufffd")
    assert readable in hostile.texts


def test_contents_in_the_page_are_ascii_without_marks_of_html() -> None:
    text = json_text([report_contents("".join(HOSTILE), plan(), named("".join(HOSTILE)))])
    assert text.isascii()
    assert not set("<>&") & set(text)


def test_page_fetches_nothing_and_runs_its_own_script_alone() -> None:
    page = page_of()
    addresses = {(tag, name): value for tag, name, value in page.attributes if name in ("src", "href", "action")}
    assert addresses == {("link", "href"): "data:,"}
    (policy,) = [
        value for tag, name, value in page.attributes if (tag, name) == ("meta", "content") and "src" in (value or "")
    ]
    digest = base64.b64encode(hashlib.sha256(page.scripts[1].encode()).digest()).decode()
    assert policy is not None
    assert f"script-src 'sha256-{digest}'" in policy
    assert policy.startswith("default-src 'none';")
    assert "url(" not in ASSETS.joinpath("page.css").read_text()


def test_numbers_above_what_a_double_holds_are_texts() -> None:
    assert [exact(2**53 - 1), exact(2**53), exact(2**63)] == [2**53 - 1, str(2**53), str(2**63)]
    huge = edit(plan(), "buffers.bytes", 2**63, plan().buffers.id.index(A2))
    huge = edit(huge, "arenas.peak", 2**63 + 64, 2)
    page = Page(page_html([report_contents("huge", huge, None)]).decode())
    shown = page.contents["plans"][0]
    assert str(2**63) in shown["buffers"]["bytes"]
    assert shown["slabs"][0]["bytes"] == str(2**63 + 64)
    assert shown["slabs"][0]["peakBytes"] == str(2**63 + 256)
    assert shown["figures"]["stack"] == str(2**63 + 64)
    assert "8.0 EiB" in page.texts


def test_page_says_the_rows_of_the_plan() -> None:
    table, base, slots = page_of().contents["plans"][0]["buffers"], plan().buffers, plan().slots
    for column in ("id", "arena", "offset", "bytes", "birth", "death"):
        assert table[column] == list(getattr(base, column)), column
    shown = page_of().contents["plans"][0]
    addresses = [int(shown["slots"]["address"][row], 16) for row in table["slotRow"]]
    address = dict(zip(zip(slots.arena, slots.slot, strict=True), slots.address, strict=True))
    assert addresses == [address[key] for key in zip(base.arena, base.slot, strict=True)]


def test_tables_need_no_script() -> None:
    texts = page_of(named("a.b")).texts
    assert {"704 B", "448 B", "float32[100]", "[3, 5)", "activations.0"} <= set(texts)


def test_two_plans_stand_side_by_side_with_their_difference() -> None:
    larger = edit(plan(), "arenas.peak", 1728, 2)
    both = page_html(
        [report_contents("old", plan(), described_graph()), report_contents("new", larger, described_graph())]
    )
    page = Page(both.decode())
    assert [shown["title"] for shown in page.contents["plans"]] == ["old", "new"]
    assert "+1.0 KiB" in page.texts
    assert page.tags.count("section") == 2


def test_same_plan_is_the_same_page() -> None:
    pages = {page_html([report_contents("sample", plan(), described_graph())]) for _ in range(3)}
    assert len(pages) == 1


def test_assets_are_in_the_package_and_hold_no_end_of_their_element() -> None:
    settings = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())
    (pattern,) = settings["tool"]["setuptools"]["package-data"]["tmmu.report"]
    for name in (*SCRIPTS, "page.css", "page.html"):
        text = ASSETS.joinpath(name).read_text()
        assert fnmatch(f"assets/{name}", pattern)
        assert name == "page.html" or not [end for end in ("</script", "</style", "<!--") if end in text.lower()]


def test_weight_of_a_hostile_name_is_found_under_its_true_one() -> None:
    name = HOSTILE[0]
    shown = page_of(named(name)).contents["plans"][0]
    row = shown["buffers"]["id"].index(W)
    assert unescape(shown["texts"][shown["buffers"]["name"][row]]) == name
