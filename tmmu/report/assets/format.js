"use strict";
// Numbers and texts for people. A whole number from 2^53 on comes as a text of its digits. No DOM: node imports this.

const UNITS = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];

/** The number as a double, for places on the screen. */
function toNumber(number) {
  return typeof number === "string" ? Number(number) : number;
}

/** All digits, in groups of three. */
function grouped(number) {
  return BigInt(number).toString().replace(/\B(?=(\d{3})+$)/g, "\u202f");
}

/** Bytes in binary units with one decimal, as the command line prints them. */
function readableBytes(number) {
  let scaled = toNumber(number);
  if (Math.abs(scaled) < 1024) return `${Math.round(scaled)} B`;
  for (const unit of UNITS) {
    scaled /= 1024;
    if (Math.abs(scaled) < 1023.95 || unit === "EiB") return `${scaled.toFixed(1)} ${unit}`;
  }
  return "";
}

/** All bytes, and in units where that says more. */
function exactBytes(number) {
  const digits = `${grouped(number)} B`;
  return Math.abs(toNumber(number)) < 1024 ? digits : `${digits} (${readableBytes(number)})`;
}

/** The text for one line of at most `limit` characters: directions kept apart, control characters as spaces. */
function shortened(text, limit) {
  const points = Array.from(text.slice(0, 2 * limit + 2).replace(/[\u0000-\u001f\u007f-\u009f\u200e\u200f\u202a-\u202e\u2066-\u2069]/g, " "));
  return points.length <= limit && text.length <= 2 * limit ? points.join("") : `${points.slice(0, limit - 1).join("")}…`;
}

/** Some of many positions, as a text. */
function listed(numbers, limit) {
  const head = numbers.slice(0, limit).join(", ");
  return numbers.length > limit ? `${head} and ${numbers.length - limit} more` : head;
}

/** The address of a byte of a slot: the slot's, which is hexadecimal. */
function slotAddress(slots, row) {
  return row < 0 ? "" : slots.address[row];
}

if (typeof module !== "undefined") {
  module.exports = { toNumber, grouped, readableBytes, exactBytes, shortened, listed, slotAddress };
}
