// Colours: devices by node (hue) and place in the node (lightness), categories by hand, layers around the wheel.
const CATEGORY_COLOURS = ["#3f83f8", "#7c5cf2", "#94a3b8", "#e5a50a", "#ea6a25", "#14a38b", "#db3f84", "#9cb42a"];
const PART_COLOURS = { compute: "#3f83f8", "local values": "#94a3b8", synchronise: "#e5a50a", "copy messages": "#5eb5b0", "wait for values": "#14a38b", "wait for weights": "#db3f84", "wait for others": "#00000000" };
function colourTable(machine) {
  const devices = machine.devices;
  const nodes = Math.max(...devices.map((d) => d.node)) + 1;
  const sizes = new Array(nodes).fill(0);
  const place = devices.map((d) => sizes[d.node]++);
  return devices.map((d, i) => {
    const hue = nodes > 1 ? (360 * d.node) / nodes : (360 * i) / devices.length;
    const light = nodes > 1 ? 0.62 + 0.22 * (place[i] / Math.max(1, sizes[d.node] - 1) || 0) : 0.72;
    return `oklch(${light.toFixed(3)} ${(0.15 - 0.03 * (nodes > 1 ? place[i] / Math.max(1, sizes[d.node]) : 0)).toFixed(3)} ${hue.toFixed(1)})`;
  });
}
function layerColours(operators) {
  const layers = [...new Set(operators.map((o) => o.layer || o.kind))];
  const hue = new Map(layers.map((name, i) => [name, (i * 137.508) % 360]));
  return operators.map((o) => `oklch(0.7 ${o.layer ? 0.15 : 0.06} ${hue.get(o.layer || o.kind).toFixed(1)})`);
}
function microColour(micro, count) { // as in taskflow/report/pipeline.py
  return micro ? `hsl(${((count <= 12 ? (360 * (micro - 1)) / count : (micro - 1) * 137.508) % 360).toFixed(0)} 70% 66%)` : "#94a3b8";
}
let inks = null;
function theme() {
  if (!inks) {
    const style = getComputedStyle(document.documentElement);
    inks = {};
    for (const name of ["paper", "card", "ink", "soft", "line", "faint", "accent", "bad"]) inks[name] = style.getPropertyValue(`--${name}`).trim();
  }
  return inks;
}
