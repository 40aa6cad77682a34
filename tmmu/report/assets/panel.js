"use strict";
// The panel of one buffer and the tooltip: texts are put in as texts, never as markup.

/** An element with a text or children. */
function element(tag, content, attributes = {}) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  if (Array.isArray(content)) made.append(...content); else if (content !== null) made.textContent = content;
  return made;
}

/** All that the plan says of a buffer, as [label, text] rows. */
function buffersFacts(plan, row) {
  const b = plan.buffers, text = (column) => plan.texts[b[column][row]];
  const windows = b.windows[row].map((number) => plan.texts[number]);
  const at = (position) => `${position}${plan.positions.op.length > 0 ? ` ${plan.texts[plan.positions.op[position]]}` : ""}`;
  const positions = (column) => (b[column][row].length === 0 ? "none" : listed(b[column][row].map(at), 12));
  const facts = [
    ["buffer", String(b.id[row])],
    ["name", text("name")],
    ["role", text("role")],
    ["values", windows.length === 0 ? "" : listed(windows, 12)],
    ["dtype", text("dtype")],
    ["bytes", b.size[row] === null ? "" : exactBytes(b.size[row])],
    ["bytes, padded", exactBytes(b.bytes[row])],
    ["span", `[${b.birth[row]}, ${b.death[row]})`],
    ["arena", plan.arenas.name[b.arena[row]]],
    ["slot", b.slotRow[row] < 0 ? "" : String(plan.slots.slot[b.slotRow[row]])],
    ["address", slotAddress(plan.slots, b.slotRow[row])],
    ["offset", grouped(b.offset[row])],
    ["takes over", b.takesOver[row] === null ? "" : `buffer ${b.takesOver[row]}`],
    ["made by", text("op")],
    ["module", text("module")],
    ["source", text("source")],
  ];
  const touched = plan.positions.op.length > 0 ? [["written at", positions("writers")], ["read at", positions("readers")]] : [];
  return [...facts, ...touched].filter(([, value]) => value !== "");
}

/** Shows the panel of a buffer; the focus goes there and comes back when it closes. */
function openPanel(panel, plan, row, onClose) {
  const title = plan.texts[plan.buffers.name[row]] || plan.texts[plan.buffers.op[row]] || `buffer ${plan.buffers.id[row]}`;
  const close = element("button", "Close (Esc)", { type: "button", class: "close" });
  close.addEventListener("click", onClose);
  const list = element("dl", []);
  for (const [label, value] of buffersFacts(plan, row)) {
    list.append(element("dt", label), element("dd", [element("bdi", value)], { "data-fact": label }));
  }
  panel.replaceChildren(close, element("h2", [element("bdi", shortened(title, 200))]), list);
  panel.hidden = false;
  panel.focus({ preventScroll: true });
}

/** The tooltip at a point of the window, kept inside it. */
function showTip(tip, lines, x, y) {
  tip.replaceChildren(...lines.filter((line) => line !== "").map((line) => element("div", [element("bdi", shortened(line, 120))])));
  tip.hidden = false;
  tip.style.left = `${Math.min(x + 14, window.innerWidth - tip.offsetWidth - 8)}px`;
  tip.style.top = `${Math.min(y + 14, window.innerHeight - tip.offsetHeight - 8)}px`;
}

/** The tooltip's lines of a buffer. */
function tipLines(plan, row) {
  const b = plan.buffers, text = (column) => plan.texts[b[column][row]];
  return [
    `${b.id[row]}${text("name") && ` ${text("name")}`}`,
    `${text("role")}${b.windows[row].length > 0 ? ` ${plan.texts[b.windows[row][0]]}` : ""}`,
    exactBytes(b.bytes[row]),
    `span [${b.birth[row]}, ${b.death[row]})  offset ${grouped(b.offset[row])}`,
    text("op"), text("module"), text("source"),
  ];
}
