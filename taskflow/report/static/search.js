// How the best predicted time fell during the search.
function startSearch(report) {
  const found = report.search, canvas = at("search-canvas"), face = surface(canvas);
  if (!found || !(found.history || []).length) {
    at("search-note").textContent = "This plan does not say how it was found: it follows a rule, or its file keeps no history. `taskflow search ... --out plan.json` keeps it, and `taskflow report search --search 30s ...` searches for a plan and reports that.";
    canvas.hidden = true;
    canvas.style.display = "none";
    return { redraw() {}, draw() {} };
  }
  const starts = Object.entries(found.starts_iteration_seconds || {}).map(([name, s]) => `${name} ${seconds(s)}`).join(", ");
  at("search-note").textContent = `${found.algorithm}, seed ${found.seed}: ${grouped.format(found.proposals)} proposals (${grouped.format(found.accepted)} accepted) in ${seconds(found.search_seconds)}, ${found.stopped}; best ${seconds(found.iteration_seconds)} a step${found.optimal ? ", proved to be the fastest" : found.optimal_among ? `, and it is proved that none in ${found.optimal_among} is faster` : ""}${!found.optimal && found.lower_bound_seconds ? `, and no plan is faster than ${seconds(found.lower_bound_seconds)}` : ""}. It had to beat: ${starts || "nothing"}.`;
  const history = found.history, end = Math.max(found.search_seconds, history[history.length - 1].elapsed_seconds) || 1;
  const low = Math.min(...history.map((h) => h.iteration_seconds)), first = history[0].iteration_seconds;
  function draw() {
    const { width, height } = face.fit(), c = face.context, ink = theme();
    const base = first < 3 * low ? Math.max(0, low - 0.25 * (first - low)) : 0;
    const area = frame(c, ink, width, height, [0, end], [base, first * 1.04], seconds, seconds);
    c.beginPath();
    history.forEach((h, k) => {
      const x = area.x(h.elapsed_seconds), y = area.y(h.iteration_seconds);
      if (k) c.lineTo(x, area.y(history[k - 1].iteration_seconds)); else c.moveTo(x, y);
      c.lineTo(x, y);
    });
    c.lineTo(area.right, area.y(history[history.length - 1].iteration_seconds));
    c.strokeStyle = ink.accent;
    c.lineWidth = 2;
    c.stroke();
    c.fillStyle = ink.accent;
    for (const h of history) { c.beginPath(); c.arc(area.x(h.elapsed_seconds), area.y(h.iteration_seconds), 2.5, 0, 7); c.fill(); }
  }
  canvas.addEventListener("pointermove", (e) => {
    const time = ((e.offsetX - 74) / (canvas.clientWidth - 86)) * end, past = history.filter((h) => h.elapsed_seconds <= time);
    const h = past[past.length - 1];
    tip(e, h && [`after ${seconds(h.elapsed_seconds)}, ${grouped.format(h.proposal)} proposals`, `best ${seconds(h.iteration_seconds)} a step`]);
  });
  canvas.addEventListener("pointerleave", (e) => tip(e, null));
  return { redraw: onFrame(draw), draw };
}
