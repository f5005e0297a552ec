// The operator graph: every operator as its grid of pieces, coloured by device (paper, figures 13 and 14).
// The cut dimensions as [columns, rows]: the first along the width, all others down.
function gridOf(operator) {
  const degrees = operator.grid.filter((k) => k > 1);
  return [degrees[0] || 1, degrees.slice(1).reduce((a, b) => a * b, 1)];
}
function drawPieces(context, operator, colours, x, y, width, height, numbers) {
  const [columns, rows] = gridOf(operator);
  const w = width / columns, h = height / rows;
  for (let c = 0; c < columns; c++) {
    for (let r = 0; r < rows; r++) {
      const device = operator.processors[c * rows + r];
      context.fillStyle = colours[device];
      context.fillRect(x + c * w, y + r * h, w > 3 ? w - 0.7 : w + 0.05, h > 3 ? h - 0.7 : h + 0.05);
      if (numbers && w >= numbers * 1.7 && h >= numbers) {
        context.fillStyle = "#10151c";
        context.textAlign = "center";
        context.fillText(deviceNumbers[device], x + (c + 0.5) * w, y + (r + 0.5) * h);
      }
    }
  }
  context.textAlign = "left";
}
function short(text, letters) {
  return text.length <= letters ? text : `${text.slice(0, Math.ceil(letters * 0.55) - 1)}…${text.slice(-Math.floor(letters * 0.45))}`;
}
const total = (o) => o.seconds.reduce((a, b) => a + b, 0);

function startGraph(report, colours) {
  const operators = report.operators, canvas = at("graph-canvas"), face = surface(canvas);
  const folds = report.recurrent ? operators.map(() => []) : findFolds(operators), open = new Set();
  const blocks = new Set(folds.flat());
  if (operators.length <= 60) for (const name of blocks) open.add(name);
  at("folding").hidden = !blocks.size;
  const most = Math.max(...operators.map(total), 1e-12);
  let seen, placed, view = { x: 0, y: 0, k: 1 }, found = "", fitted = false;

  function arrange() {
    const visible = operators.filter((o) => o.kind !== "state").length;
    seen = visibleItems(operators, folds, open, at("states").checked || !visible);
    placed = placeItems(operators, seen, report.recurrent, canvas.clientWidth || 900, canvas.clientHeight || 500);
  }
  function fit() {
    const width = canvas.clientWidth, height = canvas.clientHeight;
    const k = Math.min((width - 30) / placed.width, (height - 30) / placed.height, 1.6);
    view = { k, x: (width - placed.width * k) / 2 + 8 * k, y: (height - placed.height * k) / 2 + 14 * k };
    fitted = true;
  }
  function draw() {
    const { width, height } = face.fit(), c = face.context, ink = theme();
    if (!fitted) fit();
    c.translate(view.x, view.y);
    c.scale(view.k, view.k);
    const box = { left: -view.x / view.k, top: -view.y / view.k, right: (width - view.x) / view.k, bottom: (height - view.y) / view.k };
    const picked = chosen.operator >= 0 ? seen.of[chosen.operator] : -1;
    edges(c, ink, picked);
    seen.items.forEach((item, i) => {
      const p = placed.places[i];
      if (p.x > box.right || p.y > box.bottom || p.x + CELL.width < box.left || p.y + CELL.height < box.top) return;
      card(c, ink, item, p, i === picked);
    });
  }
  function edges(c, ink, picked) {
    for (const bright of [false, true]) {
      c.strokeStyle = bright ? ink.accent : ink.soft;
      c.globalAlpha = bright ? 1 : 0.45;
      c.lineWidth = bright ? 2 : 1;
      c.beginPath();
      seen.items.forEach((item, i) => {
        for (const j of item.inputs) if ((i === picked || j === picked) === bright) edge(c, placed.places[j], placed.places[i]);
      });
      c.stroke();
    }
    c.globalAlpha = 1;
  }
  function edge(c, a, b) {
    const x0 = a.x + CELL.width / 2, y0 = a.y + CELL.height, x1 = b.x + CELL.width / 2, y1 = b.y;
    if (a.band === b.band && a.y === b.y) { // a step and the next one of a layer: side by side, or around what is between
      const from = a.x + CELL.width, middle = a.y + CELL.height / 2, far = b.x - from > CELL.right + 4 ? CELL.height * 0.75 : 0;
      c.moveTo(from, middle);
      return c.bezierCurveTo(from + CELL.right, middle + far, b.x - CELL.right, middle + far, b.x, middle);
    }
    c.moveTo(x0, y0);
    if (a.band !== b.band) { // to the next column: along the gap between the columns
      const middle = b.band > a.band ? b.x - 22 : a.x - 22;
      c.bezierCurveTo(x0, y0 + 24, middle, y0 + 24, middle, (y0 + y1) / 2);
      c.bezierCurveTo(middle, y1 - 24, x1, y1 - 24, x1, y1);
    } else if (y1 - y0 > CELL.below + 4 && Math.abs(x1 - x0) < CELL.width / 2) { // around what lies between
      const side = x0 + CELL.width / 2 + 12;
      c.bezierCurveTo(x0, y0 + 20, side, y0 + 10, side, y0 + 40);
      c.lineTo(side, y1 - 40);
      c.bezierCurveTo(side, y1 - 10, x1, y1 - 20, x1, y1);
    } else c.bezierCurveTo(x0, y0 + 18, x1, y1 - 18, x1, y1);
  }
  function card(c, ink, item, p, picked) {
    const first = operators[item.members[0]], folded = item.block !== "";
    const dim = found && !item.members.some((m) => operators[m].name.toLowerCase().includes(found));
    c.globalAlpha = dim ? 0.25 : 1;
    if (folded) { // a pile of cards
      c.fillStyle = ink.faint;
      c.strokeStyle = ink.line;
      c.lineWidth = 1;
      c.beginPath();
      c.roundRect(p.x + 4, p.y + 4, CELL.width, CELL.height, 7);
      c.fill();
      c.stroke();
    }
    c.fillStyle = ink.card;
    c.strokeStyle = picked ? ink.accent : found && !dim ? ink.accent : ink.line;
    c.lineWidth = picked ? 3 : 1.2;
    c.beginPath();
    c.roundRect(p.x, p.y, CELL.width, CELL.height, 7);
    c.fill();
    c.stroke();
    const deep = p.y + (view.k > 0.28 ? 34 : 6), room = p.y + CELL.height - 8 - deep;
    if (folded) strips(c, item, p.x + 6, deep, CELL.width - 12, room);
    else {
      c.font = "9px system-ui, sans-serif";
      drawPieces(c, first, colours, p.x + 6, deep, CELL.width - 12, room, view.k > 0.6 ? 9 : 0);
    }
    const time = item.members.reduce((sum, m) => sum + total(operators[m]), 0);
    c.fillStyle = ink.accent;
    c.fillRect(p.x + 6, p.y + CELL.height - 5, (CELL.width - 12) * Math.min(1, time / most), 2.5);
    if (view.k > 0.28) {
      c.fillStyle = ink.ink;
      c.font = "600 11.5px system-ui, sans-serif";
      c.fillText(short(folded ? `▸ ${item.block}` : first.name, 20), p.x + 7, p.y + 11);
      c.fillStyle = ink.soft;
      c.font = "10px system-ui, sans-serif";
      const cuts = first.configuration.split(" @ ")[0];
      c.fillText(short(folded ? `${item.members.length} operators · ${seconds(time)}` : `${first.kind} · ${cuts}`, 26), p.x + 7, p.y + 25);
    }
    c.globalAlpha = 1;
  }
  function strips(c, item, x, y, width, height) { // the operators of a block that take longest, a row each
    const list = [...item.members].filter((m) => operators[m].kind !== "state").sort((a, b) => total(operators[b]) - total(operators[a])).slice(0, 4);
    list.sort((a, b) => a - b);
    list.forEach((m, r) => {
      const h = height / list.length, devices = operators[m].processors, w = width / devices.length;
      devices.forEach((d, k) => { c.fillStyle = colours[d]; c.fillRect(x + k * w, y + r * h, w > 3 ? w - 0.6 : w + 0.05, h - 1); });
    });
  }
  const redraw = onFrame(draw);
  function hit(e) {
    const edge = canvas.getBoundingClientRect();
    const x = (e.clientX - edge.left - view.x) / view.k, y = (e.clientY - edge.top - view.y) / view.k;
    return seen.items.findIndex((_, i) => { const p = placed.places[i]; return x >= p.x && y >= p.y && x <= p.x + CELL.width && y <= p.y + CELL.height; });
  }
  function zoom(factor, x = canvas.clientWidth / 2, y = canvas.clientHeight / 2) {
    const k = Math.min(4, Math.max(0.02, view.k * factor));
    view = { k, x: x - ((x - view.x) * k) / view.k, y: y - ((y - view.y) * k) / view.k };
    redraw();
  }
  function refold() { arrange(); fitted = false; redraw(); }
  function show(operator) { // into the middle, and large enough to read
    if (folds[operator].some((name) => !open.has(name))) { for (const name of folds[operator]) open.add(name); arrange(); }
    if (seen.of[operator] < 0) { at("states").checked = true; arrange(); }
    const p = placed.places[seen.of[operator]], k = Math.max(view.k, 0.8);
    view = { k, x: canvas.clientWidth / 2 - (p.x + CELL.width / 2) * k, y: canvas.clientHeight / 2 - (p.y + CELL.height / 2) * k };
    redraw();
  }
  const dragging = draggable(canvas, (dx, dy) => { view.x += dx; view.y += dy; redraw(); }, (e) => {
    const i = hit(e);
    if (i < 0) return;
    const item = seen.items[i];
    if (!item.block) choose(item.members[0]);
  });
  canvas.addEventListener("pointermove", (e) => {
    if (dragging()) return;
    const i = hit(e), item = i < 0 ? null : seen.items[i];
    canvas.style.cursor = item ? "pointer" : "grab";
    tip(e, item && (item.block
      ? [item.block, `${item.members.length} operators; double click to open`]
      : [operators[item.members[0]].name, `${operators[item.members[0]].kind}: ${operators[item.members[0]].configuration}`, `${seconds(total(operators[item.members[0]]))} of all devices`]));
  });
  canvas.addEventListener("pointerleave", (e) => tip(e, null));
  canvas.addEventListener("dblclick", (e) => {
    const i = hit(e);
    if (i < 0) return;
    const name = seen.items[i].block || folds[seen.items[i].members[0]].at(-1);
    if (!name) return;
    if (!open.delete(name)) open.add(name);
    refold();
  });
  canvas.addEventListener("wheel", (e) => {
    if (!e.ctrlKey && !e.metaKey) return;
    e.preventDefault();
    const edge = canvas.getBoundingClientRect();
    zoom(Math.exp(-e.deltaY * 0.002), e.clientX - edge.left, e.clientY - edge.top);
  }, { passive: false });
  canvas.addEventListener("keydown", (e) => {
    const step = { ArrowLeft: [60, 0], ArrowRight: [-60, 0], ArrowUp: [0, 60], ArrowDown: [0, -60] }[e.key];
    if (step) { view.x += step[0]; view.y += step[1]; e.preventDefault(); redraw(); }
    if (e.key === "+" || e.key === "-") zoom(e.key === "+" ? 1.3 : 1 / 1.3);
  });
  at("graph-in").onclick = () => zoom(1.35);
  at("graph-out").onclick = () => zoom(1 / 1.35);
  at("graph-fit").onclick = () => { fit(); redraw(); };
  at("fold").onclick = () => { open.clear(); refold(); };
  at("unfold").onclick = () => { for (const name of blocks) open.add(name); refold(); };
  at("states").onchange = refold;
  at("find").oninput = () => {
    found = at("find").value.trim().toLowerCase();
    const exact = operators.findIndex((o) => o.name.toLowerCase() === found);
    if (exact >= 0) { if (chosen.operator !== exact) choose(exact); show(exact); }
    redraw();
  };
  const names = at("names");
  for (const o of operators) names.append(make("option", "", { value: o.name }));
  chosen.listeners.push(redraw);
  arrange();
  return {
    redraw, draw, show,
    place(operator) { // on the screen, for tests and for people who write scripts
      const p = placed.places[seen.of[operator]], edge = canvas.getBoundingClientRect();
      return p && { x: edge.left + view.x + (p.x + CELL.width / 2) * view.k, y: edge.top + view.y + (p.y + 8) * view.k };
    },
  };
}
