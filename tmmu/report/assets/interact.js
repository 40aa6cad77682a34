"use strict";
// Hands on a canvas: wheel, drag, keys. `chart` gives {bounds, view}; changes are told by `redraw`.

const KEY_PANS = { ArrowLeft: [-0.15, 0], ArrowRight: [0.15, 0], ArrowUp: [0, 0.15], ArrowDown: [0, -0.15] };
const KEY_ZOOMS = { "+": 0.7, "=": 0.7, "-": 1 / 0.7, _: 1 / 0.7 };

/** The point of a mouse event in the chart's units, and how far a pixel reaches there. */
function chartPoint(canvas, event, view) {
  const box = plotBox(canvas.clientWidth, canvas.clientHeight), edge = canvas.getBoundingClientRect();
  const stepX = (view.x1 - view.x0) / box.w, stepY = (view.y1 - view.y0) / box.h;
  return {
    x: view.x0 + (event.clientX - edge.left - box.x) * stepX, y: view.y1 - (event.clientY - edge.top - box.y) * stepY,
    stepX, stepY,
  };
}

/** Wheel zooms around the pointer (Shift: time alone, Alt: addresses alone), dragging pans, double click resets.
 * With `timeOnly` addresses stay as they are. */
function makeMovable(canvas, chart, redraw, onClick, timeOnly = false) {
  let drag = null;
  canvas.addEventListener("wheel", (event) => {
    event.preventDefault();
    const one = chart(), point = chartPoint(canvas, event, one.view), factor = 1.0018 ** (event.deltaY || event.deltaX);
    one.view = zoomed(one.view, one.bounds, event.altKey ? 1 : factor, event.shiftKey || timeOnly ? 1 : factor, point.x, point.y);
    redraw();
  }, { passive: false });
  canvas.addEventListener("pointerdown", (event) => {
    drag = { x: event.clientX, y: event.clientY, moved: false };
    canvas.setPointerCapture(event.pointerId);
  });
  canvas.addEventListener("pointermove", (event) => {
    if (drag === null) return;
    const one = chart(), box = plotBox(canvas.clientWidth, canvas.clientHeight);
    if (!drag.moved && Math.hypot(event.clientX - drag.x, event.clientY - drag.y) < 4) return;
    one.view = panned(one.view, one.bounds, (drag.x - event.clientX) / box.w, timeOnly ? 0 : (event.clientY - drag.y) / box.h);
    drag = { x: event.clientX, y: event.clientY, moved: true };
    redraw();
  });
  canvas.addEventListener("pointerup", (event) => {
    if (drag !== null && !drag.moved && onClick) onClick(chartPoint(canvas, event, chart().view));
    drag = null;
  });
  canvas.addEventListener("pointercancel", () => { drag = null; });
  canvas.addEventListener("dblclick", () => { chart().view = { ...chart().bounds }; redraw(); });
  canvas.addEventListener("keydown", (event) => { if (moveByKey(event, chart())) { event.preventDefault(); redraw(); } });
}

/** Arrows pan, + and - zoom around the middle (Shift with arrows: a whole view), 0 shows all. */
function moveByKey(event, one) {
  if (event.ctrlKey || event.metaKey || event.altKey) return false;
  const { view, bounds } = one, pan = KEY_PANS[event.key], zoom = KEY_ZOOMS[event.key];
  if (pan) one.view = panned(view, bounds, pan[0] * (event.shiftKey ? 6 : 1), pan[1] * (event.shiftKey ? 6 : 1));
  else if (zoom) one.view = zoomed(view, bounds, zoom, zoom, (view.x0 + view.x1) / 2, (view.y0 + view.y1) / 2);
  else if (event.key === "0" || event.key === "Home") one.view = { ...bounds };
  else return false;
  return true;
}
