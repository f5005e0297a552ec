// The packed data (taskflow/report/columns.py): gzip of [length of the JSON][JSON][columns as byte planes].
async function unpackData(text) {
  const letters = atob(text.trim());
  const packed = new Uint8Array(letters.length);
  for (let i = 0; i < letters.length; i++) packed[i] = letters.charCodeAt(i);
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  const raw = new Uint8Array(await new Response(stream).arrayBuffer());
  const length = new DataView(raw.buffer).getUint32(0, true);
  const value = JSON.parse(new TextDecoder().decode(raw.subarray(4, 4 + length)));
  const columns = {};
  let place = 4 + length;
  for (const spec of value.columns) {
    const numbers = new (spec.delta || spec.bytes > 3 ? Float64Array : Int32Array)(spec.length);
    for (let plane = 0, scale = 1; plane < spec.bytes; plane++, scale *= 256) {
      for (let i = 0; i < spec.length; i++) numbers[i] += raw[place + i] * scale;
      place += spec.length;
    }
    if (spec.delta) for (let i = 1; i < spec.length; i++) numbers[i] += numbers[i - 1];
    columns[spec.name] = numbers;
  }
  return { ...value, rows: columns };
}
