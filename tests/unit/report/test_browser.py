"""The page in Debian's chromium, from ``file://``: what a person sees, searches and opens."""

import os
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.docs.commands import ROOT
from tests.unit.ir.samples import A2, TOKEN, W, arenas, described_graph, plan
from tests.unit.report.test_contents import contents, contents_of_every_chart, described
from tests.unit.report.test_page import HOSTILE, named
from tmmu.codec.read import read_graph
from tmmu.golden.million import million_buffers
from tmmu.planner.arenas import default_arenas
from tmmu.planner.prepare import prepare_memory
from tmmu.report.contents import report_contents
from tmmu.report.page import page_html

pytestmark = pytest.mark.slow
playwright = pytest.importorskip("playwright.sync_api")

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
POSITIONS = (0, 6)
"""The positions of the sample."""
AXIS_LEFT, AXIS_RIGHT, AXIS_TOP, AXIS_BOTTOM = 74, 8, 6, 20
"""Pixels of a canvas outside its plot."""


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    if CHROMIUM is None:
        pytest.skip("there is no chromium")
    sandbox = [] if os.geteuid() else ["--no-sandbox"]
    with playwright.sync_playwright() as driver:
        running = driver.chromium.launch(executable_path=CHROMIUM, args=sandbox)
        yield running
        running.close()


@dataclass
class Tab:
    """A page that is open, and all that it complained of or asked a network for."""

    page: Any
    complaints: list[str] = field(default_factory=list)

    def js(self, text: str) -> Any:
        return self.page.evaluate(text)

    def settle(self) -> None:
        """Waits until all charts are there and show what was last asked for."""
        self.page.wait_for_selector("html[data-drawn=true]", state="attached")

    def wait_until(self, condition: str) -> None:
        """Waits for what an event changes whose end the driver does not tell: a wheel, a pointer that moves."""
        self.page.wait_for_function(condition)
        self.settle()

    def facts(self) -> dict[str, str]:
        """What the open panel says."""
        return {item.get_attribute("data-fact"): item.inner_text() for item in self.page.locator("#panel dd").all()}


Opener = Callable[..., Tab]


@pytest.fixture
def show(browser: Any, tmp_path: Path) -> Iterator[Opener]:
    """Opens a page's bytes; at the end nothing was complained of, and nothing asked for but the file."""
    tabs: list[Tab] = []

    def opened(contents: bytes, scheme: str = "light") -> Tab:
        path = tmp_path / "page.html"
        path.write_bytes(contents)
        context = browser.new_context(color_scheme=scheme, viewport={"width": 1280, "height": 1000})
        tab = Tab(context.new_page())
        tabs.append(tab)
        tab.page.on("console", lambda message: tab.complaints.append(message.text))
        tab.page.on("pageerror", lambda error: tab.complaints.append(str(error)))
        tab.page.on(
            "request",
            lambda request: request.url.startswith(("file:", "data:")) or tab.complaints.append(request.url),
        )
        tab.page.goto(path.as_uri())
        tab.settle()
        return tab

    yield opened
    assert [complaint for tab in tabs for complaint in tab.complaints] == []
    for tab in tabs:
        tab.page.context.close()


def sample() -> bytes:
    return page_html([contents()])


def point_of(tab: Tab, position: float, byte: float) -> tuple[float, float]:
    """The point of the map, in pixels of the window, at a position and a byte."""
    tab.page.locator("canvas.map").first.scroll_into_view_if_needed()
    edge = tab.page.locator("canvas.map").first.bounding_box()
    view = tab.js("tmmuReport.plans[0].slabs[tmmuReport.plans[0].shown].view")
    width, height = edge["width"] - AXIS_LEFT - AXIS_RIGHT, edge["height"] - AXIS_TOP - AXIS_BOTTOM
    x = edge["x"] + AXIS_LEFT + (position - view["x0"]) / (view["x1"] - view["x0"]) * width
    y = edge["y"] + AXIS_TOP + (view["y1"] - byte) / (view["y1"] - view["y0"]) * height
    return x, y


@pytest.mark.parametrize(("scheme", "background"), [("light", "rgb(246, 247, 249)"), ("dark", "rgb(16, 20, 24)")])
def test_page_opens_in_the_reader_s_scheme_and_switches(show: Opener, scheme: str, background: str) -> None:
    tab = show(page_html([contents_of_every_chart()]), scheme)
    color = "getComputedStyle(document.body).backgroundColor"
    assert tab.js(color) == background
    tab.page.click("#theme")
    assert tab.js(color) != background
    assert len(tab.page.screenshot(full_page=True)) > 10_000


def test_map_shows_the_buffer_under_the_pointer_and_opens_it(show: Opener) -> None:
    tab = show(sample())
    x, y = point_of(tab, 3.5, 64 + 224)
    tab.page.mouse.move(x, y)
    tab.page.wait_for_selector("#tip")
    assert "float32[100]" in tab.page.locator("#tip").inner_text()
    tab.page.mouse.click(x, y)
    facts = tab.facts()
    placed = plan()
    row = placed.buffers.id.index(A2)
    slot = next(
        index
        for index, key in enumerate(zip(placed.slots.arena, placed.slots.slot, strict=True))
        if key == (placed.buffers.arena[row], placed.buffers.slot[row])
    )
    assert facts == {
        "buffer": str(A2),
        "role": "activation",
        "values": "float32[100]",
        "dtype": "float32",
        "bytes": "400 B",
        "bytes, padded": "448 B",
        "span": "[3, 5)",
        "arena": "activations",
        "slot": str(placed.slots.slot[slot]),
        "address": f"0x{placed.slots.address[slot]:016x}",
        "offset": "64",
        "made by": "test.op",
        "module": "net.3",
        "source": "net.py:3",
        "written at": "3 test.op",
        "read at": "4 test.op",
    }


def test_search_finds_and_the_hit_opens_its_buffer_on_its_slab(show: Opener) -> None:
    tab = show(sample())
    tab.page.keyboard.press("/")
    tab.page.keyboard.type("net.0.WEIGHT")
    assert tab.page.locator("#found").inner_text() == "1 buffer found"
    tab.page.click("#hits button")
    facts = tab.facts()
    assert (facts["buffer"], facts["name"], facts["arena"]) == (str(W), "net.0.weight", "parameters")
    assert tab.js("tmmuReport.plans[0].slabs[tmmuReport.plans[0].shown].slab.segment") == "text"
    tab.page.keyboard.press("Escape")
    assert tab.page.locator("#panel").is_hidden()
    assert tab.js("document.activeElement.id") == "search"
    tab.page.fill("#search", "no such text")
    assert tab.page.locator("#found").inner_text() == "0 buffers found"


def test_wheel_drag_and_keys_move_the_view(show: Opener) -> None:
    tab = show(sample())
    view = "({ ...tmmuReport.plans[0].slabs[0].view })"
    whole = tab.js(view)
    tab.page.mouse.move(*point_of(tab, 3, 300))
    tab.page.mouse.wheel(0, -400)
    tab.wait_until(f"tmmuReport.plans[0].slabs[0].view.x0 > {whole['x0']}")
    closer = tab.js(view)
    assert whole["x0"] < closer["x0"] < 3 < closer["x1"] < whole["x1"]
    tab.page.mouse.down()
    tab.page.mouse.move(200, 400, steps=3)
    tab.page.mouse.up()
    tab.wait_until(f"tmmuReport.plans[0].slabs[0].view.x0 > {closer['x0']}")
    tab.page.focus("canvas.map")
    tab.page.keyboard.press("0")
    assert tab.js(view) == whole
    for key in ("+", "+", "ArrowLeft", "ArrowDown"):
        tab.page.keyboard.press(key)
    moved = tab.js(view)
    assert moved["x1"] - moved["x0"] == pytest.approx(0.49 * (whole["x1"] - whole["x0"]))
    assert (moved["x0"], moved["y0"]) < (whole["x1"] * 0.255, whole["y1"] * 0.255)


def test_keys_go_through_the_buffers_and_say_them(show: Opener) -> None:
    tab = show(sample())
    tab.page.focus("canvas.map")
    tab.page.keyboard.press("n")
    assert tab.page.locator("#found").inner_text().startswith("4, activation float32[8], 64 B")
    tab.page.keyboard.press("p")
    tab.page.keyboard.press("Enter")
    assert tab.facts()["buffer"] == "9"


@pytest.mark.parametrize("name", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_names_are_shown_and_run_nothing(show: Opener, name: str) -> None:
    tab = show(page_html([report_contents(name, plan(), named(name))]))
    tab.page.on("dialog", lambda dialog: tab.complaints.append(dialog.message))
    tab.js("tmmuReport.openBuffer(tmmuReport.plans[0], 0)")
    assert tab.js("document.querySelector('[data-fact=name]').textContent") == name
    tab.page.fill("#search", name[:40])
    tab.page.select_option("#colour", "module")
    tab.settle()
    assert tab.js("document.querySelectorAll('img, script[src], iframe').length") == 0
    assert tab.js("document.documentElement.scrollWidth <= window.innerWidth"), "a long name widens nothing"


def test_100_000_buffers_are_drawn_as_at_most_20_000_rectangles(show: Opener) -> None:
    graph = million_buffers(100_000)
    big = prepare_memory(graph, mode="backward", preset="train_full", token=bytes(64), arenas=default_arenas())
    tab = show(page_html([report_contents("big", big, graph)]))
    counts = [tab.js("tmmuReport.measured.rectangles")]
    tab.page.fill("#search", "test")
    tab.settle()
    counts.append(tab.js("tmmuReport.measured.rectangles"))
    tab.page.fill("#search", "")
    tab.settle()
    tab.page.focus("canvas.map")
    for _ in range(20):
        tab.page.keyboard.press("+")
        tab.settle()
        counts.append(tab.js("tmmuReport.measured.rectangles"))
    assert all(0 < count <= 20_000 for count in counts), counts
    tab.page.fill("#search", "b77777")
    tab.page.click("#hits button")
    facts, row = tab.facts(), big.buffers.id.index(77_777)
    assert facts["span"] == f"[{big.buffers.birth[row]}, {big.buffers.death[row]})"
    assert facts["offset"].replace("\u202f", "") == str(big.buffers.offset[row])


@pytest.mark.parametrize(("case", "mode"), [("gpt2-training", "backward"), ("llama-70b", "backward")])
def test_pages_of_real_models_say_what_their_plans_say(show: Opener, case: str, mode: str) -> None:
    graph = read_graph((ROOT / "golden" / f"{case}.ir.cbor").read_bytes())
    placed = prepare_memory(graph, mode=mode, preset="train_full", token=bytes(64), arenas=default_arenas())
    tab = show(page_html([report_contents(case, placed, graph)]))
    assert 0 < tab.js("tmmuReport.measured.rectangles") <= 20_000
    rows = len(placed.buffers)
    for row in (0, rows // 3, rows // 2, rows - 1):
        tab.js(f"tmmuReport.openBuffer(tmmuReport.plans[0], {row})")
        tab.settle()
        facts, buffer = tab.facts(), placed.buffers.id[row]
        assert facts["buffer"] == str(buffer)
        assert facts["span"] == f"[{placed.buffers.birth[row]}, {placed.buffers.death[row]})"
        assert facts["bytes"].split("B")[0].replace("\u202f", "").strip() == str(graph.buffers.bytes[buffer])
        assert facts["role"] == graph.buffers.role[buffer]
    for colour in ("module", "dtype", "size"):
        tab.page.select_option("#colour", colour)
        tab.settle()
        assert tab.page.locator(".legend li").count() > 0


def test_two_plans_share_their_axes(show: Opener) -> None:
    larger = prepare_memory(described_graph(), mode="backward", preset="train_full", token=TOKEN, arenas=arenas())
    both = [report_contents("old", plan(), described()), report_contents("new", larger, described())]
    tab = show(page_html(both))
    views = tab.js("tmmuReport.plans.map((one) => one.slabs[0].view)")
    assert views[0] == views[1]
    tops = [section.bounding_box()["y"] for section in tab.page.locator("section.plan").all()]
    assert tops[0] == tops[1], "side by side"
    tab.page.locator("section[data-plan='1'] button.open").first.click()
    assert tab.facts()["buffer"] == tab.page.locator("section[data-plan='1'] button.open").first.inner_text()


def chart_names(tab: Tab) -> list[str]:
    """What each canvas is called, in the page's order, up to the first comma or colon."""
    labels = [canvas.get_attribute("aria-label") for canvas in tab.page.locator("canvas").all()]
    return [re.split("[,:]", label)[0] for label in labels]


def test_page_of_half_a_step_has_no_chart_of_eager_and_of_the_ring(show: Opener) -> None:
    assert chart_names(show(sample())) == [
        "Memory map",
        "Live bytes of the plan over positions",
        "What is live at the peak",
    ]


def test_page_says_whether_it_is_drawn(show: Opener) -> None:
    tab = show(sample())
    drawn = "document.documentElement.dataset.drawn"
    assert tab.js(drawn) == "true"
    assert tab.js(f"(document.getElementById('theme').click(), {drawn})") == "false"
    tab.settle()
    assert tab.js(f"(tmmuReport.drawAll(), {drawn})") == "true"


def test_ring_and_eager_have_charts_and_the_print_is_light(show: Opener) -> None:
    tab = show(page_html([contents_of_every_chart()]), "dark")
    assert chart_names(tab) == [
        "Memory map",
        "Live bytes of the plan over positions",
        "Live bytes of the model as it is over eager's calls",
        "What is live at the peak",
        "The ring",
    ]
    tab.page.emulate_media(media="print")
    assert len(tab.page.pdf()) > 10_000
    assert tab.page.locator("#search").is_hidden()
