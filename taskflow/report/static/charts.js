// Comparison bars, the machine's nodes, and axes for small charts.
function startBars(report) {
  const box = at("bars"), plans = [report.plan, ...report.baselines], limit = 3 * report.plan.seconds;
  const most = Math.min(limit, Math.max(...plans.map((p) => p.seconds)));
  const line = (name, stack, figure) => {
    const row = make("div", "", { class: "row" });
    row.append(make("span", name), stack, make("span", figure));
    box.append(row);
  };
  box.append(make("h3", "Step time: what a device does on average"));
  for (const plan of plans) {
    const cut = plan.seconds > limit, stack = make("div", "", { class: "stack" });
    for (const part of report.parts) {
      const share = Math.min(1, plan.seconds / most) * (plan.split[part] / plan.seconds);
      if (!share) continue;
      const piece = make("div", "", { title: `${plan.name}: ${part} ${seconds(plan.split[part])} (${percent(plan.split[part] / plan.seconds)})` });
      piece.style.width = `${100 * share}%`;
      piece.style.background = part === "wait for others" ? "repeating-linear-gradient(135deg,var(--line) 0 4px,transparent 4px 8px)" : PART_COLOURS[part];
      stack.append(piece);
    }
    line(plan.name, stack, `${seconds(plan.seconds)}${cut ? " (bar is cut)" : ""}`);
  }
  const keys = make("div", "", { class: "legend" });
  for (const part of report.parts) {
    if (!plans.some((p) => p.split[part] > 0)) continue;
    const entry = make("span"), colour = make("i");
    colour.style.background = part === "wait for others" ? "repeating-linear-gradient(135deg,var(--line) 0 4px,transparent 4px 8px)" : PART_COLOURS[part];
    entry.append(colour, part);
    keys.append(entry);
  }
  box.append(keys, make("h3", "Bytes moved between devices in a step"));
  const bytesMost = Math.max(...plans.map((p) => p.transfer_bytes), 1);
  for (const plan of plans) {
    const stack = make("div", "", { class: "stack" });
    for (const [name, n] of Object.entries(plan.bytes)) {
      const piece = make("div", "", { title: `${plan.name}: ${name} ${bytes(n)}` });
      piece.style.width = `${(100 * n) / bytesMost}%`;
      piece.style.background = CATEGORY_COLOURS[report.categories.indexOf(name)];
      stack.append(piece);
    }
    line(plan.name, stack, bytes(plan.transfer_bytes));
  }
}
function startMachine(report, colours) {
  const { machine } = report, box = at("nodes"), step = report.plan.seconds || 1, nodes = new Map();
  const idle = ["wait for values", "wait for weights", "wait for others"];
  const meter = (into, name, share, colour, note) => {
    const line = make("div", "", { class: "meter", title: note }), bar = make("b"), fill = make("i");
    fill.style.width = `${Math.min(100, 100 * share)}%`;
    fill.style.background = colour;
    bar.append(fill);
    line.append(make("span", name), bar, make("span", percent(Math.max(0, share))));
    into.append(line);
  };
  const of = (node) => {
    if (!nodes.has(node)) { nodes.set(node, make("div", "", { class: "node" })); nodes.get(node).append(make("h3", `node ${node}`)); }
    return nodes.get(node);
  };
  machine.devices.forEach((d, i) => meter(of(d.node), `device ${deviceNumbers[i]} (${d.kind})`, 1 - idle.reduce((s, k) => s + d.split[k], 0) / step, colours[i], `memory ${bytes(report.memory[i].peak_bytes)} of ${bytes(d.memory_bytes)}, sent ${bytes(d.sent_bytes)}, received ${bytes(d.received_bytes)}`));
  for (const k of machine.links) {
    const [, node, name] = /^node(\d+)\.(.*)$/.exec(k.name) || [0, 0, k.name];
    meter(of(Number(node)), name, k.busy_seconds / step, k.busy_seconds > 0.8 * step ? "var(--bad)" : "var(--accent)", `${bytes(k.bytes)} in ${grouped.format(k.messages)} messages at ${bytes(k.bytes_per_second)}/s`);
  }
  const busiest = [...machine.links].sort((a, b) => b.busy_seconds - a.busy_seconds)[0];
  if (busiest) at("machine-note").textContent += ` The busiest link is ${busiest.name}: ${percent(busiest.busy_seconds / step)} of the step, ${bytes(busiest.bytes)} in ${grouped.format(busiest.messages)} messages.`;
  for (const node of [...nodes.keys()].sort((a, b) => a - b)) box.append(nodes.get(node));
  const legend = at("device-legend"), groups = new Map();
  machine.devices.forEach((d, i) => groups.set(d.node, [...(groups.get(d.node) || []), i]));
  for (const [node, list] of groups) {
    const entry = make("span", `node ${node}:`);
    for (const i of list) { const colour = make("i", "", { title: `device ${deviceNumbers[i]}` }); colour.style.background = colours[i]; entry.append(colour); }
    entry.append(ranges(list));
    legend.append(entry);
  }
}
// A frame with axes; returns where values lie. xs and ys are [low, high]; xText and yText write their values.
function frame(c, ink, width, height, xs, ys, xText, yText) {
  const left = 74, bottom = height - 24, right = width - 12, top = 10;
  const x = (v) => left + ((v - xs[0]) / (xs[1] - xs[0] || 1)) * (right - left), y = (v) => bottom - ((v - ys[0]) / (ys[1] - ys[0] || 1)) * (bottom - top);
  c.strokeStyle = ink.line;
  c.fillStyle = ink.soft;
  c.lineWidth = 1;
  c.textAlign = "right";
  for (const v of ticks(ys[0], ys[1], 5)) { c.beginPath(); c.moveTo(left, y(v)); c.lineTo(right, y(v)); c.stroke(); c.fillText(yText(v), left - 6, y(v)); }
  c.textAlign = "center";
  for (const v of ticks(xs[0], xs[1], Math.max(2, width / 130))) c.fillText(xText(v), Math.min(x(v), right - 14), bottom + 13);
  c.textAlign = "left";
  return { x, y, left, right, top, bottom };
}
