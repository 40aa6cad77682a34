"""The page's pure script functions, under node."""

import json
from dataclasses import replace
from itertools import pairwise

from tests.unit.ir.samples import described_graph, plan
from tests.unit.report.pages import node
from tmmu.planner.arenas import readable_size
from tmmu.report.contents import report_contents
from tmmu.report.encode import json_text

VIEW = {"x0": 0, "x1": 100, "y0": 0, "y1": 100}
RANDOM = "let s = 1; const r = () => (s = (s * 16807) % 2147483647) / 2147483647;"
SCENE = f"""{RANDOM}
const n = a.count, x0 = [], x1 = [], y0 = [], y1 = [];
for (let i = 0; i < n; i++) {{
  x0.push(r() * a.span); x1.push(x0[i] + r() * a.width); y0.push(r() * a.span); y1.push(y0[i] + r() * a.height);
}}
const scene = m.makeScene(x0, x1, y0, y1, x0.map((_, i) => i));
const view = {{ x0: 0, x1: a.span, y0: 0, y1: a.span }};
"""


def test_numbers_are_told_to_the_digit() -> None:
    exact = node("format.js", "return a.map(m.exactBytes)", [0, 1023, 1024, 13107200, str(2**63), str(2**63 + 1)])
    assert exact == [
        "0 B",
        "1\u202f023 B",
        "1\u202f024 B (1.0 KiB)",
        "13\u202f107\u202f200 B (12.5 MiB)",
        "9\u202f223\u202f372\u202f036\u202f854\u202f775\u202f808 B (8.0 EiB)",
        "9\u202f223\u202f372\u202f036\u202f854\u202f775\u202f809 B (8.0 EiB)",
    ]


def test_units_are_those_of_the_command_line() -> None:
    sizes = [0, 1, 1023, 1024, 1536, 2**20 - 1, 2**20, 2**30 - 52429, 3 * 2**40, 2**52]
    assert node("format.js", "return a.map(m.readableBytes)", sizes) == [readable_size(size) for size in sizes]


def test_text_is_cut_and_keeps_no_direction_or_line() -> None:
    texts = ["short", "x" * 10_240, "a\u202eb\nc", "\N{GRINNING FACE}" * 30]
    assert node("format.js", "return a.map((text) => m.shortened(text, 10))", texts) == [
        "short",
        "x" * 9 + "…",
        "a b c",
        "\N{GRINNING FACE}" * 9 + "…",
    ]


def test_frame_draws_what_is_seen_where_it_is() -> None:
    body = """
    const scene = m.makeScene([0, 50, 300], [10, 60, 310], [0, 90, 0], [20, 100, 10], [7, 8, 9]);
    return m.visibleRectangles(scene, a, 200, 400, 100).map((part) => ({ ...part, row: scene.rows[part.index] }));
    """
    frame = node("scene.js", body, VIEW)
    assert [(part["row"], part["x"], part["y"], part["w"], part["h"], part["count"]) for part in frame] == [
        (7, 0, 320, 20, 80, 1),
        (8, 100, 0, 20, 40, 1),
    ], "the third is outside the view; addresses grow upwards"


def test_what_is_under_a_pixel_is_merged_and_has_the_color_of_the_largest() -> None:
    body = """
    const starts = [10, 10.2, 10.4, 90], scene = m.makeScene(starts, starts.map((x, i) => x + [0.1, 0.15, 0.1, 0.1][i]),
      [0, 0, 0, 0], [50, 50, 50, 50], [0, 1, 2, 3]);
    return m.visibleRectangles(scene, a, 100, 100, 100).map(({ index, x, w, count }) => [index, x, w, count]);
    """
    assert node("scene.js", body, VIEW) == [[1, 10, 1, 3], [3, 90, 1, 1]]


def test_merged_columns_cover_what_they_stand_for() -> None:
    """Three narrow ones in one column, the lowest last by id: low and middle touch, the high one is apart."""
    body = """
    const scene = m.makeScene([5, 5.2, 5.4], [5.1, 5.3, 5.5], [60, 10, 0], [80, 40, 30], [0, 1, 2]);
    return m.visibleRectangles(scene, a, 100, 100, 100).map(({ x, y, w, h, count }) => [x, y, w, h, count]);
    """
    assert node("scene.js", body, VIEW) == [[5, 60, 1, 40, 2], [5, 20, 1, 20, 1]]


def test_no_frame_of_100_000_rectangles_draws_more_than_20_000() -> None:
    body = f"{SCENE} return [1, 4].map((k) => m.visibleRectangles(scene, view, 1400 * k, 800 * k, 20000).length);"
    for width, height in ((3, 3), (0.3, 300), (300, 0.3), (1000, 1000), (1e-6, 1e-6)):
        counts = node("scene.js", body, {"count": 100_000, "span": 1000, "width": width, "height": height})
        assert all(0 < count <= 20_000 for count in counts), (width, height, counts)


def test_zoomed_in_nothing_is_merged() -> None:
    body = f"""{SCENE}
    const small = {{ x0: 500, x1: 510, y0: 500, y1: 510 }};
    const seen = x0.filter((x, i) => x < 510 && x1[i] > 500 && y0[i] < 510 && y1[i] > 500).length;
    const frame = m.visibleRectangles(scene, small, 10000, 10000, 20000);
    return [seen, frame.reduce((sum, part) => sum + part.count, 0)];
    """
    seen, drawn = node("scene.js", body, {"count": 20_000, "span": 1000, "width": 3, "height": 3})
    assert seen == drawn > 0


def test_point_finds_the_one_that_is_born_last_there_and_else_the_nearest() -> None:
    body = """
    const scene = m.makeScene([0, 1, 50, 70], [2, 4, 60, 70], [0, 0, 0, 0], [64, 64, 64, 64], [0, 1, 2, 3]);
    return a.map(([x, y]) => m.rectangleAt(scene, x, y, 2, 2));
    """
    points = [[0.5, 10], [1.5, 10], [3, 63.9], [4, 10], [48.5, 10], [30, 10], [70, 10]]
    assert node("scene.js", body, points) == [0, 1, 1, 1, 2, -1, -1]


def test_view_stays_inside_and_keeps_the_point_under_the_pointer() -> None:
    bounds = {"x0": 0, "x1": 100, "y0": 0, "y1": 1000}
    body = """
    const zoomedIn = m.zoomed(a, a, 0.5, 0.5, 25, 100), far = m.zoomed(zoomedIn, a, 100, 100, 0, 0);
    const deep = m.zoomed(a, a, 1e-9, 1e-9, 100, 0), panned = m.panned(zoomedIn, a, -5, 5);
    return [zoomedIn, far, deep, panned];
    """
    zoomed, far, deep, panned = node("scene.js", body, bounds)
    assert zoomed == {"x0": 12.5, "x1": 62.5, "y0": 50, "y1": 550}
    assert far == bounds
    assert deep == {"x0": 98, "x1": 100, "y0": 0, "y1": 64}
    assert panned == {"x0": 0, "x1": 50, "y0": 500, "y1": 1000}


def test_sizes_of_2_to_63_have_a_view() -> None:
    top = 2.0**63
    body = """
    const scene = m.makeScene([0, 1], [2, 3], [0, a], [a, 2 * a], [0, 1]);
    const bounds = m.sceneBounds(scene), deep = m.zoomed(bounds, bounds, 1e-30, 1e-30, 1, a);
    return [bounds.y1 === 2 * a, deep.y1 > deep.y0, m.visibleRectangles(scene, bounds, 100, 100, 10).length];
    """
    assert node("scene.js", body, top) == [True, True, 2]


def test_curve_keeps_every_low_and_high_with_few_points() -> None:
    body = """
    const at = Array.from({ length: 100000 }, (_, i) => i), bytes = at.map((i) => (i === 54321 ? 1000 : i % 7));
    const points = m.stepCurve(at, bytes, { x0: 0, x1: 100000, y0: 0, y1: 1000 }, 1000, 500, 100);
    return [points.length, Math.min(...points.map((point) => point[1])), points[points.length - 1][0]];
    """
    count, highest, end = node("charts.js", body)
    assert count <= 500 * 8
    assert (highest, end) == (0, 500)


def test_curve_of_few_levels_is_steps() -> None:
    body = "return m.stepCurve([0, 5], [10, 20], { x0: 0, x1: 10, y0: 0, y1: 20 }, 20, 100, 100)"
    points = node("charts.js", body)
    assert points[0][1] == 100
    assert [50, 50] in points
    assert points[-1] == [100, 0]
    assert all(x0 == x1 or y0 == y1 for (x0, y0), (x1, y1) in pairwise(points))


def test_ticks_are_round_and_few() -> None:
    body = "return [m.positionTicks(0, 52, 6), m.positionTicks(1.5, 4.5, 10), m.byteTicks(0, 3000, 4)]"
    assert node("charts.js", body) == [[0, 10, 20, 30, 40, 50], [2, 3, 4], [0, 1024, 2048]]


def test_treemap_areas_are_the_bytes_and_lie_inside_their_parent() -> None:
    leaves = [
        {"path": "a.b", "label": "x", "bytes": 600, "row": 0},
        {"path": "a.c", "label": "y", "bytes": 300, "row": 1},
        {"path": "", "label": "z", "bytes": 100, "row": 2},
    ]
    boxes = node("charts.js", "return m.treemap(m.moduleTree(a), 400, 300, 1000)", leaves)
    sizes = {(box["path"], box["label"]): box["bytes"] for box in boxes}
    assert sizes == {
        ("", ""): 1000, ("a", "a"): 900, ("a.b", "b"): 600, ("a.b", "x"): 600, ("a.c", "c"): 300, ("a.c", "y"): 300,
        ("", "z"): 100,
    }  # fmt: skip
    top = next(box for box in boxes if box["path"] == "a")
    inner = 398 * 298
    assert abs(top["w"] * top["h"] / inner - 0.9) < 1e-9
    for box in boxes:
        assert min(box["x"], box["y"]) >= 0
        assert box["x"] + box["w"] <= 400.001
        assert box["y"] + box["h"] <= 300.001


def test_squares_tile_the_box() -> None:
    boxes = node("charts.js", "return m.squarified(a, { x: 0, y: 0, w: 60, h: 40 })", [6, 6, 4, 3, 2, 2, 1])
    assert abs(sum(box["w"] * box["h"] for box in boxes) - 2400) < 1e-6
    assert [round(box["w"] * box["h"]) for box in boxes] == [600, 600, 400, 300, 200, 200, 100]


def test_modules_are_cut_at_the_depth_that_tells_most_apart() -> None:
    modules = [f"model.layers.{layer}.mlp" for layer in range(40)] + ["model.norm", ""]
    assert set(node("colors.js", "return m.moduleKeys(a)", modules)) == {"model.layers", "model.norm", "(none)"}


def test_groups_are_at_most_the_colors_and_the_rest_is_others() -> None:
    keys = [f"g{number}" for number in range(30)]
    grouped = node("colors.js", "return m.groupRows(a, a.map((_, i) => i))", keys)
    assert grouped["labels"][0] == "g29"
    assert (len(grouped["labels"]), grouped["labels"][-1], grouped["groups"][0]) == (12, "others", 11)


def test_size_classes_are_powers_of_16() -> None:
    body = "return a.map((size) => m.sizeClass(Number(size)))"
    assert node("colors.js", body, ["0", "1", "15", "16", "256", str(2**63)]) == [0, 1, 1, 2, 3, 11]


def test_search_finds_names_ops_modules_sources_and_ids() -> None:
    table = {
        "texts": ["", "net.0.weight", "aten.mm", "net.py:7", "float32", "parameter"],
        "buffers": {
            "id": [12, 5, 112], "name": [1, 0, 0], "op": [0, 2, 2], "module": [0, 0, 0], "source": [0, 3, 0],
            "role": [5, 0, 0], "dtype": [4, 4, 4],
        },
    }  # fmt: skip
    body = "return a.queries.map((query) => m.searchRows(a.table, query))"
    queries = ["WEIGHT", "mm", "net", "py:7", "b12", "112", "  ", "none", "5"]
    found = node("search.js", body, {"table": table, "queries": queries})
    assert found == [[0], [1, 2], [0, 1], [1], [0], [2], [], [], [1]]


def charts(body: str) -> object:
    """What the charts of the sample's page are: ``one`` is its plan's.

    The plan is of inference, with the timeline of eager's that a plan of the whole step has.
    """
    graph = described_graph()
    whole = report_contents("sample", plan("backward", "train_full"), graph)
    shown = json.loads(json_text([replace(report_contents("sample", plan(), graph), eager=whole.eager)]))
    return node("model.js", f"const one = m.planCharts(a.plans[0], 0); {body}", shown)


def test_place_of_a_buffer_that_is_taken_over_ends_where_the_taker_is_born() -> None:
    body = """
    const s = one.slabs[0].scene;
    return [...s.rows].map((row, i) => [a.plans[0].buffers.id[row], s.x0[i], s.x1[i]]);
    """
    assert charts(body) == [[4, 0, 1], [5, 1, 4], [6, 3, 5], [7, 4, 5], [8, 4, 5], [9, 5, 6]]


def test_curves_and_lines_are_the_plan_s() -> None:
    body = """
    const { curve, lines } = one.slabs[0];
    return [curve.at, curve.bytes, lines.map((line) => line.label), curve.peakPosition];
    """
    assert charts(body) == [[0, 3, 4, 5, 6], [64, 512, 704, 64, 0], ["slab and bound 704 B"], 4]
    assert charts("return [one.eager.at, one.eager.bytes, one.eager.peakPosition]") == [
        [0, 1, 3, 4, 5],
        [64, 320, 256, 272, 256],
        1,
    ]


def test_trees_add_up_to_the_peaks() -> None:
    body = "return [m.peakTree(one.plan, one.slabs[0].slab).bytes, m.eagerTree(one.plan).bytes]"
    assert charts(body) == [704, 320]


def test_groups_are_by_role_module_dtype_and_size() -> None:
    labels = "(by) => m.groupingOf(one.plan, one.bytes, by).labels.slice(0, 4)"
    body = f"return ['role', 'module', 'dtype', 'size'].map({labels})"
    assert charts(body) == [
        ["activation", "scratch", "constant", "parameter"],
        ["(none)"],
        ["float32"],
        ["0 B", "1 B to 16 B", "16 B to 256 B", "256 B to 4.0 KiB"],
    ]
