"use strict";
// Which buffers have one colour, and which colour. No DOM: node imports this.

const GROUPS_MAX = 12;
const LIGHT = ["#2f6fb0", "#d9822b", "#3a8f5a", "#b5495b", "#7b61b5", "#8a6d3b", "#c45ba0", "#5f7a1f", "#1f8a94", "#a8581c", "#5c6bc0", "#8b8b8b"];
const DARK = ["#6aa9e8", "#f2a65a", "#6fca91", "#ef8796", "#b29df0", "#cfae74", "#ee97cf", "#a9c95b", "#5fd0da", "#e39464", "#9aa7f5", "#a5a5a5"];

/** For each row the number of its group, and the groups' labels, most bytes first; the last may be of all others. */
function groupRows(keys, bytes) {
  const sums = new Map();
  keys.forEach((key, row) => sums.set(key, (sums.get(key) ?? 0) + bytes[row]));
  const order = [...sums.keys()].sort((a, b) => sums.get(b) - sums.get(a) || (a < b ? -1 : a > b ? 1 : 0));
  const whole = order.length <= GROUPS_MAX;
  const labels = whole ? order : [...order.slice(0, GROUPS_MAX - 1), "others"];
  const numbers = new Map(order.map((key, place) => [key, Math.min(place, labels.length - 1)]));
  return { labels, groups: keys.map((key) => numbers.get(key)) };
}

/** Module paths cut at the depth that tells most of them apart in at most as many groups as there are colours. */
function moduleKeys(modules) {
  const distinct = [...new Set(modules)];
  let cut = distinct.map((path) => path.split(".").slice(0, 1).join("."));
  for (let depth = 2; depth <= 8; depth++) {
    const deeper = distinct.map((path) => path.split(".").slice(0, depth).join("."));
    if (new Set(deeper).size > GROUPS_MAX) break;
    cut = deeper;
  }
  const key = new Map(distinct.map((path, place) => [path, cut[place] || "(none)"]));
  return modules.map((path) => key.get(path));
}

/** The class of a size: powers of 16, the largest class last. */
function sizeClass(bytes) {
  return bytes < 1 ? 0 : Math.min(GROUPS_MAX - 1, 1 + Math.floor(Math.log2(bytes) / 4 + 1e-9));
}

function sizeLabel(number, readable) {
  if (number === 0) return "0 B";
  const from = readable(2 ** (4 * (number - 1)));
  return number === GROUPS_MAX - 1 ? `from ${from}` : `${from} to ${readable(2 ** (4 * number))}`;
}

/** The colour of a group; sizes go from pale to strong. */
function groupColor(number, bySize, dark) {
  if (!bySize) return (dark ? DARK : LIGHT)[number % GROUPS_MAX];
  const share = number / (GROUPS_MAX - 1);
  return dark ? `hsl(205 70% ${24 + 56 * share}%)` : `hsl(212 60% ${86 - 58 * share}%)`;
}

if (typeof module !== "undefined") {
  module.exports = { GROUPS_MAX, groupRows, moduleKeys, sizeClass, sizeLabel, groupColor };
}
