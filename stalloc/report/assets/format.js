// Numbers for people, in the words of the rest of stalloc, and elements made from plain text.

const UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];

function formatBytes(bytes) {
  let unit = 0;
  let value = Math.abs(bytes);
  while (value >= 1024 && unit < UNITS.length - 1) {
    value /= 1024;
    ++unit;
  }
  const sign = bytes < 0 ? "−" : "";
  return sign + (unit === 0 ? value.toFixed(0) : value.toFixed(1)) + " " + UNITS[unit];
}

function formatCount(count) {
  return Math.round(count).toLocaleString("en-US");
}

function formatShare(part, whole) {
  return whole > 0 ? ((100 * part) / whole).toFixed(1) + " %" : "–";
}

// Round numbers, at most `most` of them, between `from` and `to`. Bytes go by powers of two.
function ticksBetween(from, to, most, binary) {
  const rough = (to - from) / most;
  if (!(rough > 0)) return [];
  const base = binary ? 2 : 10;
  let step = Math.max(1, base ** Math.floor(Math.log(rough) / Math.log(base)));
  while (step < rough) step *= binary ? 2 : step < rough / 5 ? 10 : step < rough / 2 ? 5 : 2;
  const result = [];
  for (let value = Math.ceil(from / step) * step; value <= to; value += step) result.push(value);
  return result;
}

// makeElement("td", {className: "number"}, "text", child, ...): text is never read as HTML.
function makeElement(tag, properties, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name.includes("-")) element.setAttribute(name, value);
    else element[name] = value;
  }
  element.append(...children);
  return element;
}
