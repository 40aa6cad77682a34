"use strict";
// Canvases: the map, the curves, the treemap and the ring. Colours come from the page's style.

const RECTANGLES_MAX = 20000;
const AXIS_LEFT = 74;
const AXIS_BOTTOM = 20;

/** The canvas's context, cleared, with one unit a CSS pixel; {ink, width, height, theme}. */
function openCanvas(canvas) {
  const ratio = window.devicePixelRatio || 1, width = canvas.clientWidth, height = canvas.clientHeight;
  if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
  }
  const ink = canvas.getContext("2d"), style = getComputedStyle(document.documentElement);
  const color = (name) => style.getPropertyValue(name).trim();
  const theme = {
    text: color("--text"), faint: color("--faint"), line: color("--line"), plot: color("--plot"), mark: color("--mark"),
    curve: color("--curve"), bound: color("--bound"), capacity: color("--capacity"), dim: color("--dim"), dark: color("--dark") === "1",
  };
  ink.setTransform(ratio, 0, 0, ratio, 0, 0);
  ink.clearRect(0, 0, width, height);
  ink.font = "11px system-ui, sans-serif";
  ink.textBaseline = "middle";
  return { ink, width, height, theme };
}

/** The part of a canvas inside its axes. */
function plotBox(width, height) {
  return { x: AXIS_LEFT, y: 6, w: Math.max(1, width - AXIS_LEFT - 8), h: Math.max(1, height - AXIS_BOTTOM - 6) };
}

function drawAxes({ ink, theme }, box, view, label) {
  ink.fillStyle = theme.plot;
  ink.fillRect(box.x, box.y, box.w, box.h);
  ink.fillStyle = theme.faint;
  ink.strokeStyle = theme.line;
  ink.lineWidth = 1;
  ink.textAlign = "right";
  for (const tick of byteTicks(view.y0, view.y1, Math.max(2, Math.floor(box.h / 36)))) {
    const y = box.y + box.h - ((tick - view.y0) / (view.y1 - view.y0)) * box.h;
    ink.beginPath(); ink.moveTo(box.x, Math.round(y) + 0.5); ink.lineTo(box.x + box.w, Math.round(y) + 0.5); ink.stroke();
    ink.fillText(readableBytes(tick), box.x - 5, Math.min(Math.max(y, box.y + 5), box.y + box.h - 4));
  }
  ink.textAlign = "center";
  for (const tick of positionTicks(view.x0, view.x1, Math.max(2, Math.floor(box.w / 90)))) {
    const x = box.x + ((tick - view.x0) / (view.x1 - view.x0)) * box.w;
    ink.fillText(String(tick), Math.min(Math.max(x, box.x + 8), box.x + box.w - 12), box.y + box.h + 10);
  }
  ink.textAlign = "left";
  ink.fillText(label, 4, box.y + box.h + 10);
}

/** The memory map; while something is sought, all in grey and what was found above it. Returns the rectangles drawn. */
function drawMap(canvas, chart, chosen) {
  const open = openCanvas(canvas), { ink, theme } = open;
  const box = plotBox(open.width, open.height), { scene, view } = chart;
  drawAxes(open, box, view, "position");
  const frameOf = (part, limit) => visibleRectangles(part, view, box.w, box.h, limit);
  const grey = chart.hits === null ? [] : frameOf(scene, RECTANGLES_MAX / 2);
  const frame = chart.hits === null ? frameOf(scene, RECTANGLES_MAX) : frameOf(chart.hits, RECTANGLES_MAX / 2);
  ink.save();
  ink.beginPath(); ink.rect(box.x, box.y, box.w, box.h); ink.clip();
  fillRectangles(ink, box, grey, () => theme.dim);
  fillRectangles(ink, box, frame, (part) => chart.colorOf(scene.rows[part.index], theme.dark));
  drawMapLabels(open, box, frame, chart);
  for (const line of chart.lines) drawMarkedRow(open, box, view, line);
  drawMarkedPosition(open, box, view, chart.peakPosition);
  const index = chosen !== null && chosen.chart === chart.key ? scene.rows.indexOf(chosen.row) : -1;
  if (index >= 0) strokeRectangle(open, box, view, scene, index);
  ink.restore();
  return grey.length + frame.length;
}

/** Fills the parts of a frame, one colour after another; within a colour in their order. */
function fillRectangles(ink, box, frame, colorOf) {
  const byColor = new Map();
  for (const part of frame) {
    const color = colorOf(part);
    if (!byColor.has(color)) byColor.set(color, []);
    byColor.get(color).push(part);
  }
  for (const [color, parts] of byColor) {
    ink.fillStyle = color;
    for (const part of parts) {
      const gap = part.w > 3 && part.h > 3 ? 0.5 : 0;
      ink.fillRect(box.x + part.x + gap, box.y + part.y + gap, Math.max(part.w - 2 * gap, 0.5), Math.max(part.h - 2 * gap, 0.5));
    }
  }
}

function drawMapLabels({ ink, theme }, box, frame, chart) {
  ink.fillStyle = theme.dark ? "#101418" : "#ffffff";
  ink.textAlign = "left";
  for (const part of frame) {
    if (part.count > 1 || part.w < 60 || part.h < 14) continue;
    ink.fillText(shortened(chart.labelOf(chart.scene.rows[part.index]), Math.floor((part.w - 8) / 6)), box.x + part.x + 4, box.y + part.y + part.h / 2);
  }
}

/** A line at so many bytes, with its label; of a capacity above the view, the label alone, at the top. */
function drawMarkedRow({ ink, theme }, box, view, line) {
  const y = box.y + box.h - ((line.bytes - view.y0) / (view.y1 - view.y0)) * box.h, above = y < box.y;
  if (y > box.y + box.h || (above && line.kind !== "capacity")) return;
  if (!above) {
    ink.strokeStyle = theme[line.kind];
    ink.setLineDash([6, 4]);
    ink.beginPath(); ink.moveTo(box.x, y); ink.lineTo(box.x + box.w, y); ink.stroke();
    ink.setLineDash([]);
  }
  const share = { left: 0, middle: 0.5, right: 1 }[line.place];
  ink.textAlign = { left: "left", middle: "center", right: "right" }[line.place];
  const text = above ? `\u2191 ${line.label}` : line.label, width = ink.measureText(text).width;
  const x = box.x + 4 + (box.w - 8) * share, low = above ? box.y + 12 : y < box.y + 14 ? y + 8 : y - 7, row = low + (line.below ?? 0);
  ink.globalAlpha = 0.8;
  ink.fillStyle = theme.plot;
  ink.fillRect(x - width * share - 2, row - 6, width + 4, 12);
  ink.globalAlpha = 1;
  ink.fillStyle = theme[line.kind];
  ink.fillText(text, x, row);
}

function drawMarkedPosition({ ink, theme }, box, view, position) {
  const x = box.x + ((position + 0.5 - view.x0) / (view.x1 - view.x0)) * box.w;
  if (position < 0 || !(x >= box.x && x <= box.x + box.w)) return;
  ink.strokeStyle = theme.mark;
  ink.setLineDash([2, 3]);
  ink.beginPath(); ink.moveTo(x, box.y); ink.lineTo(x, box.y + box.h); ink.stroke();
  ink.setLineDash([]);
}

function strokeRectangle({ ink, theme }, box, view, scene, index) {
  const sx = box.w / (view.x1 - view.x0), sy = box.h / (view.y1 - view.y0);
  ink.strokeStyle = theme.text;
  ink.lineWidth = 2;
  ink.strokeRect(
    box.x + (scene.x0[index] - view.x0) * sx, box.y + box.h - (scene.y1[index] - view.y0) * sy,
    Math.max(2, (scene.x1[index] - scene.x0[index]) * sx), Math.max(2, (scene.y1[index] - scene.y0[index]) * sy),
  );
}

/** Live bytes over time, with the lines that the chart marks and its peak. */
function drawCurve(canvas, curve, view) {
  const open = openCanvas(canvas), { ink, theme } = open, box = plotBox(open.width, open.height);
  const shown = { x0: view.x0, x1: view.x1, y0: 0, y1: curve.top };
  drawAxes(open, box, shown, curve.axis);
  ink.save();
  ink.beginPath(); ink.rect(box.x, box.y, box.w, box.h); ink.clip();
  const points = stepCurve(curve.at, curve.bytes, shown, curve.top, box.w, box.h);
  ink.beginPath();
  points.forEach(([x, y], place) => (place === 0 ? ink.moveTo(box.x + x, box.y + y) : ink.lineTo(box.x + x, box.y + y)));
  ink.strokeStyle = theme.curve;
  ink.lineWidth = 1.5;
  ink.stroke();
  if (points.length > 0) {
    ink.lineTo(box.x + points[points.length - 1][0], box.y + box.h);
    ink.lineTo(box.x + points[0][0], box.y + box.h);
    ink.globalAlpha = 0.18;
    ink.fillStyle = theme.curve;
    ink.fill();
    ink.globalAlpha = 1;
  }
  ink.lineWidth = 1;
  for (const line of curve.lines) drawMarkedRow(open, box, shown, line);
  drawMarkedPosition(open, box, shown, curve.peakPosition);
  drawPeak(open, box, shown, curve);
  ink.restore();
}

function drawPeak({ ink, theme }, box, view, curve) {
  const x = box.x + ((curve.peakPosition + 0.5 - view.x0) / (view.x1 - view.x0)) * box.w;
  const y = box.y + box.h - (curve.peakBytes / view.y1) * box.h;
  if (curve.peakPosition < 0 || x < box.x || x > box.x + box.w) return;
  ink.fillStyle = theme.mark;
  ink.beginPath(); ink.arc(x, y, 3.5, 0, 2 * Math.PI); ink.fill();
  const left = x > box.x + box.w / 2;
  ink.textAlign = left ? "right" : "left";
  ink.fillText(`peak ${readableBytes(curve.peakBytes)} at ${curve.peakPosition}`, x + (left ? -7 : 7), Math.min(y + 12, box.y + box.h - 6));
}

/** The treemap of what is live at a peak; returns its boxes, for hits. */
function drawTreemap(canvas, tree) {
  const open = openCanvas(canvas), { ink, theme } = open;
  const boxes = treemap(tree, open.width, open.height, RECTANGLES_MAX);
  const tops = new Map();
  for (const box of boxes) {
    if (box.depth === 0) continue;
    const top = box.depth === 1 ? box.label : box.path.split(".")[0];
    if (!tops.has(top)) tops.set(top, tops.size);
    ink.globalAlpha = box.row >= 0 ? 1 : 0.35;
    ink.fillStyle = groupColor(tops.get(top), false, theme.dark);
    ink.fillRect(box.x, box.y, box.w, box.h);
    ink.globalAlpha = 1;
    ink.strokeStyle = theme.plot;
    ink.strokeRect(box.x + 0.5, box.y + 0.5, Math.max(0, box.w - 1), Math.max(0, box.h - 1));
    if (box.w < 40 || box.h < 14) continue;
    ink.fillStyle = box.row >= 0 ? (theme.dark ? "#101418" : "#ffffff") : theme.text;
    ink.textAlign = "left";
    ink.fillText(shortened(`${box.label} ${readableBytes(box.bytes)}`, Math.floor((box.w - 6) / 6)), box.x + 4, box.y + 8);
  }
  return boxes;
}
