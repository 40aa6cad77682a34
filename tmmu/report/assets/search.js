"use strict";
// Which buffers a text finds. No DOM: node imports this.

const SEARCHED = ["name", "op", "module", "source", "role", "dtype"];

/** Rows whose texts hold the query, whatever its case; those whose id it is, written as 12 or b12, come first. */
function searchRows(table, query) {
  const sought = query.trim().toLowerCase();
  if (sought === "") return [];
  const holds = table.texts.map((text) => text.toLowerCase().includes(sought));
  const id = /^b?\d+$/.test(sought) ? Number(sought.replace("b", "")) : -1;
  const exact = [], rows = [];
  for (let row = 0; row < table.buffers.id.length; row++) {
    if (table.buffers.id[row] === id) exact.push(row);
    else if (SEARCHED.some((column) => holds[table.buffers[column][row]])) rows.push(row);
  }
  return [...exact, ...rows];
}

if (typeof module !== "undefined") {
  module.exports = { searchRows };
}
