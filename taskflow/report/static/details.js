// The panel beside the graph: everything about the chosen operator.
const CLASSES = { S: "sample", A: "attribute", P: "parameter", R: "reduction" };
function evenCuts(size, degree) {
  const whole = Math.floor(size / degree), extra = size % degree;
  return Array.from({ length: degree + 1 }, (_, i) => i * whole + Math.min(i, extra));
}
function pieceText(operator, piece) {
  const place = new Array(operator.dims.length);
  let left = piece;
  for (let i = operator.dims.length - 1; i >= 0; i--) { place[i] = left % operator.dims[i][3]; left = Math.floor(left / operator.dims[i][3]); }
  return operator.dims.map(([name, size, , degree], i) => {
    if (degree === 1) return "";
    const cuts = operator.cuts ? operator.cuts[i] : evenCuts(size, degree);
    return `${name} ${cuts[place[i]]}:${cuts[place[i] + 1]}`;
  }).filter(Boolean).join(", ") || "whole";
}
function pieceNumber(operator, k) { // of the k-th that is shown
  return operator.pieces ? operator.pieces[k] : k;
}
function startDetails(report, colours, show, zoomTo) {
  const panel = at("details"), operators = report.operators;
  const readers = operators.map(() => []);
  operators.forEach((o, i) => o.inputs.forEach((j) => readers[j].push(i)));

  function words(head, rows) {
    const table = make("table", "", { class: "words" }), top = table.createTHead().insertRow(), body = table.createTBody();
    for (const name of head) top.append(make("th", name, { scope: "col" }));
    for (const row of rows) {
      const line = body.insertRow();
      for (const cell of row) line.append(make("td", String(cell)));
    }
    return table;
  }
  function buttons(list) {
    const box = make("div", "", { class: "links" });
    for (const i of list.slice(0, 30)) {
      const button = make("button", operators[i].name, { type: "button" });
      button.onclick = () => { choose(i); show(i); };
      box.append(button);
    }
    if (list.length > 30) box.append(make("span", `and ${list.length - 30} more`));
    return box;
  }
  function nothing() {
    const kinds = new Map();
    for (const o of operators) kinds.set(o.configuration.split(" @ ")[0], (kinds.get(o.configuration.split(" @ ")[0]) || 0) + 1);
    const common = [...kinds].sort((a, b) => b[1] - a[1]).slice(0, 8);
    const longest = operators.map((_, i) => i).sort((a, b) => total(operators[b]) - total(operators[a])).slice(0, 8);
    panel.replaceChildren(
      make("h3", "Choose an operator"),
      make("p", "Click one in the graph, the timeline or the table, or write its name."),
      make("p", "Those that take longest:"), buttons(longest),
      make("p", "Cuts used most:"), words(["cut", "operators"], common),
    );
  }
  function fill(i) {
    for (const row of document.querySelectorAll("tr[data-operator].on")) row.classList.remove("on");
    if (i < 0) return nothing();
    document.querySelector(`tr[data-operator="${i}"]`)?.classList.add("on");
    const o = operators[i], kinds = report.categories;
    const canvas = make("canvas", "", { role: "img", "aria-label": `pieces of ${o.name} by device`, id: "piece-canvas" });
    const times = kinds.map((name, k) => [name, o.tasks[k], seconds(o.seconds[k]), o.bytes[k] ? bytes(o.bytes[k]) : ""]).filter((row) => row[1]);
    const zoom = make("button", "Show in the timeline", { type: "button" }), clear = make("button", "Clear", { type: "button" });
    zoom.onclick = () => zoomTo(i);
    clear.onclick = () => choose(i);
    const pieces = make("details");
    pieces.append(make("summary", `${o.processors.length} ${o.processors.length === 1 ? "piece" : "pieces"}`));
    pieces.append(words(["piece", "of the iteration space", "device"], o.processors.map((d, k) => [pieceNumber(o, k), pieceText(o, pieceNumber(o, k)), deviceNumbers[d]])));
    panel.replaceChildren(
      make("h3", o.name),
      make("p", `${o.kind}: ${o.configuration}`, { id: "configuration" }),
      canvas,
      words(["dimension", "size", "class", "pieces"], o.dims.map(([name, size, soap, degree]) => [name, size, CLASSES[soap], degree])),
      make("p", `Devices: ${ranges(o.processors.map((d) => deviceNumbers[d]))}. Longest task: forward ${seconds(o.piece_seconds[0])}, backward ${seconds(o.piece_seconds[1])}.`),
      words(["tasks", "number", "time of all", "moved"], times),
      make("p", o.layer ? `Weights: ${grouped.format(o.parameters)} (${bytes(o.parameter_bytes)}), layer ${o.layer}, synchronised ${o.sync} (how sums travel / where weights are updated).` : "No weights."),
      o.sums ? make("p", `Partial values of several devices, summed by ${o.sums === "collective" ? "an all-reduce" : "an owner"}.`) : "",
      make("p", `Output: ${o.outputs.join("; ")}`),
      pieces, make("p", "Reads from:"), buttons(o.inputs), make("p", "Is read by:"), buttons([...new Set(readers[i])]), zoom, clear,
    );
    const face = surface(canvas), { width, height } = face.fit();
    face.context.font = "11px system-ui, sans-serif";
    drawPieces(face.context, o, colours, 0, 0, width, height, 10);
    const [columns, rows] = gridOf(o);
    canvas.onpointermove = (e) => {
      const c = Math.min(columns - 1, Math.floor((e.offsetX / canvas.clientWidth) * columns)), r = Math.min(rows - 1, Math.floor((e.offsetY / canvas.clientHeight) * rows));
      const k = c * rows + r, piece = pieceNumber(o, k);
      tip(e, [`piece ${piece}: ${pieceText(o, piece)}`, `device ${deviceNumbers[o.processors[k]]}`]);
    };
    canvas.onpointerleave = (e) => tip(e, null);
  }
  chosen.listeners.push(fill);
  fill(-1);
}
