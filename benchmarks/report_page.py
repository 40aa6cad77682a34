"""How fast a page of many buffers is made and drawn.

    python -m benchmarks.report_page [--buffers 100000 | --plan PLAN]

Prints seconds and bytes of the page, then, by Debian's chromium without a GPU, milliseconds until the first frame and
of each redraw of the whole page, at the whole view and zoomed in, with the rectangles drawn. Needs ``playwright``.
"""

import argparse
import os
import shutil
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from tmmu.codec.load import ir_path, load_graph, load_plan
from tmmu.golden.million import million_buffers
from tmmu.planner.arenas import default_arenas
from tmmu.planner.prepare import prepare_memory
from tmmu.report.contents import report_contents
from tmmu.report.page import page_html

REDRAWS = 30
DRAW = """(count) => {
  const times = [];
  for (let frame = 0; frame < count; frame++) { tmmuReport.drawAll(); times.push(tmmuReport.measured.milliseconds); }
  return times;
}"""
"""The time of the calls: what the compositor does with a finished canvas afterwards is not in it."""
FRAMES = """(seconds) => new Promise((done) => {
  const began = performance.now();
  let frames = 0;
  const next = (now) => {
    tmmuReport.drawAll();
    frames += 1;
    if (now - began < seconds * 1000) requestAnimationFrame(next); else done(frames / ((now - began) / 1000));
  };
  requestAnimationFrame(next);
})"""


def page_of(buffers: int, path: Path | None) -> bytes:
    if path is not None:
        graph, plan = load_graph(ir_path(None, path)), load_plan(path)
    else:
        graph = million_buffers(buffers)
        plan = prepare_memory(graph, mode="backward", preset="train_full", token=bytes(64), arenas=default_arenas())
    began = time.perf_counter()
    page = page_html([report_contents("big", plan, graph)])
    print(f"{len(plan.buffers)} buffers: page of {len(page)} bytes in {time.perf_counter() - began:.1f} s")
    return page


def draw(page: Path, browser: Any) -> None:
    tab = browser.new_page(viewport={"width": 1280, "height": 1000})
    began = time.perf_counter()
    tab.goto(page.as_uri())
    tab.wait_for_selector("html[data-drawn=true]", state="attached")
    print(f"first frame after {1000 * (time.perf_counter() - began):.0f} ms")
    for zoom in range(0, 13, 3):
        times = sorted(tab.evaluate(DRAW, REDRAWS))
        rate, count = tab.evaluate(FRAMES, 2), tab.evaluate("tmmuReport.measured.rectangles")
        print(
            f"zoomed in {zoom:2} times: {count:6} rectangles, median {statistics.median(times):.0f} ms, "
            f"worst {times[-1]:.0f} ms, {rate:.0f} frames a second"
        )
        tab.focus("canvas.map")
        for _ in range(3):
            tab.keyboard.press("+")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--buffers", type=int, default=100_000)
    parser.add_argument("--plan", type=Path, help="a plan, its graph beside it")
    options = parser.parse_args()
    from playwright.sync_api import sync_playwright  # noqa: PLC0415 - an extra that only this measure needs

    sandbox = [] if os.geteuid() else ["--no-sandbox"]
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as driver:
        page = Path(folder) / "page.html"
        page.write_bytes(page_of(options.buffers, options.plan))
        browser = driver.chromium.launch(executable_path=shutil.which("chromium"), args=sandbox)
        draw(page, browser)
        browser.close()


if __name__ == "__main__":
    main()
