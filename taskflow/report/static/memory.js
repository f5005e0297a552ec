// Memory of every device over the step, with the limit.
function startMemory(report, colours) {
  const { rows, memory } = report, canvas = at("memory-canvas"), face = surface(canvas), pick = at("memory-device");
  const offsets = [0];
  for (const n of rows.memory_points) offsets.push(offsets[offsets.length - 1] + n);
  memory.forEach((m, i) => pick.append(make("option", `${deviceNumbers[i]}: ${bytes(m.peak_bytes)}`, { value: i })));
  const worst = memory.reduce((best, m, i) => (m.peak_bytes > memory[best].peak_bytes ? i : best), 0);
  pick.value = worst;
  const peak = memory[worst].peak_bytes, limit = Math.min(...memory.map((m) => m.limit_bytes));
  at("memory-limit").checked = peak > 0.35 * limit;
  function draw() {
    const { width, height } = face.fit(), c = face.context, ink = theme(), step = report.plan.seconds / report.tick_seconds, one = Number(pick.value);
    const top = at("memory-limit").checked ? Math.max(peak, limit) * 1.06 : peak * 1.12;
    const area = frame(c, ink, width, height, [0, step], [0, top || 1], (v) => seconds(v * report.tick_seconds), bytes);
    const trace = (i) => {
      c.beginPath();
      for (let k = offsets[i]; k < offsets[i + 1]; k++) {
        const x = area.x(rows.memory_time[k]), y = area.y(rows.memory_bytes[k]);
        if (k === offsets[i]) c.moveTo(area.left, y); else c.lineTo(x, area.y(rows.memory_bytes[k - 1]));
        c.lineTo(x, y);
      }
      c.lineTo(area.right, area.y(rows.memory_bytes[offsets[i + 1] - 1]));
    };
    c.globalAlpha = 0.45;
    memory.forEach((_, i) => { if (i !== one) { trace(i); c.strokeStyle = colours[i]; c.lineWidth = 1; c.stroke(); } });
    c.globalAlpha = 1;
    trace(one);
    c.strokeStyle = ink.accent;
    c.lineWidth = 2;
    c.stroke();
    c.lineTo(area.right, area.bottom);
    c.lineTo(area.left, area.bottom);
    c.globalAlpha = 0.12;
    c.fillStyle = ink.accent;
    c.fill();
    c.globalAlpha = 1;
    const own = memory[one].limit_bytes;
    if (own <= top) {
      c.strokeStyle = ink.bad;
      c.setLineDash([6, 4]);
      c.beginPath();
      c.moveTo(area.left, area.y(own));
      c.lineTo(area.right, area.y(own));
      c.stroke();
      c.setLineDash([]);
      c.fillStyle = ink.bad;
      c.fillText(`limit ${bytes(own)}`, area.left + 6, area.y(own) + 9);
    }
    const m = memory[one];
    at("memory-note").textContent = `Device ${deviceNumbers[one]}: peak ${bytes(m.peak_bytes)} of ${bytes(m.limit_bytes)} (${percent(m.peak_bytes / m.limit_bytes)}): weights ${bytes(m.weights)}, update rule and states ${bytes(m.state)}, at most ${bytes(m.buffers)} of values, gradients and messages at once, ${bytes(m.packed)} to pack messages, ${bytes(m.holes)} between buffers. Faint lines: the other devices.`;
  }
  const redraw = onFrame(draw);
  pick.onchange = redraw;
  at("memory-limit").onchange = redraw;
  canvas.addEventListener("pointermove", (e) => {
    const one = Number(pick.value), share = (e.offsetX - 74) / (canvas.clientWidth - 86), time = (share * report.plan.seconds) / report.tick_seconds;
    if (share < 0 || share > 1) return tip(e, null);
    let k = offsets[one];
    while (k + 1 < offsets[one + 1] && rows.memory_time[k + 1] <= time) k++;
    tip(e, [`device ${deviceNumbers[one]} at ${seconds(time * report.tick_seconds)}`, bytes(rows.memory_bytes[k])]);
  });
  canvas.addEventListener("pointerleave", (e) => tip(e, null));
  return { redraw, draw };
}
