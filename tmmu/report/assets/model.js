"use strict";
// From the page's contents to what charts show: scenes, curves, trees, colours of one plan. No DOM.

/** Numbers as doubles, row by row. */
function doubles(numbers) {
  return numbers.map(toNumber);
}

/** The charts of one plan: a map for each slab, curves, trees, the ring; `widest` is shared by plans side by side. */
function planCharts(plan, index) {
  const bytes = doubles(plan.buffers.bytes), last = Math.max(plan.figures.ops, 1);
  const slabs = plan.slabs.map((slab, number) => slabChart(plan, slab, `${index}.${number}`, last));
  return { plan, index, bytes, slabs, eager: plan.eager && eagerCurve(plan.eager), ring: plan.ring && ringChart(plan.ring, last), grouping: null };
}

function slabChart(plan, slab, key, last) {
  const b = plan.buffers, arenas = new Set(slab.arenas), rows = [];
  for (let row = 0; row < b.id.length; row++) if (arenas.has(b.arena[row])) rows.push(row);
  const low = rows.map((row) => toNumber(b.offset[row])), ends = placeEnds(b);
  const scene = makeScene(
    rows.map((row) => toNumber(b.birth[row])), rows.map((row) => ends[row]),
    low, rows.map((row, place) => low[place] + toNumber(b.bytes[row])), rows,
  );
  const found = sceneBounds(scene);
  const bounds = { x0: 0, x1: Math.max(found.x1, last), y0: 0, y1: Math.max(found.y1, toNumber(slab.bytes)) * 1.04 };
  const lines = slabLines(slab, toNumber(slab.peakPosition) > bounds.x1 / 2);
  const curve = {
    at: doubles(slab.levels.at), bytes: doubles(slab.levels.bytes), axis: "position", top: bounds.y1,
    peakPosition: toNumber(slab.peakPosition), peakBytes: toNumber(slab.peakBytes), lines,
  };
  return { key, slab, scene, bounds, view: { ...bounds }, curve, lines, hits: null, peakPosition: curve.peakPosition };
}

/** Where the place of each buffer is another's: its death, or the birth of the one that takes it over. */
function placeEnds(buffers) {
  const ends = doubles(buffers.death), rowOf = new Map(buffers.id.map((id, row) => [id, row]));
  buffers.takesOver.forEach((taken, row) => {
    const before = taken === null ? undefined : rowOf.get(taken);
    if (before !== undefined) ends[before] = Math.min(ends[before], toNumber(buffers.birth[row]));
  });
  return ends;
}

/** The lines that a slab's charts mark: its end, its bound, the capacities of its arenas; their labels keep away from the peak's. */
function slabLines(slab, peakIsLate) {
  const reached = slab.bound === slab.bytes;
  const end = { bytes: toNumber(slab.bytes), kind: "faint", place: peakIsLate ? "middle" : "left", label: `end of the slab ${readableBytes(slab.bytes)}` };
  const bound = { bytes: toNumber(slab.bound), kind: "bound", place: peakIsLate ? "left" : "right", label: `${reached ? "slab and " : ""}bound ${readableBytes(slab.bound)}` };
  const capacities = slab.capacities.map(([name, size], number) => (
    { bytes: toNumber(size), kind: "capacity", place: "middle", below: 12 * number, label: `capacity of ${name} ${readableBytes(size)}` }
  ));
  return [...(reached ? [] : [end]), bound, ...capacities];
}

function eagerCurve(eager) {
  const peak = toNumber(eager.peakBytes), bounds = { x0: 0, x1: Math.max(eager.calls, 1), y0: 0, y1: 1 };
  return {
    at: doubles(eager.levels.at), bytes: doubles(eager.levels.bytes), axis: "call", top: Math.max(peak, 1) * 1.08, bounds, view: { ...bounds },
    peakPosition: eager.peakPosition, peakBytes: peak, lines: [],
  };
}

const BAR_GROUPS = { resident: 11, visit: 0, copy: 1 };

function ringChart(ring, last) {
  const bars = ring.bars, rows = bars.block.map((_, row) => row);
  const low = bars.block.map((block) => toNumber(ring.blocks.address[block]));
  const scene = makeScene(bars.start, bars.end, low, bars.block.map((block, row) => low[row] + toNumber(ring.blocks.bytes[block])), rows);
  const capacity = toNumber(ring.capacity), top = Math.max(sceneBounds(scene).y1, capacity) * 1.04;
  const bounds = { x0: 0, x1: last, y0: 0, y1: top };
  return {
    key: "ring", hits: null, scene, bounds, view: { ...bounds }, peakPosition: -1,
    lines: [{ bytes: capacity, kind: "capacity", place: "right", label: `budget ${readableBytes(ring.capacity)}` }],
    colorOf: (row, dark) => groupColor(BAR_GROUPS[bars.kind[row]], false, dark),
    labelOf: (row) => `${bars.kind[row]} ${ring.blocks.name[bars.block[row]]}`,
  };
}

/** Colours of a plan's buffers by role, module, dtype or size: {labels, groups, bySize}. */
function groupingOf(plan, bytes, by) {
  const keys = (column) => plan.buffers[column].map((text) => plan.texts[text] || "(none)");
  if (by === "size") {
    const labels = Array.from({ length: GROUPS_MAX }, (_, number) => sizeLabel(number, readableBytes));
    return { labels, groups: bytes.map(sizeClass), bySize: true };
  }
  return { ...groupRows(by === "module" ? moduleKeys(keys("module")) : keys(by), bytes), bySize: false };
}

/** The tree of what is live at a slab's peak, by module. */
function peakTree(plan, slab) {
  const b = plan.buffers, text = (column, row) => plan.texts[b[column][row]];
  return moduleTree(slab.live.map((row) => ({
    path: text("module", row), label: text("name", row) || text("op", row) || `buffer ${b.id[row]}`, bytes: toNumber(b.bytes[row]), row,
  })));
}

/** The tree of what eager holds at its peak, by module; its leaves are rows of `eager.live`. */
function eagerTree(plan) {
  const live = plan.eager.live;
  return moduleTree(live.bytes.map((size, row) => ({
    path: plan.texts[live.module[row]], label: plan.texts[live.op[row]] || "storage", bytes: toNumber(size), row,
  })));
}

/** Charts of plans side by side get the same axes, so that heights and lengths compare. */
function shareAxes(all) {
  for (const segment of ["stack", "data", "text"]) {
    const charts = all.map((one) => one.slabs.find((chart) => chart.slab.segment === segment)).filter(Boolean);
    const x1 = Math.max(...charts.map((chart) => chart.bounds.x1)), y1 = Math.max(...charts.map((chart) => chart.bounds.y1));
    for (const chart of charts) {
      chart.bounds = { x0: 0, x1, y0: 0, y1 };
      chart.view = { ...chart.bounds };
      chart.curve.top = y1;
    }
  }
  const curves = all.map((one) => one.eager).filter(Boolean);
  const top = Math.max(...curves.map((curve) => curve.top));
  for (const curve of curves) curve.top = top;
}

if (typeof module !== "undefined") {
  Object.assign(globalThis, require("./format.js"), require("./scene.js"), require("./colors.js"), require("./charts.js"));
  module.exports = { planCharts, groupingOf, peakTree, eagerTree, shareAxes };
}
