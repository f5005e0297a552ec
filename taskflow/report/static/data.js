// The packed data (taskflow/report/page.py): gzip of [length of the JSON][JSON][columns as byte planes].
let deviceNumbers = []; // of the devices that are shown, and of those with which they exchange messages
async function unpackData(text) {
  const stream = new Blob([fromBase64(text.trim())]).stream().pipeThrough(new DecompressionStream("gzip"));
  const raw = new Uint8Array(await new Response(stream).arrayBuffer());
  const length = new DataView(raw.buffer).getUint32(0, true);
  const value = JSON.parse(new TextDecoder().decode(raw.subarray(4, 4 + length)));
  const rows = {};
  let place = 4 + length;
  for (const spec of value.columns) {
    rows[spec.name] = readColumn(raw, place, spec);
    place += spec.bytes * spec.length;
  }
  const { start, took, idle } = rows; // stored as small differences (taskflow/report/page.py)
  rows.end = start.map((s, i) => s + took[i]);
  if (idle) rows.busy = took.map((t, i) => t - idle[i]);
  deviceNumbers = [...value.machine.devices.map((d) => d.number), ...value.machine.peers];
  return { ...value, rows };
}
function fromBase64(text) {
  if (Uint8Array.fromBase64) return Uint8Array.fromBase64(text); // browsers of 2025
  const letters = atob(text), packed = new Uint8Array(letters.length);
  for (let i = 0; i < letters.length; i++) packed[i] = letters.charCodeAt(i);
  return packed;
}
function readColumn(raw, place, spec) {
  const count = spec.length;
  const numbers = new (spec.largest < 2 ** 31 ? Int32Array : Float64Array)(count);
  for (let plane = 0, scale = 1; plane < spec.bytes; plane++, scale *= 256, place += count) {
    for (let i = 0; i < count; i++) numbers[i] += raw[place + i] * scale;
  }
  if (spec.delta) for (let i = 1; i < count; i++) numbers[i] += numbers[i - 1];
  return numbers;
}
