// The timeline of devices and links: draws only what is visible and at least a pixel wide.
const AXIS = 22;
let GUTTER = 178; // the labels' width; less on narrow screens
function startTimeline(report, showOperator) {
  const { rows, machine, operators } = report, tick = report.tick_seconds, devices = machine.devices.length;
  const step = Math.max(1, report.plan.seconds / tick), lanes = buildLanes(report), layers = layerColours(operators);
  const canvas = at("timeline-canvas"), face = surface(canvas), over = surface(at("overview"));
  let view = { from: 0, to: step, top: 0 }, shown = [], only = null, height = 18, hover = -1; // only(lane): rows that are chosen
  const pipeline = report.pipeline, micros = rows.micro.reduce((a, b) => Math.max(a, b), 0);
  const stages = new Map((pipeline ? pipeline.lanes : []).flatMap((lane) => lane.devices.map((d) => [d, ` · stage ${lane.stages}`])));
  const labels = [...machine.devices.map((d) => `device ${d.number}${stages.get(d.number) || ""}`), ...machine.links.map((k) => k.name)];
  const use = [...machine.devices.map((d) => 1 - ["wait for values", "wait for weights", "wait for others"].reduce((s, k) => s + d.split[k], 0) / report.plan.seconds),
    ...machine.links.map((k) => k.busy_seconds / report.plan.seconds)];

  function chooseLanes() {
    const what = at("lanes").value, list = [];
    const node = (lane) => (lane < devices ? machine.devices[lane].node : Number((/^node(\d+)\./.exec(labels[lane]) || [0, 0])[1]));
    for (let lane = 0; lane < lanes.length; lane++) if (what === "both" || (what === "links") === lane >= devices) list.push(lane);
    shown = list.sort((a, b) => node(a) - node(b) || a - b);
    const pixels = Number(at("lane-height").value), most = 470 - AXIS;
    height = pixels || Math.max(2, Math.min(30, most / shown.length));
    const room = Math.max(90, Math.min(most, shown.length * height));
    canvas.style.height = `${room + AXIS + 2}px`;
    GUTTER = canvas.clientWidth < 640 ? 84 : 178;
    view.top = Math.max(0, Math.min(view.top, shown.length * height - room));
  }
  function filter() {
    const critical = at("critical").checked, operator = chosen.operator;
    const kept = new Map(), keep = (i) => (!critical || rows.critical[i]) && (operator < 0 || rows.operator[i] === operator + 1);
    only = critical || operator >= 0
      ? (lane) => { if (!kept.has(lane)) kept.set(lane, onlyRows(rows, lanes.at(lane), keep)); return kept.get(lane); }
      : null;
    const box = at("filter");
    box.hidden = operator < 0;
    box.textContent = operator >= 0 ? `only ${operators[operator].name}` : "";
    if (operator >= 0) {
      const clear = make("button", "×", { type: "button", "aria-label": "Show all operators" });
      clear.onclick = () => choose(operator);
      box.append(clear);
    }
    redraw();
  }
  const colour = (i, by) => {
    if (by === "micro") return microColour(rows.micro[i], micros);
    if (by === "operator") return rows.operator[i] ? layers[rows.operator[i] - 1] : "#94a3b8";
    return CATEGORY_COLOURS[rows.category[i]];
  };

  function draw() {
    const started = performance.now();
    chooseLanes();
    const { width, height: tall } = face.fit(), c = face.context, ink = theme(), scale = (width - GUTTER) / (view.to - view.from);
    const by = at("colour-by").value;
    axis(c, ink, width, tall, scale);
    const first = Math.floor(view.top / height), last = Math.min(shown.length, Math.ceil((view.top + tall - AXIS) / height));
    c.save();
    c.beginPath();
    c.rect(0, AXIS, width, tall - AXIS);
    c.clip();
    for (let k = first; k < last; k++) {
      const y = AXIS + k * height - view.top, lane = shown[k];
      c.save();
      c.beginPath();
      c.rect(GUTTER, y, width - GUTTER, height);
      c.clip();
      if (only) {
        strip(c, ink, lanes.at(lane), y, scale, by, 0.13, false);
        strip(c, ink, only(lane), y, scale, by, 1, height >= 14);
      } else strip(c, ink, lanes.at(lane), y, scale, by, 1, height >= 14);
      c.restore();
      label(c, ink, lane, y, k, first);
    }
    c.restore();
    overview();
    canvas.dataset.drawMilliseconds = (performance.now() - started).toFixed(1);
  }
  function strip(c, ink, lane, y, scale, by, alpha, words) {
    const inner = height > 5 ? height - 2 : height - (height > 3 ? 0.6 : 0.2);
    let run = null; // neighbouring pixels of one colour and strength are one rectangle
    const flush = () => {
      if (!run) return;
      c.globalAlpha = run.alpha;
      c.fillStyle = run.colour;
      c.fillRect(GUTTER + run.x0, y, run.x1 - run.x0, inner);
      run = null;
    };
    paintLane(rows, lane, view.from, view.to, scale, (x0, x1, row, share) => {
      const paint = colour(row, by), strength = alpha * (0.2 + 0.8 * Math.ceil(share * 5) / 5);
      if (x1 - x0 <= 1 && run && run.colour === paint && run.alpha === strength && x0 <= run.x1 + 0.01) { run.x1 = x1; return; }
      flush();
      if (x1 - x0 <= 1) { run = { x0, x1, colour: paint, alpha: strength }; return; }
      const left = Math.max(x0, -2), right = Math.min(x1, canvas.clientWidth - GUTTER + 2), wide = right - left;
      c.globalAlpha = strength;
      c.fillStyle = paint;
      c.fillRect(GUTTER + left, y, wide > 3 ? wide - 0.6 : wide, inner);
      if (rows.critical[row] && wide >= 3 && height >= 8) {
        c.globalAlpha = alpha;
        c.strokeStyle = ink.ink;
        c.lineWidth = 1.3;
        c.strokeRect(GUTTER + left + 0.7, y + 0.7, wide - 1.9, inner - 1.4);
      }
      if (words && wide > 26) {
        const name = nameOf(row), letters = Math.floor((wide - 6) / 6.6);
        c.globalAlpha = alpha;
        c.fillStyle = "#fff";
        if (letters >= Math.min(name.length, 5)) c.fillText(short(name, letters), GUTTER + left + 4, y + inner / 2 + 0.5);
      }
    });
    flush();
    c.globalAlpha = 1;
  }
  const nameOf = (i) => (rows.operator[i] ? operators[rows.operator[i] - 1].name : report.categories[rows.category[i]]);
  function label(c, ink, lane, y, place, first) {
    const wide = GUTTER - 8;
    c.fillStyle = ink.faint;
    c.fillRect(0, y, wide * Math.max(0, Math.min(1, use[lane])), height > 3 ? height - 1 : height);
    const every = Math.max(1, Math.ceil(11 / height));
    if ((place - first) % every) return;
    c.fillStyle = hover === lane ? ink.accent : ink.soft;
    c.fillText(short(labels[lane], GUTTER > 100 ? 21 : 12), 5, y + Math.max(height, 9) / 2);
    c.textAlign = "right";
    if (height >= 11 && GUTTER > 100) c.fillText(percent(Math.max(0, use[lane])), GUTTER - 10, y + height / 2);
    c.textAlign = "left";
  }
  function axis(c, ink, width, tall, scale) {
    c.strokeStyle = ink.line;
    c.fillStyle = ink.soft;
    c.lineWidth = 1;
    for (const t of ticks(view.from * tick, view.to * tick, (width - GUTTER) / 110)) {
      const x = GUTTER + (t / tick - view.from) * scale;
      c.beginPath();
      c.moveTo(x, AXIS - 6);
      c.lineTo(x, tall);
      c.stroke();
      c.fillText(axisText(t), x + 3, AXIS / 2);
    }
  }
  function axisText(t) { // as many digits as neighbours need to differ
    const wide = (view.to - view.from) * tick, [unit, factor] = wide > 2 ? ["s", 1] : wide > 2e-3 ? ["ms", 1e3] : ["µs", 1e6];
    const digits = Math.max(0, Math.min(6, Math.ceil(-Math.log10(wide * factor / 8))));
    return `${(t * factor).toFixed(digits)} ${unit}`;
  }
  // What devices and links do on average, in as many stretches as the overview has pixels; done once a width. Links come a
  // moment later, for there are many messages and each goes over several.
  let profile = null;
  function measure(width, first, last) {
    const kinds = CATEGORY_COLOURS.length, sums = new Float64Array(width * kinds), { ids, lags, from } = lanes, scale = width / step;
    for (let j = from[first]; j < from[last]; j++) {
      const i = ids[j], kind = rows.category[i], took = rows.end[i] - rows.start[i], share = took ? rows.busy[i] / took : 0;
      const x0 = Math.max(0, (rows.start[i] - lags[j]) * scale), x1 = Math.min(width, x0 + took * scale);
      for (let x = Math.floor(x0); x < x1; x++) sums[x * kinds + kind] += (Math.min(x + 1, x1) - Math.max(x, x0)) * share;
    }
    return { sums, kinds, count: Math.max(1, last - first) };
  }
  function profiles(width) {
    if (profile && profile.width === width) return;
    profile = { width, devices: measure(width, 0, devices), links: null };
    if (lanes.length > devices) afterwards(() => { profile.links = measure(profile.width, devices, lanes.length); overview(); });
  }
  function area(c, { sums, kinds, count }, room, bottom, tall) {
    for (let x = 0; x < room; x++) {
      let y = bottom;
      for (let k = 0; k < kinds; k++) {
        const h = (sums[x * kinds + k] / count) * tall;
        if (h < 0.05) continue;
        c.fillStyle = CATEGORY_COLOURS[k];
        c.fillRect(GUTTER + x, y - h, 1, h);
        y -= h;
      }
    }
  }
  function overview() {
    const { width, height: tall } = over.fit(), c = over.context, ink = theme(), room = Math.max(1, Math.floor(width - GUTTER));
    profiles(room);
    const half = tall / 2;
    area(c, profile.devices, room, half - 1, half - 5);
    if (profile.links) area(c, profile.links, room, tall - 2, half - 6);
    c.fillStyle = ink.soft;
    c.fillText("mean of devices", 5, half / 2 + 1);
    if (lanes.length > devices) c.fillText("mean of links", 5, half * 1.5);
    const x0 = GUTTER + (view.from / step) * room, x1 = GUTTER + (view.to / step) * room;
    c.fillStyle = ink.paper;
    c.globalAlpha = 0.72;
    c.fillRect(GUTTER, 0, x0 - GUTTER, tall);
    c.fillRect(x1, 0, width - x1, tall);
    c.globalAlpha = 1;
    c.strokeStyle = ink.accent;
    c.lineWidth = 1.5;
    c.strokeRect(x0 + 0.75, 0.75, Math.max(2, x1 - x0 - 1.5), tall - 1.5);
  }
  if (lanes.length <= 48) at("lanes").value = "both";
  if (micros <= 1) at("colour-by").querySelector("[value=micro]").remove();
  else if (pipeline) at("colour-by").value = "micro";
  const redraw = onFrame(draw);
  function window_(from, to) {
    const least = Math.max(2, 20e-9 / tick), size = Math.max(least, Math.min(step, to - from));
    from = Math.max(0, Math.min(step - size, from));
    view.from = from;
    view.to = from + size;
    redraw();
  }
  function zoom(factor, x = (GUTTER + canvas.clientWidth) / 2) {
    const share = Math.max(0, (x - GUTTER) / (canvas.clientWidth - GUTTER)), time = view.from + share * (view.to - view.from);
    const size = (view.to - view.from) / factor;
    window_(time - share * size, time + (1 - share) * size);
  }
  function scroll(dy) {
    const before = view.top;
    view.top = Math.max(0, Math.min(view.top + dy, shown.length * height - (canvas.clientHeight - AXIS)));
    redraw();
    return view.top !== before;
  }
  function rowUnder(e) {
    const edge = canvas.getBoundingClientRect(), x = e.clientX - edge.left, y = e.clientY - edge.top;
    const k = Math.floor((y - AXIS + view.top) / height);
    if (y < AXIS || k < 0 || k >= shown.length) return [-1, -1];
    if (x < GUTTER) return [-1, shown[k]];
    const scale = (canvas.clientWidth - GUTTER) / (view.to - view.from), time = view.from + (x - GUTTER) / scale, slack = 2 / scale;
    const found = only ? rowAt(only(shown[k]), time, slack) : -1;
    return [found >= 0 ? found : rowAt(lanes.at(shown[k]), time, slack), shown[k]];
  }
  function describe(i) {
    const o = rows.operator[i] ? operators[rows.operator[i] - 1] : null, message = rows.category[i] >= 5, many = rows.count[i] > 1;
    const start = rows.start[i] * tick, took = (rows.end[i] - rows.start[i]) * tick;
    const what = report.categories[rows.category[i]];
    return [
      o ? `${o.name}: ${what}` : what,
      many ? `${grouped.format(rows.count[i])} tasks joined for drawing, busy ${seconds(rows.busy[i] * tick)} of ${seconds(took)}` : "",
      !many && rows.category[i] < 2 && o ? `piece ${rows.piece[i]} of ${o.dims.reduce((n, d) => n * d[3], 1)} (${pieceText(o, rows.piece[i])})` : "",
      message ? `device ${deviceNumbers[rows.source[i]]} → device ${deviceNumbers[rows.processor[i]]}` : `device ${deviceNumbers[rows.processor[i]]}`,
      many ? "" : `takes ${seconds(took)}`,
      `from ${(start * 1e3).toFixed(4)} to ${((start + took) * 1e3).toFixed(4)} ms`,
      `${bytes(rows.nbytes[i])} ${message ? "moved" : "touched"}`,
      message ? `over ${machine.routes[`${rows.source[i]} ${rows.processor[i]}`].map((k) => labels[k]).join(", ")}` : "",
      rows.micro[i] && micros > 1 ? `micro-batch ${rows.micro[i] - 1}` : "",
      rows.critical[i] ? "on the critical path" : "",
    ];
  }
  const dragging = draggable(canvas, (dx, dy) => {
    const scale = (canvas.clientWidth - GUTTER) / (view.to - view.from);
    window_(view.from - dx / scale, view.to - dx / scale);
    scroll(-dy);
  }, (e) => {
    const [row] = rowUnder(e);
    if (row >= 0 && rows.operator[row]) { choose(rows.operator[row] - 1); if (chosen.operator >= 0) showOperator(chosen.operator); }
  });
  canvas.addEventListener("pointermove", (e) => {
    if (dragging()) return;
    const [row, lane] = rowUnder(e);
    if (lane !== hover) { hover = lane; redraw(); }
    tip(e, row >= 0 ? describe(row) : lane >= 0 && e.offsetX < GUTTER ? [labels[lane], `busy ${percent(Math.max(0, use[lane]))} of the step`] : null);
  });
  canvas.addEventListener("pointerleave", (e) => { hover = -1; tip(e, null); });
  canvas.addEventListener("dblclick", (e) => {
    const [row] = rowUnder(e);
    if (row >= 0) { const size = (rows.end[row] - rows.start[row]) * 3; window_(rows.start[row] - size / 3, rows.start[row] + (2 * size) / 3); }
  });
  canvas.addEventListener("wheel", (e) => {
    const edge = canvas.getBoundingClientRect();
    if (e.ctrlKey || e.metaKey) { e.preventDefault(); zoom(Math.exp(-e.deltaY * 0.003), e.clientX - edge.left); }
    else if (e.shiftKey || Math.abs(e.deltaX) > Math.abs(e.deltaY)) {
      e.preventDefault();
      const by = ((e.deltaX || e.deltaY) / (canvas.clientWidth - GUTTER)) * (view.to - view.from);
      window_(view.from + by, view.to + by);
    } else if (scroll(e.deltaY)) e.preventDefault();
  }, { passive: false });
  canvas.addEventListener("keydown", (e) => {
    const by = (view.to - view.from) * 0.15, key = e.key.toLowerCase();
    if (key === "w" || key === "+") zoom(1.5);
    else if (key === "s" || key === "-") zoom(1 / 1.5);
    else if (key === "a" || key === "arrowleft") window_(view.from - by, view.to - by);
    else if (key === "d" || key === "arrowright") window_(view.from + by, view.to + by);
    else if (key === "arrowdown" || key === "arrowup") scroll(key === "arrowdown" ? 40 : -40);
    else if (key === "0") window_(0, step);
    else return;
    e.preventDefault();
  });
  let begun = null;
  const overTime = (e) => Math.max(0, Math.min(1, (e.offsetX - GUTTER) / (over.canvas.clientWidth - GUTTER))) * step;
  over.canvas.addEventListener("pointerdown", (e) => { begun = overTime(e); over.canvas.setPointerCapture(e.pointerId); });
  over.canvas.addEventListener("pointermove", (e) => { if (begun !== null && Math.abs(overTime(e) - begun) > step / 400) window_(Math.min(begun, overTime(e)), Math.max(begun, overTime(e))); });
  over.canvas.addEventListener("pointerup", (e) => {
    if (begun !== null && Math.abs(overTime(e) - begun) <= step / 400) { const half = (view.to - view.from) / 2; window_(begun - half, begun + half); }
    begun = null;
  });
  at("time-in").onclick = () => zoom(2);
  at("time-out").onclick = () => zoom(0.5);
  at("time-fit").onclick = () => window_(0, step);
  for (const id of ["lanes", "lane-height"]) at(id).onchange = () => { view.top = 0; redraw(); };
  at("colour-by").onchange = () => { legend(report, layers); redraw(); };
  at("critical").onchange = filter;
  chosen.listeners.push(filter);
  at("timeline-note").textContent = `${grouped.format(report.plan.tasks)} tasks${report.joined_below_seconds ? `; neighbours shorter than ${seconds(report.joined_below_seconds)} are joined into ${grouped.format(rows.category.length)} rows, totals are of all tasks` : ""}. Tasks on the critical path have a dark or light frame; paler colour: partly busy. Ctrl + wheel or W and S zoom, drag or A and D move, wheel scrolls lanes, double click shows a task.`;
  legend(report, layers);
  at("path-details").addEventListener("toggle", () => pathWords(report), { once: true });
  return {
    redraw, draw, view: () => ({ ...view }),
    zoomTo(operator) {
      let low = Infinity, high = 0;
      for (let i = 0; i < rows.category.length; i++) if (rows.operator[i] === operator + 1 && rows.category[i] < 2) { low = Math.min(low, rows.start[i]); high = Math.max(high, rows.end[i]); }
      if (high > low) window_(low - (high - low) * 0.1, high + (high - low) * 0.1);
      at("timeline").scrollIntoView();
    },
    middleOf(row) { // where a row is drawn, for tests and scripts
      const edge = canvas.getBoundingClientRect(), scale = (canvas.clientWidth - GUTTER) / (view.to - view.from);
      return { x: edge.left + GUTTER + ((rows.start[row] + rows.end[row]) / 2 - view.from) * scale, y: edge.top + AXIS + (shown.indexOf(rows.processor[row]) + 0.5) * height - view.top };
    },
  };
}
function legend(report, layers) {
  const box = at("category-legend"), entries = new Map(), most = 40; // name -> colour
  if (at("colour-by").value === "operator") report.operators.forEach((o, i) => { if (o.layer) entries.set(o.layer, layers[i]); });
  else if (at("colour-by").value === "micro") {
    const count = report.rows.micro.reduce((a, b) => Math.max(a, b), 0);
    for (let m = 1; m <= count; m++) entries.set(`micro-batch ${m - 1}`, microColour(m, count));
  } else report.categories.forEach((name, k) => { if (report.operators.some((o) => o.tasks[k])) entries.set(name, CATEGORY_COLOURS[k]); });
  box.replaceChildren();
  for (const [name, paint] of [...entries].slice(0, most)) {
    const entry = make("span"), colour = make("i");
    colour.style.background = paint;
    entry.append(colour, name);
    box.append(entry);
  }
  if (entries.size > most) box.append(make("span", `and ${entries.size - most} more`));
}
function pathWords(report) {
  const path = report.critical_path, table = make("table", "", { class: "words" }), whole = path.seconds.reduce((a, b) => a + b, 0) || 1;
  const sums = path.seconds.map((s, k) => [s, k]).filter(([s]) => s > 0).sort((a, b) => b[0] - a[0]).map(([s, k]) => `${report.categories[k]} ${percent(s / whole)}`);
  table.append(make("caption", `${grouped.format(path.tasks)} tasks that each start when the one before ends, together the whole step: ${sums.join(", ")}`));
  const body = table.createTBody(), most = 300;
  for (const [category, operator, took, tasks] of path.stretches.slice(0, most)) {
    const row = body.insertRow();
    for (const cell of [operator >= 0 ? report.operators[operator].name : "all", report.categories[category], seconds(took), `${tasks} ${tasks === 1 ? "task" : "tasks"}`]) row.append(make("td", cell));
  }
  at("path").append(table);
  if (path.stretches.length > most) at("path").append(make("p", `and ${path.stretches.length - most} more`));
}
