"use strict";
// Geometry of the curves, axes and the treemap. No DOM: node imports this.

/**
 * A step curve in pixels, from (at, bytes) levels: points [x, y], no more than four for a pixel of the width, so that
 * a curve of a million steps is drawn at once, and each pixel shows the least and the most of what it covers.
 */
function stepCurve(at, bytes, view, top, width, height) {
  const sx = width / (view.x1 - view.x0), sy = height / top;
  const points = [];
  let column = null;
  const flush = () => {
    if (column === null) return;
    const ys = column.first === column.last && column.low === column.high
      ? [column.first] : [column.first, column.low, column.high, column.last];
    for (const y of ys) points.push([column.x, height - y * sy]);
    column = null;
  };
  let before = 0;
  for (let row = 0; row < at.length; row++) {
    if (at[row] > view.x1) break;
    const next = row + 1 < at.length ? at[row + 1] : Infinity;
    if (next > view.x0) {
      const x = Math.max(0, (at[row] - view.x0) * sx), pixel = Math.floor(x);
      if (column === null || column.pixel !== pixel) {
        flush();
        column = { pixel, x, first: before, low: Math.min(before, bytes[row]), high: Math.max(before, bytes[row]), last: bytes[row] };
      } else {
        column.low = Math.min(column.low, bytes[row]);
        column.high = Math.max(column.high, bytes[row]);
        column.last = bytes[row];
      }
    }
    before = bytes[row];
  }
  flush();
  const stepped = [];
  for (const [x, y] of points) {
    if (stepped.length > 0) stepped.push([x, stepped[stepped.length - 1][1]]);
    stepped.push([x, y]);
  }
  if (stepped.length > 0) stepped.push([width, stepped[stepped.length - 1][1]]);
  return stepped;
}

/** Whole numbers for an axis, at most `count`: steps of 1, 2 or 5 times a power of ten. */
function positionTicks(low, high, count) {
  const step = Math.max(1, niceStep((high - low) / count, [1, 2, 5, 10], 10));
  return multiples(low, high, step);
}

/** Bytes for an axis: steps of powers of two. */
function byteTicks(low, high, count) {
  return multiples(low, high, Math.max(1, 2 ** Math.ceil(Math.log2((high - low) / count))));
}

function niceStep(least, steps, base) {
  const power = base ** Math.floor(Math.log(Math.max(least, 1e-12)) / Math.log(base));
  return power * steps.find((step) => power * step >= least * (1 - 1e-12));
}

function multiples(low, high, step) {
  const ticks = [];
  for (let tick = Math.ceil(low / step) * step; tick <= high && ticks.length < 64; tick += step) ticks.push(tick);
  return ticks;
}

/** Leaves {path, label, bytes, row} as a tree by module path: {label, bytes, children, row}. */
function moduleTree(leaves) {
  const root = { label: "", bytes: 0, children: new Map(), row: -1 };
  leaves.forEach((leaf, place) => {
    let node = root;
    node.bytes += leaf.bytes;
    for (const part of leaf.path === "" ? [] : leaf.path.split(".")) {
      if (!node.children.has(`m${part}`)) node.children.set(`m${part}`, { label: part, bytes: 0, children: new Map(), row: -1 });
      node = node.children.get(`m${part}`);
      node.bytes += leaf.bytes;
    }
    node.children.set(`b${place}`, { label: leaf.label, bytes: leaf.bytes, children: new Map(), row: leaf.row });
  });
  return root;
}

/**
 * The treemap of a tree (squarified: Bruls, Huizing, van Wijk 2000): rectangles {x, y, w, h, depth, label, path, bytes,
 * row}, parents before their children, no more than `limit`. A node under 2 by 2 pixels is not divided further.
 */
function treemap(tree, width, height, limit) {
  const placed = [];
  const place = (node, box, depth, path) => {
    if (placed.length >= limit) return;
    placed.push({ ...box, depth, label: node.label, path, bytes: node.bytes, row: node.row });
    const header = node.children.size > 0 && depth > 0 && box.h > 34 && box.w > 40 ? 15 : 0;
    const inner = { x: box.x + 1, y: box.y + 1 + header, w: box.w - 2, h: box.h - 2 - header };
    if (node.children.size === 0 || inner.w < 2 || inner.h < 2) return;
    const children = [...node.children.values()].filter((child) => child.bytes > 0).sort((a, b) => b.bytes - a.bytes);
    squarified(children.map((child) => child.bytes), inner).forEach((part, index) => {
      const child = children[index];
      place(child, part, depth + 1, child.row < 0 ? (path === "" ? child.label : `${path}.${child.label}`) : path);
    });
  };
  place(tree, { x: 0, y: 0, w: width, h: height }, 0, "");
  return placed;
}

/** A box for each size, largest first, that tile the box, near squares where that can be. */
function squarified(sizes, box) {
  const total = sizes.reduce((sum, size) => sum + size, 0);
  const areas = sizes.map((size) => (size / total) * box.w * box.h);
  const boxes = [];
  let { x, y, w, h } = box, start = 0;
  while (start < areas.length) {
    const side = Math.min(w, h);
    let end = start + 1, sum = areas[start];
    while (end < areas.length && worstRatio(areas, start, end + 1, sum + areas[end], side) <= worstRatio(areas, start, end, sum, side)) {
      sum += areas[end];
      end += 1;
    }
    const depth = side > 0 ? sum / side : 0;
    let along = 0;
    for (let index = start; index < end; index++) {
      const length = sum > 0 ? (areas[index] / sum) * side : 0;
      boxes.push(w >= h ? { x, y: y + along, w: depth, h: length } : { x: x + along, y, w: length, h: depth });
      along += length;
    }
    if (w >= h) { x += depth; w = Math.max(0, w - depth); } else { y += depth; h = Math.max(0, h - depth); }
    start = end;
  }
  return boxes;
}

function worstRatio(areas, start, end, sum, side) {
  const most = areas[start], least = areas[end - 1];
  return Math.max((side * side * most) / (sum * sum), (sum * sum) / (side * side * least));
}

if (typeof module !== "undefined") {
  module.exports = { stepCurve, positionTicks, byteTicks, moduleTree, treemap, squarified };
}
