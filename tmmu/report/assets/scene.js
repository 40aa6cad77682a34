"use strict";
// Rectangles of a map and the view on them: what is seen, merged where it is under a pixel, and what lies at a point.
// x is a position, y a byte that grows upwards. No DOM: node imports this.

/** Rectangles [x0, x1) by [y0, y1) that stand for `rows`; those without area are left out of every frame. */
function makeScene(x0, x1, y0, y1, rows) {
  const indices = Uint32Array.from(rows, (_, index) => index);
  const scene = { x0: Float64Array.from(x0), x1: Float64Array.from(x1), y0: Float64Array.from(y0), y1: Float64Array.from(y1) };
  return {
    ...scene,
    rows: Uint32Array.from(rows),
    byX: indices.slice().sort((a, b) => scene.x0[a] - scene.x0[b] || a - b),
    byY: indices.slice().sort((a, b) => scene.y0[a] - scene.y0[b] || a - b),
  };
}

/** The rectangles of a scene whose rows are among these. */
function subScene(scene, rows) {
  const kept = (index) => rows.has(scene.rows[index]);
  return { ...scene, byX: scene.byX.filter(kept), byY: scene.byY.filter(kept) };
}

/** The smallest view that has every rectangle in it. */
function sceneBounds(scene) {
  const bounds = { x0: 0, x1: 1, y0: 0, y1: 1 };
  for (let index = 0; index < scene.rows.length; index++) {
    if (scene.x1[index] > bounds.x1) bounds.x1 = scene.x1[index];
    if (scene.y1[index] > bounds.y1) bounds.y1 = scene.y1[index];
  }
  return bounds;
}

/**
 * What a frame draws: at most `limit` rectangles in pixels, each with the index of the one whose colour it has and how
 * many it stands for. What is outside is left out. What is narrower or lower than a cell joins its neighbours in the
 * same column or row of cells; cells are one pixel, and double until the frame has no more than `limit`.
 */
function visibleRectangles(scene, view, width, height, limit) {
  for (let cell = 1; cell <= 256; cell *= 2) {
    const frame = mergedFrame(scene, view, width, height, cell);
    if (frame.length <= limit) return frame;
  }
  const frame = mergedFrame(scene, view, width, height, 512);
  return frame.sort((a, b) => b.w * b.h - a.w * a.h).slice(0, limit);
}

function mergedFrame(scene, view, width, height, cell) {
  const frame = [];
  const sx = width / (view.x1 - view.x0), sy = height / (view.y1 - view.y0);
  const box = { x: 0, y: 0, w: 0, h: 0 };
  const clip = (index) => {
    const left = Math.max(0, (scene.x0[index] - view.x0) * sx), right = Math.min(width, (scene.x1[index] - view.x0) * sx);
    const top = Math.max(0, height - (scene.y1[index] - view.y0) * sy);
    const bottom = Math.min(height, height - (scene.y0[index] - view.y0) * sy);
    box.x = left; box.y = top; box.w = right - left; box.h = bottom - top;
    return box.w > 0 && box.h > 0;
  };
  const rows = new Map(), columns = new Map();
  for (const index of scene.byX) {
    if (!clip(index)) continue;
    const area = box.w * box.h;
    if (box.h < cell) joinRun(rows, Math.floor(box.y / cell), box.x, box.x + box.w, area, index, cell);
    else if (box.w >= cell) frame.push({ x: box.x, y: box.y, w: box.w, h: box.h, index, count: 1 });
  }
  for (const index of scene.byY) {
    if (!clip(index) || box.h < cell || box.w >= cell) continue;
    const low = height - box.y - box.h;
    joinRun(columns, Math.floor(box.x / cell), low, low + box.h, box.w * box.h, index, cell);
  }
  for (const run of [...rows.values()].flat()) {
    frame.push({ x: run.low, y: run.line * cell, w: Math.max(run.high - run.low, 1), h: cell, index: run.index, count: run.count });
  }
  for (const run of [...columns.values()].flat()) {
    const h = Math.max(run.high - run.low, 1);
    frame.push({ x: run.line * cell, y: height - run.low - h, w: cell, h, index: run.index, count: run.count });
  }
  return frame;
}

/** Joins [low, high) to the last run of its line of cells, or begins one; what a line is given comes by `low`. */
function joinRun(lines, line, low, high, area, index, cell) {
  const runs = lines.get(line);
  const run = runs === undefined ? undefined : runs[runs.length - 1];
  if (run !== undefined && low <= run.high + cell) {
    if (high > run.high) run.high = high;
    run.count += 1;
    if (area > run.area) { run.area = area; run.index = index; }
    return;
  }
  const begun = { line, low, high, area, index, count: 1 };
  if (runs === undefined) lines.set(line, [begun]); else runs.push(begun);
}

/** The index of the rectangle at a point, the one born last where several are; else the nearest within `reach`; -1. */
function rectangleAt(scene, x, y, reachX, reachY) {
  let best = -1, nearest = 1;
  for (const index of scene.byX) {
    if (scene.y0[index] >= scene.y1[index] || scene.x0[index] >= scene.x1[index]) continue;
    const dx = Math.max(scene.x0[index] - x, x - scene.x1[index], 0) / reachX;
    const dy = Math.max(scene.y0[index] - y, y - scene.y1[index], 0) / reachY;
    const inside = x >= scene.x0[index] && x < scene.x1[index] && y >= scene.y0[index] && y < scene.y1[index];
    const distance = inside ? 0 : Math.max(Math.hypot(dx, dy), 1e-9);
    if (distance < nearest || (distance === 0 && nearest === 0)) { best = index; nearest = distance; }
  }
  return best;
}

/** The view `factor` times as large around a point that stays where it is; an axis of factor 1 stays. */
function zoomed(view, bounds, factorX, factorY, x, y) {
  const next = {
    x0: x - (x - view.x0) * factorX, x1: x + (view.x1 - x) * factorX,
    y0: y - (y - view.y0) * factorY, y1: y + (view.y1 - y) * factorY,
  };
  return clamped(next, bounds);
}

/** The view moved by shares of its own size. */
function panned(view, bounds, sharesX, sharesY) {
  const dx = (view.x1 - view.x0) * sharesX, dy = (view.y1 - view.y0) * sharesY;
  return clamped({ x0: view.x0 + dx, x1: view.x1 + dx, y0: view.y0 + dy, y1: view.y1 + dy }, bounds);
}

/** The view inside its bounds, no smaller than two positions, or what doubles can tell apart. */
function clamped(view, bounds) {
  const [x0, x1] = clampedAxis(view.x0, view.x1, bounds.x0, bounds.x1, 2);
  const [y0, y1] = clampedAxis(view.y0, view.y1, bounds.y0, bounds.y1, 64);
  return { x0, x1, y0, y1 };
}

function clampedAxis(start, end, low, high, least) {
  const span = Math.min(high - low, Math.max(end - start, least, (high - low) * 2 ** -40));
  const middle = (start + end) / 2;
  const first = Math.min(Math.max(middle - span / 2, low), high - span);
  return [first, first + span];
}

if (typeof module !== "undefined") {
  module.exports = { makeScene, subScene, sceneBounds, visibleRectangles, rectangleAt, zoomed, panned, clamped };
}
