// Figures as people read them: the same rules as taskflow/report/units.py.
const grouped = new Intl.NumberFormat("en-US");
function three(x) {
  const digits = x >= 99.95 ? 0 : x >= 9.995 ? 1 : 2;
  return x >= 1000 ? grouped.format(Math.round(x)) : x.toFixed(digits);
}
function scaled(x, units, least) {
  for (const [factor, unit] of units) if (x >= 0.9995 * factor) return `${three(x / factor)} ${unit}`;
  return least(x);
}
function seconds(x) {
  if (!x) return "0";
  return scaled(x, [[1, "s"], [1e-3, "ms"], [1e-6, "µs"]], (y) => `${three(y / 1e-9)} ns`);
}
function bytes(x) {
  return scaled(x, [[1e12, "TB"], [1e9, "GB"], [1e6, "MB"], [1e3, "kB"]], (y) => (y ? `${y.toFixed(0)} B` : "0"));
}
function percent(x) {
  return x >= 0.0995 || !x ? `${(100 * x).toFixed(0)} %` : `${(100 * x).toFixed(1)} %`;
}
// An element with text in it, never HTML: names come from the user's model.
function make(tag, text = "", attributes = {}) {
  const element = document.createElement(tag);
  element.textContent = text;
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  return element;
}
const at = (id) => document.getElementById(id);
const ticks = (low, high, most) => {
  const raw = (high - low) / Math.max(1, most);
  const power = 10 ** Math.floor(Math.log10(raw || 1));
  const step = [1, 2, 5, 10].map((k) => k * power).find((k) => k >= raw) || power;
  const found = [];
  for (let k = Math.ceil(low / step); k * step <= high * (1 + 1e-12); k++) found.push(k * step);
  return found;
};
function ranges(numbers) {
  const sorted = [...new Set(numbers)].sort((a, b) => a - b);
  const parts = [];
  for (let i = 0; i < sorted.length; ) {
    let j = i;
    while (sorted[j + 1] === sorted[j] + 1) j++;
    parts.push(i === j ? `${sorted[i]}` : `${sorted[i]}–${sorted[j]}`);
    i = j + 1;
  }
  return parts.join(", ");
}
