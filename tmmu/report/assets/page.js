"use strict";
// The page: one state, the charts of each plan, search, panel, theme.

const CONTENTS = JSON.parse(document.getElementById("contents").textContent);
const PLANS = CONTENTS.plans.map(planCharts);
const STATE = { chosen: null, opener: null };
const PANEL = document.getElementById("panel"), TIP = document.getElementById("tip"), FOUND = document.getElementById("found");
const MEASURED = { rectangles: 0, milliseconds: 0 };
window.tmmuReport = { plans: PLANS, state: STATE, measured: MEASURED, openBuffer, drawAll };

/** What is shown is `current` ("true"), or waits for the next frame ("false"): `data-drawn` of the root. */
function tellDrawn(current) {
  document.documentElement.dataset.drawn = String(current);
}

let pending = 0;
function redraw() {
  tellDrawn(false);
  if (pending === 0) pending = requestAnimationFrame(() => { pending = 0; drawAll(); });
}

function drawAll() {
  const began = performance.now();
  MEASURED.rectangles = 0;
  for (const one of PLANS) one.draw();
  MEASURED.milliseconds = performance.now() - began;
  tellDrawn(true);
}

/** `draw`, run only when what `state` says of it has changed: the rest of the page is redrawn at every move. */
function onChange(state, draw) {
  let before = null;
  return () => {
    const now = JSON.stringify([state(), isDark(), window.devicePixelRatio]);
    if (now !== before) draw();
    before = now;
  };
}

function isDark() {
  return getComputedStyle(document.documentElement).getPropertyValue("--dark").trim() === "1";
}

function canvasOf(kind, label, focusable) {
  const attributes = { class: kind, "aria-label": label, role: focusable ? "application" : "img" };
  return element("canvas", "The tables below say the same.", focusable ? { ...attributes, tabindex: "0" } : attributes);
}

function titled(title, ...content) {
  return element("figure", [element("figcaption", title), ...content]);
}

/** Builds the charts of one plan in its section, and `one.draw`. */
function buildPlan(one) {
  const holder = document.querySelector(`section[data-plan="${one.index}"] .charts`), { plan } = one;
  one.shown = 0;
  const chart = () => one.slabs[one.shown];
  const draws = [];
  if (one.slabs.length > 0) buildMap(one, holder, chart, draws);
  if (one.eager) buildEager(one, holder, draws);
  if (one.slabs.length > 0 || one.eager) buildTreemap(one, holder, chart, draws);
  if (one.ring) buildRing(one, holder, draws);
  one.draw = () => draws.forEach((draw) => draw());
  holder.parentElement.addEventListener("click", (event) => {
    const button = event.target.closest("button.open");
    if (button !== null) openBuffer(one, Number(button.dataset.row), button);
  });
  if (plan.buffers.id.length === 0) holder.append(element("p", "The plan places no buffer."));
}

function buildMap(one, holder, chart, draws) {
  const { plan } = one, legend = element("ul", [], { class: "legend" });
  const select = element("select", one.slabs.map(({ slab }, number) => element("option", `${slab.name} (${slab.segment}), ${readableBytes(slab.bytes)}`, { value: number })), { "aria-label": "Slab" });
  const map = canvasOf("map", "Memory map: positions by addresses. Arrows pan, plus and minus zoom, 0 shows all, n and p go through the buffers, Enter opens one.", true);
  const curve = canvasOf("curve", `Live bytes of the plan over positions, peak ${readableBytes(one.slabs[0].slab.peakBytes)}`, false);
  const labelOf = (row) => plan.texts[plan.buffers.name[row]] || plan.texts[plan.buffers.op[row]] || `buffer ${plan.buffers.id[row]}`;
  for (const slab of one.slabs) {
    slab.colorOf = (row, dark) => groupColor(one.grouping.groups[row], one.grouping.bySize, dark);
    slab.labelOf = labelOf;
  }
  select.addEventListener("change", () => { one.shown = Number(select.value); redraw(); });
  one.showSlab = (number) => { one.shown = number; select.value = String(number); };
  holder.append(titled("Memory map: time by address", element("label", ["Slab ", select]), legend, map), titled("Live bytes inside the plan, by position", curve));
  makeMovable(map, chart, redraw, (point) => openAt(one, chart(), point, map));
  makeMovable(curve, chart, redraw, null, true);
  addTips(map, chart, (row) => tipLines(plan, row));
  map.addEventListener("keydown", (event) => stepThrough(event, one, chart(), map));
  const drawLegend = () => {
    const dark = isDark();
    const used = new Set(one.grouping.groups);
    legend.replaceChildren(...one.grouping.labels.flatMap((label, number) => {
      if (!used.has(number)) return [];
      const swatch = element("span", "", { class: "swatch" });
      swatch.style.background = groupColor(number, one.grouping.bySize, dark);
      return [element("li", [swatch, element("bdi", shortened(label, 60))])];
    }));
  };
  draws.push(() => { MEASURED.rectangles += drawMap(map, chart(), STATE.chosen); }, () => drawCurve(curve, chart().curve, chart().view));
  draws.push(onChange(() => one.grouping.labels, drawLegend));
}

function buildEager(one, holder, draws) {
  const curve = canvasOf("curve", `Live bytes of the model as it is over eager's calls, peak ${readableBytes(one.eager.peakBytes)}`, true);
  holder.append(titled("Live bytes when the model is run as it is, by call of eager", curve));
  makeMovable(curve, () => one.eager, redraw, null, true);
  draws.push(() => drawCurve(curve, one.eager, one.eager.view));
}

function buildTreemap(one, holder, chart, draws) {
  const names = [...(one.slabs.length > 0 ? ["inside the plan"] : []), ...(one.eager ? ["as it is"] : [])];
  const select = element("select", names.map((name) => element("option", name, { value: name })), { "aria-label": "Peak of which run" });
  const canvas = canvasOf("treemap", "What is live at the peak, by module; the table of buffers says the same.", false);
  let boxes = [];
  const planned = () => select.value === "inside the plan";
  select.addEventListener("change", redraw);
  holder.append(titled("What is live at the peak, by module", element("label", ["Run ", select]), canvas));
  const tree = () => (planned() ? peakTree(one.plan, chart().slab) : eagerTree(one.plan));
  draws.push(onChange(() => [select.value, one.shown, canvas.clientWidth, canvas.clientHeight], () => { boxes = drawTreemap(canvas, tree()); }));
  const boxAt = (event) => {
    const edge = canvas.getBoundingClientRect(), x = event.clientX - edge.left, y = event.clientY - edge.top;
    return boxes.findLast((box) => x >= box.x && x < box.x + box.w && y >= box.y && y < box.y + box.h);
  };
  canvas.addEventListener("pointermove", (event) => {
    const box = boxAt(event);
    if (box === undefined) { TIP.hidden = true; return; }
    const holderText = !planned() && box.row >= 0 ? one.plan.texts[one.plan.eager.live.holder[box.row]] : "";
    showTip(TIP, [box.path || "(no module)", box.row >= 0 ? box.label : "", readableBytes(box.bytes), holderText && `held by ${holderText}`], event.clientX, event.clientY);
  });
  canvas.addEventListener("pointerleave", () => { TIP.hidden = true; });
  canvas.addEventListener("click", (event) => {
    const box = boxAt(event);
    if (planned() && box !== undefined && box.row >= 0) openBuffer(one, box.row, canvas);
  });
}

function buildRing(one, holder, draws) {
  const { ring } = one.plan;
  const canvas = canvasOf("map ring", "The ring: blocks at their addresses over positions; when ops need them, and when copies bring them.", true);
  const legend = element("p", "Blue: ops read the block. Orange: from the copy's issue to the first op that needs it. Grey: resident.", { class: "note" });
  holder.append(titled(`The ring: policy ${ring.policy}, ${readableBytes(ring.bytes)} of a budget of ${readableBytes(ring.capacity)}`, legend, canvas));
  makeMovable(canvas, () => one.ring, redraw, null);
  addTips(canvas, () => one.ring, (row) => [
    ring.blocks.name[ring.bars.block[row]], ring.bars.kind[row], `positions [${ring.bars.start[row]}, ${ring.bars.end[row]})`,
    `address ${grouped(ring.blocks.address[ring.bars.block[row]])}`, exactBytes(ring.blocks.bytes[ring.bars.block[row]]),
  ]);
  draws.push(() => drawMap(canvas, one.ring, null));
}

function rowAt(chart, point) {
  const index = rectangleAt(chart.scene, point.x, point.y, 4 * point.stepX, 4 * point.stepY);
  return index < 0 ? -1 : chart.scene.rows[index];
}

function addTips(canvas, chart, lines) {
  canvas.addEventListener("pointermove", (event) => {
    const row = event.buttons === 0 ? rowAt(chart(), chartPoint(canvas, event, chart().view)) : -1;
    if (row < 0) TIP.hidden = true; else showTip(TIP, lines(row), event.clientX, event.clientY);
  });
  canvas.addEventListener("pointerleave", () => { TIP.hidden = true; });
}

function openAt(one, chart, point, opener) {
  const row = rowAt(chart, point);
  if (row >= 0) openBuffer(one, row, opener);
}

/** Opens a buffer's panel and marks it on its map; `opener` has the focus again when it closes. */
function openBuffer(one, row, opener = document.activeElement) {
  const number = one.slabs.findIndex((chart) => chart.slab.arenas.includes(one.plan.buffers.arena[row]));
  if (number >= 0) one.showSlab(number);
  STATE.chosen = { chart: one.slabs[number]?.key, row };
  STATE.opener = opener;
  openPanel(PANEL, one.plan, row, closePanel);
  TIP.hidden = true;
  redraw();
}

function closePanel() {
  if (PANEL.hidden) return;
  PANEL.hidden = true;
  STATE.opener?.focus?.({ preventScroll: true });
  redraw();
}

/** n and p choose the next and the buffer before, by birth; Enter opens the chosen one. */
function stepThrough(event, one, chart, canvas) {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key === "Enter" && STATE.chosen !== null) { openBuffer(one, STATE.chosen.row, canvas); return; }
  if (event.key !== "n" && event.key !== "p") return;
  const order = chart.scene.byX, rows = chart.scene.rows;
  const before = STATE.chosen === null ? -1 : order.findIndex((index) => rows[index] === STATE.chosen.row);
  const place = event.key === "n" ? before + 1 : before < 0 ? order.length - 1 : before - 1;
  const row = rows[order[(place + order.length) % order.length]];
  STATE.chosen = { chart: chart.key, row };
  FOUND.textContent = tipLines(one.plan, row).filter((line) => line !== "").map((line) => shortened(line, 120)).join(", ");
  redraw();
}

const HITS_MAX = 50;
function search() {
  const query = document.getElementById("search").value, list = document.getElementById("hits");
  const found = PLANS.map((one) => searchRows(one.plan, query));
  const count = found.reduce((sum, rows) => sum + rows.length, 0);
  PLANS.forEach((one, index) => {
    const hits = query.trim() === "" ? null : new Set(found[index]);
    for (const chart of one.slabs) chart.hits = hits && subScene(chart.scene, hits);
  });
  FOUND.textContent = query.trim() === "" ? "" : `${count} buffer${count === 1 ? "" : "s"} found`;
  list.replaceChildren(...PLANS.flatMap((one, index) => found[index].slice(0, HITS_MAX).map((row) => hitItem(one, row))));
  list.hidden = count === 0;
  redraw();
}

function hitItem(one, row) {
  const b = one.plan.buffers, label = [b.name, b.op, b.module, b.source].map((column) => one.plan.texts[column[row]]).filter((text) => text !== "");
  const text = `${PLANS.length > 1 ? `plan ${one.index + 1}: ` : ""}${b.id[row]} ${label.join("  ")}  ${readableBytes(b.bytes[row])}`;
  const button = element("button", [element("bdi", shortened(text, 160))], { type: "button" });
  button.addEventListener("click", () => openBuffer(one, row, document.getElementById("search")));
  return element("li", [button]);
}

function paint() {
  for (const one of PLANS) one.grouping = groupingOf(one.plan, one.bytes, document.getElementById("colour").value);
  redraw();
}

function setTheme(name) {
  document.documentElement.dataset.theme = name;
  redraw();
}

function addListeners() {
  document.getElementById("search").addEventListener("input", search);
  document.getElementById("colour").addEventListener("change", paint);
  document.getElementById("theme").addEventListener("click", () => {
    setTheme(isDark() ? "light" : "dark");
  });
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape") closePanel();
    const typing = /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName);
    if (event.key === "/" && !typing) { event.preventDefault(); document.getElementById("search").focus(); }
  });
  window.addEventListener("resize", redraw);
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  let before = "";
  window.addEventListener("beforeprint", () => {
    before = document.documentElement.dataset.theme ?? "";
    document.documentElement.dataset.theme = "light";
    document.querySelectorAll("details").forEach((details) => { details.open = true; });
    drawAll();
  });
  window.addEventListener("afterprint", () => {
    if (before === "") delete document.documentElement.dataset.theme; else document.documentElement.dataset.theme = before;
    redraw();
  });
}

if (PLANS.length > 1) shareAxes(PLANS);
PLANS.forEach(buildPlan);
addListeners();
paint();
